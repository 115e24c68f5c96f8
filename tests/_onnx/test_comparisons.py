"""The results and pages of `jaxdml.onnx.compare`, for files and for quantized functions; and wrong calls of it."""

import dataclasses
import functools
import re
import sys
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import TensorProto

import jaxdml as dml
from _onnx.saved import NETWORKS, inputs_of, run
from _onnx.saved import quantized as quantized_network
from _onnx.test_saved_reports import LAYERS
from helpers.hostile_models import model, node
from helpers.marks import rest_rarely
from helpers.one_node import on_x64_alone
from helpers.qdq_graphs import MODELS
from jaxdml import ptq
from jaxdml.errors import ArgumentTypeError, ModelError
from jaxdml.onnx import Comparison, Difference, NodeDifference, Tensor
from jaxdml.onnx._compare.compare import ABSENT, EQUAL, UNREAD
from jaxdml.onnx._compare.inputs import random_inputs as random_inputs_of
from jaxdml.onnx._compare.sessions import Peer

F, U, S = np.float32, np.uint8, np.int8
pytestmark = on_x64_alone


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.onnx"


# Differences ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ours", "theirs", "expected"), [
    (U([1, 2, 3, 4]), U([1, 2, 5, 3]), (2, 4, 2, 3 / 4 / 5, None)),
    (F([1, np.nan, np.inf]), F([1, np.nan, np.inf]), (0, 3, 0, 0, 0)),
    (F([1, np.nan]), F([1, 2]), (1, 2, np.inf, np.inf, np.inf)),
    (F([1 + 2**-22, 0]), F([1, 0]), (1, 2, 2.0**-22, 2.0**-23, 2)),
    (F([[1]]), F([1, 2]), (2, 2, np.inf, np.inf, np.inf)),
    (np.array([True, False]), np.array([True, True]), (1, 2, 1, 0.5, None)),
    (F([]), F([]), (0, 0, 0, 0, 0)),
])  # fmt: skip
def test_differences(ours, theirs, expected):
    assert dataclasses.astuple(Difference.of(ours, theirs)) == expected


# The report ----------------------------------------------------------------------------------------------------------


def integers(differing, largest=1.0):
    return Difference(differing, 100, largest, differing * largest / 1e4, None)


def report():
    """Four equal nodes, one with a large error in few elements, one with a small error in many, and two unknown."""
    same, bad, fine = integers(0, 0.0), integers(2, 5000.0), integers(9)
    rows = [NodeDifference(f"conv_{i}", "QLinearConv", same, same, EQUAL) for i in range(4)]
    rows += [NodeDifference("many", "QLinearAdd", fine, fine, "<ties>"), NodeDifference("few", "Q", bad, fine, "large")]
    rows += [NodeDifference(name, name.title(), None, None, ABSENT) for name in ("flatten", "reshape")]
    return Comparison(tuple(rows), {"y": integers(3)}, "1.32", ("on these inputs",))


def test_the_worst_node_comes_first_and_equal_rows_are_one():
    head, gap, titles, rule, *rows, end, note = str(report()).splitlines()
    assert head == "y: 3 of 100 elements differ from onnxruntime's, by at most 1"
    assert (gap, end, note, set(rule)) == ("", "", "on these inputs", {"-", " "})
    assert [re.split("  +", row) for row in (titles, *rows)] == [
        ["node", "computes", "own", "so far", "largest step", "reason"],
        ["few", "Q", "2 of 100", "9 of 100", "5,000", "large"],
        ["many", "QLinearAdd", "9 of 100", "9 of 100", "1", "<ties>"],
        ["x 4: conv_0 ... conv_3", "QLinearConv", "0", "0", EQUAL],
        ["x 2: flatten ... reshape", "Flatten, Reshape", "-", "-", ABSENT],
    ]


def test_a_page_needs_no_other_file():
    page = report().page("a & b")
    assert page.startswith("<!doctype html>")
    assert "<title>a &amp; b</title>" in page
    assert "&lt;ties&gt;" in page
    assert "<strong>large</strong>" in page
    assert "<strong>equal</strong>" not in page
    assert not re.search("src=|href=|url\\(|@import", page)
    assert report()._repr_html_() in page


# Quantized functions -------------------------------------------------------------------------------------------------

X = np.random.default_rng(0).normal(size=(16, 32)).astype(F)
PARAMS = {name: np.random.default_rng(i).normal(size=(32, 32)).astype(F) for i, name in enumerate(("first", "second"))}


@functools.cache
def function():
    """Two layers; the weights of a column of the first have one sign, so that int8 products saturate."""
    params = PARAMS | {"first": np.abs(PARAMS["first"])}
    return ptq.quantize(lambda p, x: jnp.tanh(x @ p["first"]) @ p["second"], params, [X], progress=False)


def test_a_quantized_function_is_compared_with_its_file_by_layer(path):
    dml.onnx.save(function(), path, weights="uint8", tables="gather")
    found = dml.onnx.compare(path, X, function())
    assert {"first", "second"} <= {row.name for row in found.nodes}
    assert {row.reason for row in found.nodes} == {EQUAL, UNREAD}  # integers of 16 bits are floats in the file
    assert (found.outputs["output"].differing, found.outputs["output"].size) == (0, 16 * 32)
    assert dml.onnx.compare(path, {"x": X}, function()) == found
    assert dml.onnx.compare(path, None, function()).notes[0] == "on random inputs, x: float32[8, 32]"


def test_outputs_that_no_node_computes(path):
    """An input, and a result that is returned twice."""
    model = ptq.quantize(lambda p, x: (*(x @ p["first"],) * 2, x), PARAMS, [X], progress=False)
    dml.onnx.save(model, path, weights="uint8")
    found = dml.onnx.compare(path, X, model)
    assert [each.differing for each in found.outputs.values()] == [0] * 3
    assert {row.reason for row in found.nodes} <= {EQUAL, UNREAD, ABSENT}


def test_a_layer_whose_weights_saturate(path):
    """onnxruntime's own outputs say by how many elements the file differs; on some processors by none."""
    dml.onnx.save(function(), path, tables="gather")
    found = dml.onnx.compare(path, np.abs(X), function())
    (theirs,) = run(path, np.abs(X)).values()
    differing = np.count_nonzero(theirs != function().apply(function().params, np.abs(X)))
    assert found.outputs["output"].differing == differing
    reasons = {row.name: row.reason for row in found.nodes if row.own and row.own.differing}
    assert ("first" in reasons) == bool(differing)
    assert all(reason.startswith("int8 weights saturate") for reason in reasons.values())


@pytest.mark.rare
def test_a_sum_of_a_quantized_function_by_another_formula(path):
    """The calibration makes the scales 0.02, 0.01 and 0.02, with which sums have ties; the inputs come in a tuple."""
    batch = np.tile(F([[5.1], [0], [2.55], [0]]), (1, 32)), np.tile(F([[0], [2.55], [2.55], [0]]), (1, 32))
    model = ptq.quantize(lambda p, x, y: (x + y) @ p["first"], PARAMS, [batch], progress=False)
    dml.onnx.save(model, path, weights="uint8")
    random = np.random.default_rng(0)
    inputs = tuple(random.integers(0, 128, (8, 32)).astype(F) * F(scale) for scale in (0.02, 0.01))
    (row,) = (row for row in dml.onnx.compare(path, inputs, model).nodes if row.operator == "add")
    assert row.own.differing
    assert row.reason.startswith("DirectML's formula for the sum rounds differently near ties")


@pytest.mark.rare
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_compared_by_layer(name, path):
    model, x = quantized_network(name), inputs_of(name)
    dml.onnx.save(model, path, weights="uint8")
    found = dml.onnx.compare(path, x, model)
    assert LAYERS[name] <= {row.name for row in found.nodes}
    assert not [row for row in found.nodes if not row.reason or row.reason.startswith("unexplained")]


# Files and wrong calls -----------------------------------------------------------------------------------------------


def test_weights_in_another_file(path):
    proto = MODELS["conv"]()
    path.write_bytes(proto.SerializeToString())
    expected = dml.onnx.compare(path)
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert dml.onnx.compare(path) == expected


def test_the_operators_that_onnxruntime_runs(path):
    """onnxruntime fuses the nodes of a QDQ convolution; the operators of a graph that it rejects are unknown."""
    proto = MODELS["conv"]()
    path.write_bytes(proto.SerializeToString())
    (quantize,) = (node for node in proto.graph.node if node.op_type == "QuantizeLinear")
    assert Peer(path).operators(quantize.output)[quantize.output[0]] == "QLinearConv"
    assert Peer(path).operators(["nowhere"]) == {}


def test_random_integers_are_of_the_whole_range():
    tensors = tuple(Tensor(name, shape, np.dtype(dtype)) for name, shape, dtype in (
        ("one", ("N", 1000), S), ("names", ("M", "N"), U), ("none", (None, None), np.int64), ("half", (999,), "uint4")
    ))  # fmt: skip
    made = random_inputs_of(SimpleNamespace(inputs=tensors))
    assert {name: value.shape for name, value in made.items()} == {
        "one": (8, 1000),
        "names": (8, 8),
        "none": (8, 1),
        "half": (999,),
    }
    assert (made["one"].min(), made["one"].max()) == (-128, 127)
    assert made["names"].max() > 1
    assert set(made["none"].flat) <= {0, 1}
    assert set(made["half"].tolist()) == set(range(16))
    with pytest.raises(ModelError, match=r"input x: float32\[\.\.\.\] has no fixed rank; give the inputs"):
        random_inputs_of(SimpleNamespace(inputs=(Tensor("x", None, np.dtype(F)),)))


def test_random_inputs_of_wrong_sizes(path):
    """A symbolic size other than the first is 1, which is too small for this filter."""
    nodes = [node("Conv", ["x", "w"], ["y"])]
    shapes = [("x", TensorProto.FLOAT, ("N", 2, "time"))], [("y", TensorProto.FLOAT, None)]
    path.write_bytes(
        model(nodes, [onnx.numpy_helper.from_array(np.ones((3, 2, 4), F), "w")], *shapes).SerializeToString()
    )
    words = r"It ran on random inputs, x: float32\[8, 2, 1\]: if the sizes do not fit, give inputs \(--run\)$"
    with pytest.raises(ModelError, match=words):
        dml.onnx.compare(path)
    with pytest.raises(ModelError) as caught:
        dml.onnx.compare(path, np.zeros((8, 2, 1), F))
    assert "--run" not in str(caught.value)
    assert dml.onnx.compare(path, np.zeros((8, 2, 4), F)).are_equal


def relu(path, x="x", y="y", outputs=1):
    names = [y, *(f"{y}{i}" for i in range(1, outputs))]
    shape = TensorProto.FLOAT, ("N", 32)
    proto = model([node("Relu", [x], [name]) for name in names], (), [(x, *shape)], [(name, *shape) for name in names])
    path.write_bytes(proto.SerializeToString())
    return path


OTHER_OUTPUTS = {
    "float32[2, 3]": lambda y: y[:, :3],
    "float32[1, 32]": lambda y: y[:1],
    "int32[2, 32]": lambda y: y.astype(np.int32),
    "float32[1, 2, 32]": lambda y: y[None],
}


@pytest.mark.parametrize("computed", rest_rarely(OTHER_OUTPUTS, 1))
def test_a_function_with_other_outputs_is_not_that_of_the_file(computed, path):
    def quantized(change):
        return ptq.quantize(lambda p, x: change(x @ p["first"]), PARAMS, [X], progress=False)

    dml.onnx.save(quantized(lambda y: y), path)
    text = f"the file has the output output: float32[batch, 32], the function computes {computed}: give the file that s"
    with pytest.raises(ModelError, match=re.escape(text)):
        dml.onnx.compare(path, X[:2], quantized(OTHER_OUTPUTS[computed]))


def test_wrong_calls(path, tmp_path, monkeypatch):
    relu(path)
    other = relu(tmp_path / "other.onnx", "z")
    two = relu(tmp_path / "two.onnx", "x", "output", outputs=2)
    x = np.ones((2, 32), F)
    for arguments, kind, text in (
        ((b"",), ArgumentTypeError, "path is of type bytes, expected the path of an ONNX file"),
        ((path, x, "model"), ArgumentTypeError, "model is of type str, expected what jaxdml.onnx.load or jaxdml.ptq"),
        ((path, (x, x)), ModelError, "inputs has 2 arrays, the file 1 inputs: ['x']"),
        ((path, {"z": x}), ModelError, "inputs lacks ['x'] and was given ['z'], which the model does not have"),
        ((path, x[0]), ModelError, "input x: float32[N, 32] was given float32[32]: it has 1 dimensions, expected 2"),
        ((path, x, dml.onnx.load(other)), ModelError, "give the file from which the model was loaded"),
        (
            (two, x, function()),
            ModelError,
            "the file has 2 outputs, the function 1: give the file",
        ),
        ((tmp_path / "none.onnx", x), FileNotFoundError, "none.onnx"),
        ((tmp_path / "none.onnx", x, dml.onnx.load(path)), FileNotFoundError, "none.onnx"),
    ):
        with pytest.raises(kind, match=re.escape(text)):
            dml.onnx.compare(*arguments)
    unknown = ptq.quantize(lambda p, x: x @ p["first"], PARAMS, [X], progress=False)
    unknown.calibrated = None
    with pytest.raises(ModelError, match="the sizes of this model's inputs are not known: quantize the function again"):
        dml.onnx.compare(path, x, unknown)
    two_inputs = ptq.quantize(lambda p, x, y: (x + y) @ p["first"], PARAMS, [(X, X)], progress=False)
    with pytest.raises(ModelError, match="the file has 1 inputs, the function 2: give the file that save wrote"):
        dml.onnx.compare(path, x, two_inputs)
    (tmp_path / "text.onnx").write_text("no model", encoding="utf-8")
    with pytest.raises(ModelError, match="the model is not an ONNX file, or is truncated"):
        dml.onnx.compare(tmp_path / "text.onnx", x, dml.onnx.load(path))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModelError, match="compare needs the package onnxruntime: pip install onnxruntime"):
        dml.onnx.compare(path)
