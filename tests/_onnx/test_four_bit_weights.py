"""4-bit weights without blocks run on integers, like onnxruntime on the same integers in 8 bits."""

import jax
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import jaxdml as dml
from _onnx.quantized_models import onnxruntime_outputs
from helpers.compare import assert_same_bits

TYPES = {"uint4": np.uint8, "int4": np.int8}
SHAPES = {"Conv": ((2, 4, 7, 7), (6, 4, 3, 3)), "MatMul": ((5, 40), (40, 6)), "Gemm": ((5, 40), (6, 40))}
CHANNELS = {"Conv": 0, "MatMul": 1, "Gemm": 0}


def model_of(operator, kind, *, per_channel=True, activations=np.uint8, has_zero_point=True, weights=None):
    """A product or convolution between DequantizeLinear and QuantizeLinear; `weights` replaces the weights' type."""
    rng = np.random.default_rng(0)
    x_shape, shape = SHAPES[operator]
    count = shape[CHANNELS[operator]] if per_channel else 1
    least = -8 if kind == "int4" else 0
    drawn = rng.integers(least, least + 16, shape)
    zero_points = rng.integers(least, least + 16, count) if per_channel else np.array(least + 7)
    scales = rng.uniform(0.01, 0.05, count).astype(np.float32) if per_channel else np.float32(0.03)
    weight_type = np.dtype(weights or kind)
    offset = np.iinfo(activations).max // 2
    constants = {
        "x_scale": np.float32(0.02), "x_zero": activations(offset), "w": drawn.astype(weight_type), "w_scale": scales,
        "w_zero": zero_points.astype(weight_type), "y_scale": np.float32(0.06), "y_zero": activations(offset + 9),
    }  # fmt: skip
    axis = {"axis": CHANNELS[operator]} if per_channel else {}
    options = {"transB": 1} if operator == "Gemm" else {}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "x_scale", "x_zero"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "x_scale", "x_zero"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"][: 2 + has_zero_point], ["wd"], **axis),
        helper.make_node(operator, ["xd", "wd"], ["r"], operator, **options),
        helper.make_node("QuantizeLinear", ["r", "y_scale", "y_zero"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "graph", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x_shape)],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(activations)), None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    x = rng.normal(0, 1, x_shape).astype(np.float32)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), x


@pytest.mark.sampled(4)
@pytest.mark.parametrize("has_zero_point", [True, False])
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("operator", SHAPES)
def test_results_are_those_of_8_bits(operator, kind, per_channel, has_zero_point):
    options = {"per_channel": per_channel, "has_zero_point": has_zero_point}
    proto, x = model_of(operator, kind, **options)
    model = dml.onnx.load(proto, numerics="onnxruntime")
    assert "1 of 1 convolutions and products, 1 of 2 operators run on integers" in str(model)
    wide, _ = model_of(operator, kind, **options, weights=TYPES[kind])
    expected = onnxruntime_outputs(wide, {"x": x}, optimized=True, quantprecision=True)["y"]
    assert_same_bits(jax.jit(model.apply)(model.params, x)["y"], expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("operator", SHAPES)
def test_activations_of_16_bits(operator, kind):
    proto, x = model_of(operator, kind, activations=np.uint16)
    model = dml.onnx.load(proto)
    assert "1 of 1 convolutions and products, 1 of" in str(model)
    wide = dml.onnx.load(model_of(operator, kind, activations=np.uint16, weights=TYPES[kind])[0])
    assert_same_bits(model.apply(model.params, x)["y"], wide.apply(wide.params, x)["y"])


def test_weights_that_are_also_an_output_keep_their_type():
    proto, x = model_of("MatMul", "uint4")
    proto.graph.output.append(helper.make_tensor_value_info("w", TensorProto.UINT4, None))
    model = dml.onnx.load(proto)
    assert model.apply(model.params, x)["w"].dtype == "uint4"
    assert "1 of 1 convolutions and products" in str(model)
