"""Files of jaxdml.onnx.save: the bits that onnxruntime and jaxdml.onnx.load compute from them, and their names."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest

import jaxdml as dml
from _onnx.saved import EXACT, LEVELS, has_int8_products, inputs_of, kinds, quantized, run, saved, session
from _onnx.test_saved_for_directml import not_registered
from helpers.compare import assert_same_bits
from helpers.marks import CAN_HIDE, rest_rarely
from helpers.one_node import on_x64_alone
from jaxdml.errors import DescError

# Models whose integers onnxruntime reproduces, with which options, and at which levels.
WAYS = {
    "onnxruntime, on integers": ("qoperator", "onnxruntime", {}, LEVELS),
    "directml, on integers": ("qoperator", "directml", EXACT, LEVELS),
    "onnxruntime, fused": ("qdq", "onnxruntime", {}, ("EXTENDED", "ENABLE")),
}


def applied(model, x):
    return np.asarray(jax.jit(model.apply)(model.params, x))


@pytest.mark.parametrize("way", rest_rarely(WAYS, 1))
@pytest.mark.parametrize("name", rest_rarely(["scan", "CNN"], 1))
def test_the_bits_are_those_of_apply(name, way, tmp_path):
    form, numerics, entries, levels = WAYS[way]
    model, x = quantized(name, numerics=numerics), inputs_of(name)
    assert not_registered(saved(model, tmp_path / "model.onnx", form, weights="uint8")) == []
    expected = applied(model, x)
    for level in levels:
        (received,) = run(tmp_path / "model.onnx", x, level=level, **entries).values()
        assert_same_bits(received, expected)
    loaded = dml.onnx.load(tmp_path / "model.onnx", numerics=numerics)
    assert_same_bits(loaded.apply(loaded.params, x)["output"], expected)


FUSED = {"EXTENDED", "ENABLE"}  # levels at which onnxruntime fuses operators across QuantizeLinear


@pytest.mark.rare
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_int8_weights_are_exact_where_onnxruntime_is_told_so(form, tmp_path):
    """Where they saturate, an optimization of the level extended makes them uint8; no lower level does."""
    model, x = quantized("CNN", numerics="onnxruntime"), inputs_of("CNN")
    saved(model, tmp_path / "model.onnx", form)
    expected = applied(model, x)
    for precise, exact in (("1", FUSED), ("0", set())):
        options = {"session.x64quantprecision": precise}
        same = {
            level
            for level in LEVELS
            if np.array_equal(*run(tmp_path / "model.onnx", x, level=level, **options).values(), expected)
        }
        exact = {*LEVELS} if has_int8_products() else exact
        levels = FUSED if form == "qdq" else {*LEVELS}
        assert same & levels == exact & levels


@pytest.mark.rare
@on_x64_alone
def test_int8_values_of_integer_operators_are_not_loaded_where_onnxruntime_is_told_so(tmp_path):
    """docs/onnx_saving.md recommends the form "qdq" for them, whose bits are then those of apply."""
    model, x = quantized("CNN", numerics="onnxruntime", activations=jnp.int8), inputs_of("CNN")
    saved(model, tmp_path / "model.onnx", "qoperator")
    with pytest.raises(Exception, match=r"Failed to find kernel for .*QLinearConv"):
        session(tmp_path / "model.onnx", **{"session.x64quantprecision": "1"})
    saved(model, tmp_path / "model.onnx")
    (received,) = run(tmp_path / "model.onnx", x, **{"session.x64quantprecision": "1"}).values()
    assert_same_bits(received, applied(model, x))


@pytest.mark.rare
@on_x64_alone
def test_steps_that_share_int8_weights_are_not_loaded_where_onnxruntime_is_told_so(tmp_path):
    """docs/onnx_saving.md recommends uint8 weights for them, with which the scan above has the bits of apply."""
    saved(quantized("scan", numerics="onnxruntime"), tmp_path / "model.onnx")
    with pytest.raises(Exception, match="Attempt to replace the existing tensor"):
        session(tmp_path / "model.onnx", **{"session.x64quantprecision": "1"})


@pytest.mark.rare
def test_processors_without_int8_products():
    """The tests of bits again, with AVX-512 hidden from onnxruntime if the processor has it."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "JAXDML_TESTS_"))}
    through = ["-m", "benchmarks.without_avx512"] if CAN_HIDE else []
    tests = ["-m", "rare or not rare", "-k", "the_bits_are or told_so", str(Path(__file__))]
    command = [sys.executable, *through, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", *tests]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.rare
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_norms_softmax_and_gelu_are_operators_that_onnxruntime_knows(form, tmp_path):
    proto = saved(quantized("block"), tmp_path / "model.onnx", form, weights="uint8")
    assert {"LayerNormalization", "Softmax", "Erf"} <= kinds(proto)
    assert not {"Exp", "ReduceMean", "Sqrt"} & kinds(proto)


@pytest.mark.rare
def test_weights_of_4_bits(tmp_path):
    model, x = quantized("MLP", weights=jnp.int4, block_size=16), inputs_of("MLP")
    proto = saved(model, tmp_path / "model.onnx")
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    assert tensors["first.weight"].data_type == onnx.TensorProto.INT4
    assert tensors["first.weight_scale"].dims == [2, 32]
    assert [entry.version for entry in proto.opset_import] == [21]
    assert not_registered(proto) == []
    loaded = dml.onnx.load(tmp_path / "model.onnx")
    np.testing.assert_allclose(loaded.apply(loaded.params, x)["output"], applied(model, x), rtol=1e-6, atol=1e-6)
    assert loaded.operators.count("MatMulNBits") == 4
    # onnxruntime computes it by blocks, too, and rounds the floats to 8 bits unless it is told not to.
    floats = {"session.qdq_matmulnbits_accuracy_level": "0"}
    (received,) = run(tmp_path / "model.onnx", x, **floats).values()
    np.testing.assert_allclose(received, applied(model, x), rtol=1e-5, atol=1e-5)
    session(tmp_path / "model.onnx", optimized=tmp_path / "optimized.onnx")
    assert "MatMulNBits" in kinds(onnx.load(tmp_path / "optimized.onnx"))
    with pytest.raises(DescError, match="opset is 20, and weights in blocks need opset 21: leave out the arg"):
        dml.onnx.save(model, tmp_path / "model.onnx", opset=20)
