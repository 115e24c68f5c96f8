"""The logistic function and tanh of ONNX Runtime's kernels, on native kernels and on XLA's."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from helpers.compare import assert_same_bits
from helpers.every_float import every
from helpers.native_calls import native_calls, needs_native
from jaxdml._quantized.onnxruntime import sigmoids

FUNCTIONS = {"logistic": sigmoids.logistic, "tanh": sigmoids.tanh}


def on_xla(name):
    return lambda x: inspect.unwrap(sigmoids._computed)(x, code=f"onnxruntime_{name}", program=None)


@needs_native
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("step", [2**12 + 1, pytest.param(127, marks=pytest.mark.rare)])
def test_native_kernels_have_the_bits_of_xla(name, step):
    for x in every(step, 2**20):
        assert_same_bits(jax.jit(FUNCTIONS[name])(x), jax.jit(on_xla(name))(x), name)


@needs_native
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_compiled_call_is_one_native_call(name):
    assert native_calls(FUNCTIONS[name], np.ones((2, 3, 4), np.float32)) == ["rows"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_empty_arrays_and_unknown_sizes(name):
    assert FUNCTIONS[name](jnp.zeros((0, 3), jnp.float32)).shape == (0, 3)
    (size,) = export.symbolic_shape("n")
    exported = export.export(jax.jit(FUNCTIONS[name]))(jax.ShapeDtypeStruct((size,), jnp.float32))
    x = np.linspace(-20, 20, 9, dtype=np.float32)
    assert_same_bits(exported.call(x), FUNCTIONS[name](x))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_at_the_ends(name):
    x = np.float32([-np.inf, -1e-45, -0.0, 0.0, 1e-45, np.inf, np.nan])
    y = np.asarray(jax.jit(FUNCTIONS[name])(x))
    below, above = {"logistic": (0, 1), "tanh": (-1, 1)}[name]
    np.testing.assert_allclose(y[[0, 5]], [below, above], atol=2e-7)
    assert_same_bits(y[1:5], np.float32([0.5] * 4) if name == "logistic" else np.float32([-0.0, -0.0, 0.0, 0.0]))
    assert np.isnan(y[6])
