"""Operators that move elements give the same values on integers, even if floats have another order or type."""

import numpy as np
import onnx
import onnxruntime
import pytest

import jaxdml.onnx
from helpers.compare import assert_same_bits, assert_same_values
from helpers.qdq_builder import Builder, Grid


def both(build, *inputs):
    """The model's only output in jaxdml, and in onnxruntime as the file has it."""
    model = build.model()
    loaded = jaxdml.onnx.load(model, numerics="onnxruntime")
    (ours,) = loaded.apply(loaded.params, *inputs).values()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return np.asarray(ours), session.run(None, dict(zip(names, inputs, strict=True)))[0]


def test_different_integers_of_32_bits_may_be_equal_floats():
    build = Builder()
    x = build.dequantize(build.input((2,), "s32"), Grid("s32", 0.5, 0))
    build.output(build.node("ArgMax", x, axis=0), "s64")
    ours, theirs = both(build, np.array([2**24, 2**24 + 1], np.int32))
    assert_same_values(ours, theirs)
    assert ours == [0]


@pytest.mark.parametrize("scale", [0.5, -0.5])
@pytest.mark.parametrize("op", ["ArgMax", "ReduceMax", "ReduceMin", "Relu"])
def test_a_negative_scale_turns_the_order(op, scale):
    build = Builder()
    x = build.dequantize(build.input((1, 5), "u8"), Grid("u8", scale, 7))
    result = build.node(op, x, **({"axis": 1} if op == "ArgMax" else {}))
    if op == "ArgMax":
        build.output(result, "s64")
    else:
        build.finish(result, Grid("u8", scale, 7 if op != "Relu" else 0))
    ours, theirs = both(build, np.array([[3, 250, 9, 0, 17]], np.uint8))
    assert_same_values(ours, theirs)


def test_a_window_of_padding_alone_has_the_least_float():
    build = Builder()
    x = build.dequantize(build.input((1, 1, 1, 1), "u8"), Grid("u8", 0.5, 7))
    build.output(build.node("MaxPool", x, kernel_shape=[2, 2], dilations=[2, 2], pads=[1, 1, 1, 1]))
    ours, theirs = both(build, np.full((1, 1, 1, 1), 9, np.uint8))
    assert_same_bits(ours < -3e38, theirs < -3e38)
    assert (theirs < -3e38).any()


@pytest.mark.parametrize("padding", [{}, {"pads": [0, 0, 0, 0]}, {"auto_pad": "VALID"}])
def test_windows_with_gaps_inside_the_image_move_integers(padding):
    build = Builder()
    x = build.dequantize(build.input((1, 1, 5, 4), "u8"), Grid("u8", 0.5, 7))
    build.output(build.node("MaxPool", x, kernel_shape=[2, 2], dilations=[2, 2], **padding))
    assert jaxdml.onnx.load(build.model()).operators == ("MaxPool", "DequantizeLinear")
    assert_same_bits(*both(build, np.arange(20, dtype=np.uint8).reshape(1, 1, 5, 4)))


@pytest.mark.parametrize("dtype", ["u8", "s8"])
@pytest.mark.parametrize("length", [1, 40])
def test_the_type_of_integers_is_known_behind_movers(dtype, length):
    """Without zero points, int8 comes from an attribute of QuantizeLinear."""
    build = Builder()
    scale, wanted = build.constant(0.5, "f32"), onnx.TensorProto.INT8 if dtype == "s8" else onnx.TensorProto.UINT8
    integers = build.node("QuantizeLinear", build.input((4, 4)), scale, output_dtype=wanted)
    x = build.node("DequantizeLinear", integers, scale)
    for _ in range(length):
        x = build.node("Transpose", x, perm=[1, 0])
    w = build.dequantize(build.drawn((4, 3), dtype), Grid(dtype, 0.5, 2))
    build.finish(build.node("MatMul", x, w), Grid(dtype, 8.0, 5))
    operators = jaxdml.onnx.load(build.model()).operators
    assert operators == ("QuantizeLinear", *["Transpose"] * length, "QLinearMatMul")
    assert_same_bits(*both(build, np.linspace(-50, 90, 16, dtype=np.float32).reshape(4, 4)))


def test_floats_of_16_bits_stay():
    build = Builder(opset=23)
    numbers = build.constant(0.013, "f32"), build.constant(9, "u8")
    a, b = (
        build.node("DequantizeLinear", values, *numbers, output_dtype=onnx.TensorProto.FLOAT16)
        for values in (build.input((3, 16), "u8"), build.drawn((16, 8), "u8"))
    )
    build.output(build.node("MatMul", a, b), "f16")
    model = jaxdml.onnx.load(build.model())
    assert model.operators == ("DequantizeLinear", "DequantizeLinear", "MatMul")


@pytest.mark.parametrize("scale", [1e-37, 1e30])
def test_clamps_far_from_the_scale(scale):
    build = Builder()
    x = build.then(build.input((3,)), [("Clip", np.float32(-900), np.float32(900), {})])
    build.finish(x, Grid("u8", scale, 100))
    ours, theirs = both(build, np.array([-1e3, 0, 1e3], np.float32))
    assert_same_bits(ours, theirs)


@pytest.mark.parametrize("length", [1, 40])
def test_movers_and_clamps_go_in_any_number(length):
    build = Builder()
    x = build.dequantize(build.input((2, 3), "u8"), Grid("u8", 0.013, 0))
    for _ in range(length):
        x = build.node("Relu", build.node("Transpose", build.node("Relu", x), perm=[1, 0]))
    build.finish(x, Grid("u8", 0.013, 0))
    ours, theirs = both(build, np.arange(6, dtype=np.uint8).reshape(2, 3))
    assert_same_bits(ours, theirs)
