"""The error for a model that cannot be written says each reason once, with a remedy that works."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from _onnx.saved import inputs_of, quantized, run, saved
from helpers.compare import assert_same_bits
from helpers.marks import HAS_NATIVE
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


OF_OPERATORS = "it is a call of a jaxdml operator; compute in floats there, and let ptq.quantize choose the integers"


@pytest.mark.rare
def test_calls_of_operators_have_their_names(tmp_path):
    def apply(w, x):
        def step(x, _):
            integers, scale, zero_point = dml.dynamic_quantize_linear(x)
            with jax.named_scope("head"):
                return dml.dequantize(integers, scale, zero_point), None

        return lax.scan(step, x @ w, None, 2)[0]

    with pytest.raises(ModelError) as caught:
        dml.onnx.save(made(apply), tmp_path / "model.onnx")
    assert caught.value.problems == tuple(
        f"layers '{layer}/0' and '{layer}/1' ({layer.split('/')[-1]}): {OF_OPERATORS}"
        for layer in ("dynamic_quantize_linear", "head/dequantize")
    )


@pytest.mark.rare
@pytest.mark.skipif(not HAS_NATIVE, reason="on XLA's kernels, it is several equations")
def test_products_by_blocks_have_their_name(tmp_path):
    blocks = np.ones((8, 8), jnp.int4), np.ones((8, 1), np.float32)
    with pytest.raises(ModelError) as caught:
        dml.onnx.save(made(lambda w, x: dml.matrix_multiply_blocks(x @ w, *blocks)), tmp_path / "model.onnx")
    word = "matrix_multiply_blocks"
    assert caught.value.problems == (f"layer '{word}' ({word}): {OF_OPERATORS}",)


@pytest.mark.rare
def test_functions_that_call_a_loaded_file(tmp_path):
    model, x = quantized("CNN"), inputs_of("CNN")
    saved(model, tmp_path / "model.onnx")
    loaded = dml.onnx.load(tmp_path / "model.onnx")
    again = made(lambda w, x: loaded.apply(loaded.params, x)["output"][:, :8] @ w, x=x)
    with pytest.raises(ModelError) as caught:
        dml.onnx.save(again, tmp_path / "model.onnx")
    words = {re.search(r"\((\w+)\): ", each)[1] for each in caught.value.problems if OF_OPERATORS in each}
    assert {"element_wise_quantize_linear", "quantized_linear_convolution"} <= words
    assert not {"add", "mul", "cond", "reshape", "select_n"} & words
    assert not any("the primitive jaxdml_" in each for each in caught.value.problems)


def test_functions_that_call_jaxdml(tmp_path):
    with pytest.raises(ModelError, match=r"'quantize' \(quantize\): it is a call of a jaxdml operator; compute in"):
        dml.onnx.save(made(lambda w, x: dml.quantize(x @ w, 0.1, np.uint8(0))), tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=r"does; if the function calls jaxdml\.exact, leave that out, and quantize"):
        dml.onnx.save(made(lambda w, x: dml.exact(jax.nn.softmax)(x @ w)), tmp_path / "model.onnx")
    saved(made(lambda w, x: jax.nn.softmax(x @ w), floats="exact"), tmp_path / "model.onnx")


TOKENS = np.random.default_rng(2).standard_normal((2, 6, 8)).astype(np.float32)


def test_positions_sliced_by_an_open_length(tmp_path):
    positions = np.random.default_rng(3).standard_normal((32, 8)).astype(np.float32)

    def added(take):
        return made(lambda p, x: (x + take(p[1], x.shape[1])[None]) @ p[0], (W, positions), TOKENS)

    text = r"pos\[:t\] by a symbolic t may have .*: write jnp.take\(pos, jnp.arange\(t\), axis=0\)"
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
