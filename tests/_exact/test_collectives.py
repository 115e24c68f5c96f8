"""Collectives over a named axis have no rules; the remedies work in shard_map and in vmap."""

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


def in_shard_map(f, check_vma=True):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Auto,))
    return jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=check_vma)


def mapped(f):
    """f in a vmap and in both kinds of shard_map."""
    return [jax.vmap(f, axis_name="i"), in_shard_map(f), in_shard_map(f, check_vma=False)]


@pytest.mark.parametrize("name", rest_rarely(REDUCTIONS, 1))
def test_reductions_over_a_named_axis_are_written_with_jax_numpy(name):
    collective, reduce = REDUCTIONS[name]
    remedy = f"write jnp.{reduce.__name__} over the axis outside of shard_map and vmap"
    for f in mapped(dml.exact(lambda x: collective(x, "i"))):
        with pytest.raises(dml.ExactError, match=f"no rule for (psum|{name})\\w* of float32.*: {remedy}"):
            f(X)


@pytest.mark.parametrize("name", MOVERS)
def test_collectives_that_move_elements_are_called_outside(name):
    def collected(x):
        return MOVERS[name](x, "i")

    for f in mapped(dml.exact(lambda x: jnp.exp(collected(x)))):
        with pytest.raises(dml.ExactError, match=f"no rule for {name} of float32.*: call it on the arguments or"):
            f(X)


@pytest.mark.rare
@pytest.mark.parametrize("name", MOVERS)
def test_remedies_work(name):
    exp = dml.exact(jnp.exp)
    before, after = (mapped(f) for f in (lambda x: exp(MOVERS[name](x, "i")), lambda x: MOVERS[name](exp(x), "i")))
    for one, other in zip(before[1:], after[1:], strict=True):
        assert_same_bits(one(X), other(X))
    if name != "ppermute":  # whose pairs are those of one device
        assert_same_bits(before[0](X), after[0](X))
