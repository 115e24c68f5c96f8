"""Products of many floats: their order, and what zeros, infinities, NaN and subnormals give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxdml as dml
from helpers.compare import assert_same_bits
from jaxdml.errors import ExactError
from jaxdml.reference import floats

RNG = np.random.default_rng(0)


def jitted(f):
    return jax.jit(dml.exact(f))


product_of = jitted(lambda x: jnp.prod(x, -1))
cumulated = jitted(jnp.cumprod)


def by_halves(row):
    """As a tree: the product of the last 2**k elements, with the largest possible k, times that of the others."""
    if len(row) <= 2:
        return floats.mul(*row) if len(row) == 2 else row[0]
    last = 2 ** ((len(row) - 1).bit_length() - 1)
    return floats.mul(by_halves(row[:-last]), by_halves(row[-last:]))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 7, 64, 97])
def test_neighbors_are_multiplied(count):
    x = RNG.uniform(0.5, 1.9, (3, count)).astype(np.float32)
    got = product_of(x)
    assert_same_bits(got, np.float32([by_halves(row) for row in x]))
    assert_same_bits(got, floats.reduce_prod(x))
    assert np.allclose(got, x.astype(np.float64).prod(-1), rtol=count * 2.0**-24)


@pytest.mark.parametrize("reverse", [False, True])
def test_running_products_are_the_products_so_far(reverse):
    x = RNG.uniform(-1.9, 1.9, (3, 45)).astype(np.float32)
    flipped = x[:, ::-1] if reverse else x
    so_far = np.float32([[by_halves(row[: i + 1]) for i in range(45)] for row in flipped])
    got = jitted(lambda x: lax.cumprod(x, axis=1, reverse=reverse))(x)
    assert_same_bits(got, so_far[:, ::-1] if reverse else so_far)


inf, nan, least = np.inf, np.nan, 2.0**-126


@pytest.mark.parametrize(("row", "expected"), [
    ((0, inf, 2), nan), ((inf, -2, 3), -inf), ((nan, 0, 1), nan), ((-0.0, 3, 2), -0.0), ((0, -0.0, 1), -0.0),
    ((1e30, 1e30, 1e-30, 1e-30), nan), ((2.0**99, 2.0**-99, 2.0**99, 2.0**-99), 1), ((3e38, 1, 2, 1), inf),
    ((least, 0.5, 2, 1), 0), ((-least, 0.5, 1, 2), -0.0), ((least, 1, 1, 1), least), ((1e-45, 1e30, 1e30, 1), 0),
])  # fmt: skip
def test_special_rows(row, expected):
    """Products in between overflow, and are zeros instead of subnormals."""
    x = np.float32(row)
    assert_same_bits(product_of(x), np.float32(expected))
    assert_same_bits(product_of(x), floats.reduce_prod(x))
    assert_same_bits(cumulated(x), floats.cumprod(x))


def test_products_of_nothing():
    nothing = np.zeros((3, 0), np.float32)
    assert_same_bits(product_of(nothing), np.ones(3, np.float32))
    assert_same_bits(jitted(lambda x: jnp.prod(x, 0))(nothing), np.ones(0, np.float32))
    assert_same_bits(jitted(lambda x: jnp.cumprod(x, 1))(nothing), nothing)


def test_several_axes_and_any_axis():
    x = RNG.uniform(0.5, 1.9, (4, 5, 6)).astype(np.float32)
    last = floats.reduce_prod(x)
    assert_same_bits(jitted(lambda x: x.prod(1))(x), floats.reduce_prod(np.moveaxis(x, 1, -1)))
    assert_same_bits(jitted(lambda x: x.prod((0, 2)))(x), floats.reduce_prod(last.T))
    assert_same_bits(
        dml.exact(lambda x: jnp.cumprod(x, 0))(x), np.moveaxis(floats.cumprod(np.moveaxis(x, 0, -1)), -1, 0)
    )


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_products_of_half_precision_round_once_more(dtype):
    x = RNG.uniform(0.8, 1.2, (4, 30)).astype(dtype)
    wide = floats.reduce_prod(x.astype(np.float32))
    assert_same_bits(jitted(lambda x: lax.reduce_prod(x, (1,)))(x), wide.astype(dtype))


def test_an_axis_may_be_sharded_on_explicit_mesh_axes():
    """JAX cannot slice it. The bits are compared in on_eight_devices.py, where XLA chooses the sharding."""
    mesh = jax.sharding.AbstractMesh((2,), ("x",), axis_types=(AxisType.Explicit,))
    shape = jax.ShapeDtypeStruct((6,), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("x")))
    with jax.sharding.use_abstract_mesh(mesh):
        assert jax.eval_shape(dml.exact(jnp.prod), shape).shape == ()


@pytest.mark.parametrize("function", [jnp.prod, jnp.cumprod])
def test_a_product_of_unknown_length_is_an_error(function):
    (n,) = jax.export.symbolic_shape("n")
    exact = jitted(lambda x: function(x, axis=1))
    with pytest.raises(ExactError, match=r"a product of n factors .*a number, not a symbol, as the size of a mult"):
        jax.export.export(exact)(jax.ShapeDtypeStruct((8, n), jnp.float32))


def test_a_product_may_have_any_number_of_factors():
    shape = jax.ShapeDtypeStruct((2**26 + 1,), jnp.float32)
    assert jax.eval_shape(dml.exact(jnp.prod), shape).shape == ()
