"""XLA rewrites products, quotients and conversions of neighboring operations; the rules keep them apart.

Each function runs eagerly, one operation at a time, and in one compiled program; the oracle is in NumPy.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from helpers.compare import assert_same_bits, assert_same_values
from jaxdml.reference import floats

RNG = np.random.default_rng(0)
SPECIAL = np.float32([np.inf, -np.inf, np.nan, 0, -0.0, 1e-39, -1e-39, 1.2e-38, 3e38, -3e38, 1e-20, -1, 0.5, 2])
X, Z = (np.concatenate([RNG.normal(size=50).astype(np.float32), each]) for each in (SPECIAL, SPECIAL[::-1]))
Y, M = np.abs(Z), X > 0


def products(x, y):
    return floats.mul(floats.flushed(x), floats.flushed(y))


def quotients(x, y):
    with np.errstate(all="ignore"):
        return floats.flushed(floats.flushed(x) / floats.flushed(y))


NUMBERS = M.astype(np.float32)
CASES = {
    "an inverse root, divided": (lambda x, y, z, m: lax.rsqrt(y) / z, quotients(floats.rsqrt(Y), Z)),
    "an inverse root, by itself": (lambda x, y, z, m: lax.rsqrt(y) / y, quotients(floats.rsqrt(Y), Y)),
    "two quotients": (lambda x, y, z, m: x / y / z, quotients(quotients(X, Y), Z)),
    "times a mask": (lambda x, y, z, m: x * m, products(X, NUMBERS)),
    "a mask times a number": (lambda x, y, z, m: m * np.float32(-0.1), products(NUMBERS, np.float32(-0.1))),
    "a mask times infinity": (lambda x, y, z, m: m * -jnp.inf, products(NUMBERS, np.float32(-np.inf))),
    "times a comparison": (lambda x, y, z, m: (x == z) * y, products((X == Z).astype(np.float32), Y)),
    "a mask in bfloat16": (lambda x, y, z, m: m.astype(jnp.bfloat16).astype(jnp.float32) * z, products(NUMBERS, Z)),
    "divided by a mask": (lambda x, y, z, m: z / m, quotients(Z, NUMBERS)),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_bits(name):
    function, expected = CASES[name]
    exact = dml.exact(function)
    with jax.numpy_dtype_promotion("standard"), dml.use_kernels("xla"):
        results = exact(X, Y, Z, M), jax.jit(exact)(X, Y, Z, M), jax.jit(lambda: exact(X, Y, Z, M))()
    for received in results:
        assert_same_bits(received, expected)


def test_quotients_that_rounding_makes_normal():
    """XLA folds constants without flushing subnormals, and rounds the first two up to the smallest normal number."""
    y = np.float32([2, -(2.0**26), 2.0**26])
    x = np.float32([2.0**-125, 2.0**-100, 2.0**-100]) * (1 - np.float32([2.0**-24, 2.0**-24, 0]))
    expected = np.float32([0, -0.0, 2.0**-126])
    assert_same_bits(jax.jit(lambda: dml.exact(lax.div)(jnp.asarray(x), jnp.asarray(y)))(), expected)
    assert_same_bits(dml.exact(lax.div)(x, y), expected)
    assert_same_bits(floats.div(x, y), expected)


@pytest.mark.rare
def test_an_inverse_error_that_is_subnormal_is_zero_in_a_constant():
    """erf_inv(x) is 0.89 x near 0. XLA does not flush subnormals when it folds constants."""
    x = np.float32([1.1754944e-38, -1.3e-38, 1.33e-38])
    received = jax.jit(lambda: dml.exact(lax.erf_inv)(jnp.asarray(x)))()
    assert_same_bits(received[:2], np.float32([0, -0.0]))
    assert_same_bits(received, floats.erf_inv(x))


@pytest.mark.rare
def test_gradients_of_a_norm_do_not_depend_on_the_batch():
    """Their rule for rsqrt is rsqrt(x) / x."""
    x = RNG.normal(size=(8, 32)).astype(np.float32)
    norm = lambda x: x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)  # noqa: E731
    gradient = jax.jit(dml.exact(jax.grad(lambda x: jnp.sin(norm(x)).sum())))
    assert_same_bits(gradient(x), np.concatenate([gradient(row[None]) for row in x]))


@pytest.mark.rare
def test_gradients_of_conditions():
    """JAX fills what only the other branch computes with lax.empty."""
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    f = lambda x, flag: lax.cond(flag, jnp.exp, lambda x: x * x, x).sum()  # noqa: E731
    exact = dml.exact(jax.grad(f))
    assert_same_bits(exact(x, True), floats.exp(x))
    assert_same_bits(exact(x, False), x + x)


@pytest.mark.rare
def test_functions_that_jax_lowers_late():
    """jnp.searchsorted and jnp.nonzero are calls of primitives that JAX lowers late."""
    table = np.linspace(-2, 2, 9, dtype=np.float32)
    x = np.float32([-3, -2, -0.3, 0.5, 1.9, 2, 7])
    find = dml.exact(lambda x: jnp.searchsorted(table, x))
    assert_same_values(find(x), np.searchsorted(table, x))
    assert_same_values(jax.jit(find)(x), np.searchsorted(table, x))
    upper = dml.exact(lambda x: jnp.tanh(x)[jnp.triu_indices(3, 1)])
    matrix = RNG.normal(size=(3, 3)).astype(np.float32)
    assert_same_bits(upper(matrix), floats.tanh(matrix[np.triu_indices(3, 1)]))
