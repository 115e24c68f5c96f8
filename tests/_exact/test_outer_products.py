"""A dot_general that contracts no axis multiplies, and adds nothing: `jaxdml.exact` computes it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely
from jaxdml.reference import floats

SMALLEST = 2.0**-126
SIZES = {"i": 3, "j": 4, "k": 2, "b": 5}
PRODUCTS = ("ib,jkb->bijk", "bi,bj->ijb", "ij,ij->ij", "i,j->ij", ",i->i")


def operand(rng, term, dtype, scale):
    """Normal numbers of both signs, of at least a third of the scale."""
    shape = [SIZES[each] for each in term]
    return jnp.asarray(rng.choice([-1, 1], shape) * rng.uniform(1 / 3, 3, shape) * scale, dtype)


@pytest.mark.parametrize("subscripts", rest_rarely(PRODUCTS, 2))
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_each_product_rounds_once(subscripts, dtype):
    rng = np.random.default_rng(0)
    left, right = subscripts.partition("->")[0].split(",")
    x, y = operand(rng, left, dtype, 8 * SMALLEST), operand(rng, right, dtype, 1 / 8)

    def f(x, y):
        return jnp.einsum(subscripts, x, y, preferred_element_type=jnp.float32)

    wide = np.einsum(subscripts, *(np.asarray(each, np.float64) for each in (x, y)))
    assert (abs(wide) < SMALLEST).any()
    assert (abs(wide) > SMALLEST).any()
    expected = np.where(abs(wide) < SMALLEST, np.copysign(0.0, wide), wide).astype(np.float32)
    assert_same_bits(jax.jit(dml.exact(f))(x, y), expected)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_polynomials_are_computed_by_horners_rule(dtype):
    rng = np.random.default_rng(0)
    x, coefficients = (jnp.asarray(rng.normal(size=size), dtype) for size in (200, 12))
    x = x.at[:3].set(jnp.asarray([np.nan, np.inf, 0], dtype))
    got = jax.jit(dml.exact(lambda x, c: jnp.polyval(c[::-1], x, unroll=16)))(x, coefficients)
    expected = floats.polynomial(np.asarray(x, np.float32), *np.asarray(coefficients, np.float32))
    if dtype == jnp.float32:
        assert_same_bits(got, expected)
    else:
        assert_same_bits(got, dml.exact(lambda x: x.astype(dtype))(expected))
