"""The report of a saved and loaded file is that of the quantized function; `reports.py` says what is compared."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from _onnx import reports
from _onnx.saved import NETWORKS, inputs_of, quantized, saved
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely

PRODUCTS = {
    "static": {"numerics": "onnxruntime"}, "DirectML": {}, "dynamic": {"products": "dynamic"},
    "4 bits": {"weights": jnp.int4, "block_size": 16},
}  # fmt: skip
LAYERS = {
    "CNN": {"stem", "depthwise", "mix", "gate", "last", "head"}, "MLP": {"first", "second", "third", "last"},
    "block": {"qkv", "dot_general_2", "dot_general_3", "out", "up", "down"},
    "scan": {"layers/0", "layers/1", "layers/2", "cell/0", "cell/1", "cell/2", "head"},
}  # fmt: skip


@pytest.mark.parametrize("form", rest_rarely(["qdq", "qoperator"], 1))
@pytest.mark.parametrize("products", rest_rarely(PRODUCTS, 1))
@pytest.mark.parametrize("name", rest_rarely(["scan", *(name for name in NETWORKS if name != "scan")], 1))
def test_the_reports_say_the_same(name, products, form, tmp_path):
    model, unread = quantized(name, **PRODUCTS[products]), reports.UNREAD.get(name, ())
    for tables in ("float", "gather"):
        saved(model, tmp_path / "model.onnx", form, tables=tables)
        loaded = dml.onnx.load(tmp_path / "model.onnx", numerics=model.numerics)
        expected = reports.of_function(model, form=form, tables=tables, unread=unread)
        assert reports.of_file(loaded, model) == expected
        assert not reports.moved_as_floats(model, loaded)
        assert LAYERS[name] <= {row.layer for row in expected if row.on == "integers"}


@pytest.mark.rare
def test_a_file_has_one_answer_if_its_function_has_and_its_tables_are_looked_up(tmp_path):
    model = quantized("CNN")
    for tables, by_xla in (("gather", ()), ("float", ("div_2/Div",))):
        saved(model, tmp_path / "model.onnx", tables=tables)
        assert dml.onnx.load(tmp_path / "model.onnx", floats="xla").by_xla == by_xla
    assert model.by_xla == ()


@pytest.mark.rare
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("name", ["CNN", "MLP"])
def test_a_loaded_file_equals_apply_if_the_model_promises_one_answer(name, form, tmp_path):
    model, x = quantized(name), inputs_of(name, 64)
    assert model.by_xla == ()
    saved(model, tmp_path / "model.onnx", form, tables="gather")
    for floats in ("xla", "exact"):
        loaded = dml.onnx.load(tmp_path / "model.onnx", floats=floats)
        received = loaded.apply(loaded.params, x)["output"]
        assert_same_bits(np.asarray(received), np.asarray(model.apply(model.params, x)))


def softmax(p, x):
    return jax.nn.softmax(x @ p["first"]["w"])


@pytest.mark.rare
def test_exact_floats_have_other_rules_in_a_file(tmp_path):
    x = inputs_of("MLP", 64)
    model = dml.ptq.quantize(softmax, NETWORKS["MLP"][1], [x], floats="exact", progress=False)
    saved(model, tmp_path / "model.onnx", tables="gather")
    loaded = dml.onnx.load(tmp_path / "model.onnx", floats="exact")
    assert model.by_xla == loaded.by_xla == ()
    differ = loaded.apply(loaded.params, x)["output"] != model.apply(model.params, x)
    assert differ.any()
