"""The error for a model that cannot be written says each reason once, with a remedy that works."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from _onnx.saved import run, saved
from helpers.compare import assert_same_bits
from jaxdml.errors import ModelError, PtqError

W = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((6, 8)).astype(np.float32)


def made(apply, params=W, x=X, **options):
    return dml.ptq.quantize(apply, params, [x], progress=False, **options)


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


TOKENS = np.random.default_rng(2).standard_normal((2, 6, 8)).astype(np.float32)


def test_positions_sliced_by_an_open_length(tmp_path):
    positions = np.random.default_rng(3).standard_normal((32, 8)).astype(np.float32)

    def added(take):
        return made(lambda p, x: (x + take(p[1], x.shape[1])[None]) @ p[0], (W, positions), TOKENS)

    text = r"pos\[:t\] by an open size t may have .*: write jnp.take\(pos, jnp.arange\(t\), axis=0\)"
    with pytest.raises(PtqError, match=text):
        dml.onnx.save(added(lambda pos, t: pos[:t]), tmp_path / "model.onnx", shapes="batch, t, 8")
    model = added(lambda pos, t: jnp.take(pos, jnp.arange(t), axis=0))
    saved(model, tmp_path / "model.onnx", shapes="batch, t, 8")
    assert_same_bits(run(tmp_path / "model.onnx", TOKENS[:, :5])["output"], model.apply(model.params, TOKENS[:, :5]))


SEVERAL_PARTS = {
    "it gathers several parts at once; slice one axis at a time: x[:, 1:][:, :, ::2]": (
        lambda x: x[:, 1:, ::2], lambda x: x[:, 1:][:, :, ::2],
    ),
    "it updates several parts at once; update one axis at a time: x.at[:, 1:3].set(x[:, 1:3].at[:, :, ::2].add(y))": (
        lambda x: x.at[:, 1:3, ::2].add(1), lambda x: x.at[:, 1:3].set(x[:, 1:3].at[:, :, ::2].add(1)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", SEVERAL_PARTS)
def test_steps_along_one_axis_of_a_part(text, tmp_path):
    wrong, right = (made(lambda w, x, f=f: f(x @ w), W, TOKENS) for f in SEVERAL_PARTS[text])
    with pytest.raises(ModelError, match=re.escape(text)):
        dml.onnx.save(wrong, tmp_path / "model.onnx")
    saved(right, tmp_path / "model.onnx", weights="uint8")
    assert_same_bits(run(tmp_path / "model.onnx", TOKENS)["output"], wrong.apply(wrong.params, TOKENS))
