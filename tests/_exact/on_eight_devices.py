"""Run by test_modes.py in a process of its own, with eight CPU devices: rows or batches are spread over devices."""

import sys

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxdml as dml
from _exact.battery import EXPECTED, X, Y, assert_all_same, everything

SUMS = ("sum", "prod", "cumprod", "mean", "softmax", "layer_norm", "largest")
names = SUMS if sys.argv[1] == "sums" else tuple(EXPECTED)
expected = {name: EXPECTED[name] for name in names}


def some(x, y):
    results = everything(x, y)
    return {name: results[name] for name in names}


def check(word, function, mesh, spec):
    x, y = (jax.device_put(z, NamedSharding(mesh, spec)) for z in (X, Y))
    got = jax.jit(function)(x, y)
    assert len(got["softmax"].sharding.device_set) == 8
    assert_all_same(got, expected)
    print("ok", word)


def of_rows(x):
    """Functions whose jaxprs are traced again: a call that JAX lowers late, and the gradient of a condition."""
    tables = jnp.linspace(-2.0, 2.0, 9), jnp.arange(9.0)
    either = lambda x: lax.cond(x[0, 0, 0] > 0, jnp.exp, lambda x: x * x, x).sum()  # noqa: E731
    return {"interp": jnp.interp(x, *tables), "gradient": jax.grad(either)(x)}


mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
f = dml.exact(some)
check("rows over four devices, batches over two", f, mesh, P("x", None, "y"))
check("rows over eight devices", f, mesh, P(None, None, ("x", "y")))
inside = jax.shard_map(f, mesh=mesh, in_specs=P(("x", "y")), out_specs=P(("x", "y")))
check("shard_map over batches", inside, mesh, P(("x", "y")))

spread = jax.shard_map(dml.exact(of_rows), mesh=mesh, in_specs=P(("x", "y")), out_specs=P(("x", "y")))
parts = [jax.jit(dml.exact(of_rows))(part) for part in jnp.split(X, 8)]
assert_all_same(jax.jit(spread)(X), jax.tree.map(lambda *each: jnp.concatenate(each), *parts))
print("ok functions that are traced again")

explicit = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))
check("explicit axes without a mesh that is set", f, explicit, P("x"))


def of_batches(x):
    """An iota of its own sharding, a scatter into new zeros, and windows over the sharded axis."""
    windows = lax.reduce_window(x, 0.0, lax.add, (4, 1, 1), (1, 1, 1), "SAME")
    return {"places": jnp.argsort(x, -1), "added": x.at[..., jnp.array([1, 1])].add(x[..., :2]), "windows": windows}


x = jax.device_put(X, NamedSharding(explicit, P("x")))
eager = dml.exact(of_batches)(x)
assert all(len(y.sharding.device_set) == 8 for y in eager.values())
assert_all_same(eager, jax.jit(dml.exact(of_batches))(X))
print("ok eager on explicit axes")
