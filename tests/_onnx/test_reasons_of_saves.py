"""The error for a model that cannot be written says each reason once, with a remedy that works."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from _onnx.saved import saved
from jaxdml.errors import ModelError

W = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((6, 8)).astype(np.float32)


def made(apply, **options):
    return dml.ptq.quantize(apply, W, [X], progress=False, **options)


def test_layers_that_one_reason_concerns_share_a_line(tmp_path):
    def apply(w, x):
        results = []
        for place, name in enumerate("abcde"):
            with jax.named_scope(name):
                results.append(lax.lgamma((x + place) @ w))
        return results

    with pytest.raises(ModelError) as caught:
        dml.onnx.save(made(apply), tmp_path / "model.onnx")
    (problem,) = caught.value.problems
    assert problem.startswith("layers 'a', 'b', 'c' and 2 more (lgamma): the primitive lgamma has no counterpart")


def test_functions_that_call_jaxdml(tmp_path):
    def of_operators(w, x):
        integers, scale, zero_point = dml.dynamic_quantize_linear(x)
        return (integers.astype(jnp.float32) - zero_point.astype(jnp.float32)) * scale @ w

    with pytest.raises(ModelError, match=r"it is part of a call of a jaxdml operator; compute in floats there, and"):
        dml.onnx.save(made(of_operators), tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=r"does; if the function calls jaxdml\.exact, leave that out, and quantize"):
        dml.onnx.save(made(lambda w, x: dml.exact(jax.nn.softmax)(x @ w)), tmp_path / "model.onnx")
    saved(made(lambda w, x: jax.nn.softmax(x @ w), floats="exact"), tmp_path / "model.onnx")
