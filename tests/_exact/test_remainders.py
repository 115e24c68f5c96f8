"""Remainders: those of C's fmod, with subnormal numbers as zeros."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxdml as dml
from helpers.compare import assert_same_bits
from jaxdml.reference import floats

RNG = np.random.default_rng(0)
remainder = jax.jit(dml.exact(lax.rem))


def test_floats_of_all_sizes():
    x, y = RNG.integers(0, 2**32, (2, 100_000), np.uint32).view(np.float32)
    assert_same_bits(remainder(x, y), floats.remainder(x, y))


def test_small_numbers():
    """Many remainders are subnormal."""
    x, y = (RNG.uniform(1, 9, (2, 10_000)) * 2.0**-126).astype(np.float32)
    expected = floats.remainder(x, y)
    assert 1000 < (expected == 0).sum() < 9000
    assert_same_bits(remainder(x, -y), expected)
    assert_same_bits(remainder(-x, y), -expected)


def test_special_values():
    inf, nan = np.inf, np.nan
    x = np.float32([inf, -inf, nan, 1, 1, 0, -0.0, 5, -6, 3, -3, 0, 1e-45, 1])
    y = np.float32([2, 2, 2, nan, 0, 3, 3, inf, -inf, 3, 3, 0, 1, 1e-45])
    right = np.float32([nan, nan, nan, nan, nan, 0, -0.0, 5, -6, 0, -0.0, nan, 0, nan])
    assert_same_bits(remainder(x, y), right)


def test_functions_of_numpy():
    x = RNG.standard_normal(1000).astype(np.float32) * 100
    got = jax.jit(dml.exact(lambda x: (jnp.mod(x, 7), jnp.floor_divide(x, 7), jnp.fmod(x, 7))))(x)
    for each, function in zip(got, (np.mod, np.floor_divide, np.fmod), strict=True):
        assert_same_bits(each, function(x, np.float32(7)))
    half = x.astype(jnp.bfloat16)
    expected = floats.remainder(half.astype(np.float32), np.float32(7)).astype(jnp.bfloat16)
    assert_same_bits(dml.exact(jnp.fmod)(half, jnp.bfloat16(7)), expected)
