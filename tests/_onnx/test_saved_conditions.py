"""Functions with conditions between integers: from the file, onnxruntime computes the integers of the model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from _onnx.saved import run, saved
from helpers.compare import assert_same_bits

RNG = np.random.default_rng(0)
P, X = RNG.normal(size=(16, 16)).astype(np.float32) / 4, RNG.normal(size=(8, 16)).astype(np.float32)
FUNCTIONS = {
    "elu": jax.nn.elu, "selu": jax.nn.selu, "hard_tanh": jax.nn.hard_tanh, "sparse_plus": jax.nn.sparse_plus,
    "nan_to_num": jnp.nan_to_num, "heaviside": lambda y: jnp.heaviside(y, jnp.full_like(y, 0.5)),
    "a threshold": lambda y: jnp.where(y > 0.2, y, 0.0),
}  # fmt: skip


def all_of_them(p, x):
    return {name: function(x @ p) @ p for name, function in FUNCTIONS.items()}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tables", ["float", "gather"])
def test_selects_beside_numbers(tables, tmp_path):
    model = dml.ptq.quantize(all_of_them, P, [X], numerics="onnxruntime", progress=False)
    saved(model, tmp_path / "model.onnx", weights="uint8", tables=tables)
    received, expected = run(tmp_path / "model.onnx", X), model.apply(model.params, X)
    for name, result in zip(sorted(FUNCTIONS), received.values(), strict=True):
        assert_same_bits(result, expected[name], name)
