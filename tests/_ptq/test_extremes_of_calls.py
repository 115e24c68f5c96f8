"""Inputs and settings at the limits: large and small values, no rows, and JAX's switch for debugging."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from _ptq.quantized import decibels, in_floats
from helpers.compare import assert_same_bits

RNG = np.random.default_rng(0)
P = {"a": RNG.normal(size=(32, 32)).astype(np.float32) / 6, "b": RNG.normal(size=(32, 32)).astype(np.float32) / 6}
X = RNG.normal(size=(64, 32)).astype(np.float32)


def two_layers(p, x):
    return jax.nn.relu(x @ p["a"]) @ p["b"]


@pytest.mark.rare
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e-22, 1e22])
def test_squares_that_float32_does_not_hold(scale):
    """The squares of the values vanish or overflow, in ratios and in equalization."""
    x = X * np.float32(scale)
    model = dml.ptq.quantize(two_layers, P, [x], progress=False)
    ratio = decibels(np.asarray(model.apply(model.params, x)) / scale, np.asarray(in_floats(two_layers, P, x)) / scale)
    assert ratio > 30
    assert model.sqnr(P, x).outputs[0] == pytest.approx(ratio, abs=0.1)


def embedded(p, tokens):
    return p["a"][tokens] @ p["b"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("products", ["static", "dynamic"])
def test_batches_of_no_rows_have_no_results(products):
    """jax.numpy replaces a gather by no indices, and dynamic quantization of no values raises an error of its own."""
    tokens = np.arange(6, dtype=np.int32)
    model = dml.ptq.quantize(embedded, P, [tokens], products=products, progress=False)
    result = model.apply(model.params, tokens[:0])
    assert isinstance(result, jax.Array)
    assert (result.shape, result.dtype) == ((0, 32), np.float32)


def test_products_of_parameters_are_counted():
    """Such as the biases of positions, which are a network's results for all pairs of positions."""
    apply = lambda p, x: jax.nn.sigmoid(x @ p["a"] + p["a"] @ p["b"])  # noqa: E731
    text = str(dml.ptq.quantize(apply, P, [X[:32]], progress=False))
    assert "\n1 of 2 convolutions and products" in text
    assert "it depends only on parameters: compute it once, and pass the result in params" in text


def stepped(p, x):
    y = jax.nn.elu(jnp.pad(x, ((0, 0), (0, 0))) @ p["a"])
    return lax.fori_loop(0, 2, lambda i, h: jnp.clip(h @ p["c"][i], -1, 1), y)


@pytest.mark.rare
def test_disable_jit_changes_nothing(tmp_path):
    params = P | {"c": np.stack([P["a"], P["b"]])}
    model = dml.ptq.quantize(stepped, params, [X], progress=False)
    dml.ptq.save(tmp_path / "model.npz", model)
    expected, ratios = model.apply(model.params, X), model.sqnr(params, X).outputs
    with jax.disable_jit():
        assert_same_bits(model.apply(model.params, X), expected)
        assert model.sqnr(params, X).outputs == pytest.approx(ratios)
        loaded = dml.ptq.load(tmp_path / "model.npz", stepped)
        assert_same_bits(loaded.apply(loaded.params, X), expected)
