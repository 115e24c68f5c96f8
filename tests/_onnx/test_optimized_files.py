"""Models that onnxruntime saved after its optimizations, against onnxruntime."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import jaxdml.onnx
from _onnx.one_node_models import made
from _onnx.optimized_models import FILES, saved, tokens
from _onnx.quantized_models import onnxruntime_outputs, random_inputs
from helpers.compare import assert_same_bits
from helpers.hostile_models import model, node, refused
from helpers.marks import rest_rarely
from helpers.one_node import on_x64_alone

EXACT = ("channels last", "channels last, QDQ", "poolings")
CLOSE = 110  # decibels; where no rounding to integers enlarges the last bits of floats


def inputs_of(proto):
    return tokens() if len(proto.graph.input) > 1 else random_inputs(proto, 3)


@on_x64_alone
@pytest.mark.parametrize("name", rest_rarely(FILES, 3))
def test_a_file_has_the_nodes_that_it_should_have(name):
    assert {each.op_type for each in saved(name).graph.node if each.domain == "com.microsoft"} == FILES[name][2]


@on_x64_alone
@pytest.mark.parametrize("name", rest_rarely(EXACT, 1))
def test_integers_have_the_bits_of_onnxruntime(name):
    proto = saved(name)
    made, inputs = jaxdml.onnx.load(proto, numerics="onnxruntime"), inputs_of(proto)
    assert_same_bits(made.apply(made.params, **inputs)["y"], onnxruntime_outputs(proto, inputs, optimized=False)["y"])
    layers = sum(each.op_type in ("QLinearConv", "QGemm") for each in proto.graph.node)
    assert f"{layers} of {layers} convolutions and products" in str(made)


FLOATS = ["dynamic BERT", *(name for name in FILES if name not in (*EXACT, "dynamic BERT"))]


@pytest.mark.rare
@on_x64_alone
@pytest.mark.parametrize("name", rest_rarely(FLOATS, 1))
def test_floats_are_close_to_onnxruntime(name):
    proto = saved(name)
    made, inputs = jaxdml.onnx.load(proto), inputs_of(proto)
    ours, theirs = made.apply(made.params, **inputs)["y"], onnxruntime_outputs(proto, inputs, optimized=False)["y"]
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    error = np.asarray(ours, np.float64) - theirs
    assert np.sum(error**2) <= np.sum(theirs.astype(np.float64) ** 2) * 10 ** (-CLOSE / 10)


@on_x64_alone
@pytest.mark.rare
@pytest.mark.parametrize("name", FILES)
def test_each_difference_has_a_reason(name, tmp_path):
    path = tmp_path / "optimized.onnx"
    path.write_bytes(saved(name).SerializeToString())
    comparison = jaxdml.onnx.compare(path, inputs_of(saved(name)))
    assert all(row.reason and not row.reason.startswith("unexplained") for row in comparison.nodes), comparison


@on_x64_alone
def test_int8_filters_with_channels_last_saturate(tmp_path):
    """Sums of two products of 255 and 127 exceed 16 bits; NumPy's integers say by how much onnxruntime is wrong."""
    w = np.full((8, 32), 127, np.int8)
    w[::2] = 3
    x = np.full((1, 4, 1, 32), 255, np.uint8)
    x[:, 1:3] = 100
    grids = np.float32(1), np.uint8(0), w.reshape(8, 32, 1, 1), np.float32(2.0**-6), np.int8(0), np.float32(1000)
    path = tmp_path / "model.onnx"
    proto = made("QLinearConv", (x, *grids, np.uint8(0)), kind=TensorProto.UINT8, channels_last=1)
    path.write_bytes(proto.SerializeToString())
    exact = np.rint((x.astype(int) @ w.astype(int).T) * 2.0**-6 / 1000)
    (row,), theirs = jaxdml.onnx.compare(path, x).nodes, onnxruntime_outputs(proto, {"x0": x}, optimized=True)["y"]
    assert row.own.differing == row.so_far.differing == np.count_nonzero(theirs != exact)
    words = "int8 weights saturate in onnxruntime's kernel on this processor; with uint8 weights of the same values"
    assert row.reason == (f"{words}, no element differs" if row.own.differing else "equal")


def test_a_file_for_one_processor_is_refused():
    """The error lists one problem, whatever the number of nodes."""
    words = "nodes have the domain 'com.microsoft.nchwc', which onnxruntime's optimizer writes for one processor"
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft.nchwc", 1)]
    nodes = [node("ReorderInput", ["x"], ["a"], domain="com.microsoft.nchwc")]
    nodes += [node("ReorderOutput", ["a"], ["y"], domain="com.microsoft.nchwc", channels=4)]
    text = refused(model(nodes, opset_imports=opsets), "the model has a problem", words, "with ORT_ENABLE_EXTENDED")
    assert text.count("nchwc") == 1
