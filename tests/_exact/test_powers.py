"""Floats to the power of integer arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from helpers.compare import assert_same_bits
from jaxdml.reference import floats

BASES = np.float32([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 1.5, -1.5, 2, -2, -0.7, 1e-45, -1e-40, -3.4e38, 0.9999999])
EXPONENTS = [*range(-5, 9), 2**24 - 1, 2**24, 2**24 + 1, -(2**24) - 1, 2**31 - 1, -(2**31)]


@pytest.mark.rare
def test_signs_of_huge_powers():
    """float32 has no odd numbers above 2**24."""
    x, y = np.float32([-1, -1, -1.5, -0.0, -np.inf]), np.int32([2**24 + 1, 2**24 + 2, 2**24 + 1, -3, 2**31 - 1])
    right = np.float32([-1, 1, -np.inf, -np.inf, -np.inf])
    assert_same_bits(jax.jit(dml.exact(lax.pow))(x, y), right)
    assert_same_bits(floats.power(x, y), right)


@pytest.mark.rare
def test_integer_exponents_of_every_type():
    x, y = (np.asarray(each) for each in np.meshgrid(BASES, np.array(EXPONENTS, np.int64)))
    with jax.enable_x64(True):
        for dtype in (np.int64, np.int32, np.uint32, np.int8, np.uint8):
            of_type = y.astype(dtype)
            right = floats.power(x, of_type)
            for f in (dml.exact(lax.pow), jax.jit(dml.exact(lax.pow))):
                assert_same_bits(f(x, of_type), right, dtype)
            assert_same_bits(jax.jit(lambda y=of_type: dml.exact(lax.pow)(x, y))(), right, dtype)
        few = np.abs(y) <= 8
        assert_same_bits(floats.power(x, y)[few], floats.power(x, y.astype(np.float32))[few])


@pytest.mark.rare
def test_powers_in_halves_loops_and_models():
    x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    half, n = jnp.asarray(x, jnp.bfloat16), np.tile(np.arange(16, dtype=np.int32), (8, 1))
    wide = floats.power(np.asarray(half, np.float32), n)
    assert_same_bits(dml.exact(lax.pow)(half, n), wide.astype(jnp.bfloat16))
    looped = dml.exact(lambda x: lax.fori_loop(0, 3, lambda i, y: y * lax.pow(x, i), x))(x)
    assert_same_bits(looped, floats.mul(floats.mul(x, x), floats.power(x, np.full_like(x, 2))))

    def network(w, x):
        return lax.pow(jax.nn.softmax(x @ w), n[: len(x)])

    w = np.eye(16, dtype=np.float32)
    model = dml.ptq.quantize(network, w, [x], products="dynamic", floats="exact", progress=False)
    probabilities = dml.ptq.quantize(lambda w, x: jax.nn.softmax(x @ w), w, [x], products="dynamic", floats="exact",
                                     progress=False)  # fmt: skip
    right = floats.power(np.asarray(probabilities.apply(probabilities.params, x)), n)
    assert model.by_xla == ()
    assert_same_bits(model.apply(model.params, x), right)
