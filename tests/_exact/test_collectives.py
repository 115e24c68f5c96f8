"""Collectives of floats over a named axis have no rules; over a numbered axis they have. The remedies work."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely
from jaxdml.reference import floats

X = np.random.default_rng(0).standard_normal((4, 4, 3)).astype(np.float32)
REDUCTIONS = {
    "psum": (lax.psum, jnp.sum),
    "pmean": (lax.pmean, jnp.sum),
    "pmax": (lax.pmax, jnp.max),
    "pmin": (lax.pmin, jnp.min),
    "reduce_scatter": (lambda x, name: lax.psum_scatter(x, name, tiled=True), jnp.sum),
}
MOVERS = {
    "all_gather": lax.all_gather,
    "all_to_all": lambda x, name: lax.all_to_all(x, name, 0, 0, tiled=True),
    "ppermute": lambda x, name: lax.ppermute(x, name, [(0, 0)]),
}
EXCHANGES = {
    **MOVERS,
    "ppermute": lambda x, name: lax.ppermute(x, name, [(i, (i + 1) % 4) for i in range(4)]),
}


def in_shard_map(f, check_vma=True):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Auto,))
    return jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=check_vma)


def mapped(f):
    """f in a vmap and in both kinds of shard_map."""
    return [jax.vmap(f, axis_name="i"), in_shard_map(f), in_shard_map(f, check_vma=False)]


def steep(x):
    return (jnp.exp(x.astype(jnp.float32)) * 1e6).astype(jnp.int32)


INSIDE = {  # primitives on integers that compute floats inside, and the same by the remedy in the error
    "shard_map": (lambda x: dml.exact(in_shard_map(jax.jit(steep)))(x), in_shard_map(dml.exact(steep))),
    "scatter": (
        lambda x: dml.exact(lambda x: x.at[0].apply(steep))(x),
        dml.exact(lambda x: x.at[0].set(steep(x[0]))),
    ),
    "reduce": (
        lambda x: dml.exact(lambda x: lax.reduce(x, np.int32(0), lambda a, b: steep(a) + b, (0,)))(x),
        lambda x: dml.exact(lambda x: x)(lax.reduce(x, np.int32(0), lambda a, b: steep(a) + b, (0,))),
    ),
}


@pytest.mark.parametrize("name", INSIDE)
def test_floats_inside_of_primitives_on_integers_are_refused(name):
    refused, remedy = INSIDE[name]
    for f in (refused, jax.jit(refused)):
        with pytest.raises(dml.ExactError, match=f"no rule for the floats inside {name}.*: (put|write|compute it)"):
            f(np.arange(4, dtype=np.int32))
    assert remedy(np.arange(4, dtype=np.int32)).dtype == np.int32


def test_a_shard_map_of_integers_runs_inside():
    x = np.arange(4, dtype=np.int32)
    for f in (dml.exact(in_shard_map(lambda x: x + 1)), jax.jit(dml.exact(in_shard_map(lambda x: x + 1)))):
        assert_same_bits(f(x), x + 1)


@pytest.mark.parametrize("name", rest_rarely(REDUCTIONS, 1))
def test_reductions_over_a_named_axis_are_written_with_jax_numpy(name):
    collective, reduce = REDUCTIONS[name]
    remedy = f"write jnp.{reduce.__name__} over the axis outside of shard_map and vmap; .*; for the axis of a vmap"
    for f in mapped(dml.exact(lambda x: collective(x, "i"))):
        with pytest.raises(dml.ExactError, match=f"no rule for (psum|{name})\\w* of float32.*: {remedy}"):
            f(X)


@pytest.mark.parametrize("name", MOVERS)
def test_collectives_that_move_elements_are_called_outside(name):
    def collected(x):
        return MOVERS[name](x, "i")

    remedy = "call it on the arguments or results of the function that exact returned; for the axis of a vmap"
    for f in mapped(dml.exact(lambda x: jnp.exp(collected(x)))):
        with pytest.raises(dml.ExactError, match=f"no rule for {name} of float32.*: {remedy}"):
            f(X)


def expected(axes):
    """The results of the reductions over axes, by NumPy and the reference."""
    added = floats.reduce_sum(np.moveaxis(X, axes, range(-len(axes), 0)).reshape(*np.delete(X.shape, axes), -1))
    mean = floats.div(added, np.float32(np.prod([X.shape[axis] for axis in axes])))
    return {"psum": added, "pmean": mean, "pmax": X.max(axes), "pmin": X.min(axes), "reduce_scatter": added[:, None]}


@pytest.mark.parametrize("name", rest_rarely(REDUCTIONS, 2))
def test_reductions_over_the_axis_of_a_vmap_inside_exact(name):
    f = dml.exact(jax.vmap(lambda x: REDUCTIONS[name][0](x, "i"), axis_name="i"))
    got = jax.jit(f)(X)
    assert_same_bits(got, np.broadcast_to(expected((0,))[name], got.shape))


@pytest.mark.parametrize(("name", "moved"), [
    ("all_gather", np.broadcast_to(X, (4, *X.shape))), ("all_to_all", X.swapaxes(0, 1)), ("ppermute", np.roll(X, 1, 0)),
])  # fmt: skip
def test_collectives_that_move_elements_over_the_axis_of_a_vmap_inside_exact(name, moved):
    f = dml.exact(jax.vmap(lambda x: jnp.exp(EXCHANGES[name](x, "i")), axis_name="i"))
    assert_same_bits(jax.jit(f)(X), floats.exp(moved))


@pytest.mark.parametrize("name", rest_rarely(("psum", "pmax", "pmin"), 1))
def test_axes_that_are_numbers(name):
    def f(*axes):
        return dml.exact(lambda x: REDUCTIONS[name][0](x, axes))

    assert_same_bits(jax.jit(f(0, 2))(X), expected((0, 2))[name])
    assert_same_bits(jax.jit(jax.vmap(f(0)))(X), expected((1,))[name])
    both = dml.exact(jax.vmap(lambda x: REDUCTIONS[name][0](x, ("i", 0)), axis_name="i", out_axes=None))
    assert_same_bits(jax.jit(both)(X), expected((0, 1))[name])
    with pytest.raises(dml.ExactError, match=f"no rule for {name} of float32"):
        jax.vmap(f("i", 0), axis_name="i")(X)


@pytest.mark.parametrize("name", ["psum", "pmean", "pmax", "pmin"])
def test_the_axis_of_a_vmap_may_have_a_symbolic_size(name):
    """JAX itself cannot trace lax.pmean then; the remedy in the error works."""

    def f(x):
        reduce = (lambda x, name: lax.psum(x, name) / size) if name == "pmean" else REDUCTIONS[name][0]
        size = x.shape[0]
        return jax.vmap(lambda x: reduce(x, "i"), axis_name="i", out_axes=None)(x)

    struct = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, 4, 3"), jnp.float32)
    got = jax.export.export(jax.jit(dml.exact(f)))(struct).call(X)
    assert_same_bits(got, expected((0,))[name])
    if name == "pmean":
        mean = jax.vmap(lambda x: lax.pmean(x, "i"), axis_name="i")
        with pytest.raises(dml.ExactError, match=r"cannot trace .*'n' used in .*: export it .*; .* write lax.psum / n"):
            jax.export.export(jax.jit(dml.exact(mean)))(struct)


def test_too_many_addends_are_an_error():
    with pytest.raises(dml.ExactError, match=r"a sum of more than 67,108,864 addends .*: sum parts"):
        jax.eval_shape(dml.exact(lambda x: lax.psum(x, 0)), jax.ShapeDtypeStruct((2**26 + 1,), jnp.float32))


@pytest.mark.parametrize("dtype", rest_rarely((np.int32, bool), 1))
def test_collectives_of_integers_are_exact_already(dtype):
    x = (X > 0).astype(dtype)

    @jax.jit
    def collected(x):
        return lax.psum(x, "i"), lax.pmax(x, "i"), lax.all_gather(x, "i"), lax.axis_index("i")[None]

    for got, right in zip(mapped(dml.exact(collected)), mapped(collected), strict=True):
        jax.tree.map(assert_same_bits, jax.jit(got)(x), right(x))


@pytest.mark.rare
@pytest.mark.parametrize("name", MOVERS)
def test_remedies_work(name):
    exp = dml.exact(jnp.exp)
    before, after = (mapped(f) for f in (lambda x: exp(MOVERS[name](x, "i")), lambda x: MOVERS[name](exp(x), "i")))
    for one, other in zip(before[1:], after[1:], strict=True):
        assert_same_bits(one(X), other(X))
    if name != "ppermute":  # whose pairs are those of one device
        assert_same_bits(before[0](X), after[0](X))
