"""4-bit weights without blocks run on integers, like onnxruntime on the same integers in 8 bits."""

import jax
import numpy as np
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

import jaxdml as dml
from _onnx.quantized_models import onnxruntime_outputs
from helpers.compare import assert_same_bits
from jaxdml.errors import ModelError
from jaxdml.onnx import Limits

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


# Files of more nodes -------------------------------------------------------------------------------------------------


def model_around(nodes, size=6, **constants):
    """A model of nodes between xd, of 8 bits, wd, of 4 bits, and r, which is quantized to y; x, w and r are squares."""
    proto = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 21]> g (float[{size}, {size}] x) => (float y)
        {{ xq = QuantizeLinear(x, x_scale, x_zero) xd = DequantizeLinear(xq, x_scale, x_zero)
           wd = DequantizeLinear(w, w_scale, w_zero) {nodes} y = QuantizeLinear(r, y_scale, y_zero) }}
    """)
    proto.graph.output[0].ClearField("type")
    rng = np.random.default_rng(1)
    given = {
        "x_scale": np.float32(0.02), "x_zero": np.uint8(127), "y_scale": np.float32(0.06), "y_zero": np.uint8(120),
        "w": rng.integers(0, 16, (size, size)).astype("uint4"), "w_scale": np.float32(0.03),
        "w_zero": np.array(7, "uint4"), **constants,
    }  # fmt: skip
    proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in given.items())
    return proto, rng.normal(0, 1, (size, size)).astype(np.float32)


def types(model):
    return sorted(str(leaf.dtype) for leaf in jax.tree.leaves(model.params))


FUSED = {
    "the first operand": "r = MatMul(wd, xd)",
    "the first operand of Gemm": "r = Gemm(wd, xd)",
    "both operands": "r = MatMul(wd, wd)",
    "behind a mover": "t = Transpose(wd) r = MatMul(xd, t)",
    "in one block": "b = DequantizeLinear<axis = 1, block_size = 6>(row, cell, zero) c = Slice(xd, i0, i1, i1) "
    "r = MatMul(c, b)",
}
IN_ONE_BLOCK = {
    "row": np.array([[3, 15, 0, 7, 1, 9]], "uint4"), "cell": np.array([[0.03]], "f"), "zero": np.array([[7]], "uint4"),
    "i0": np.array([0]), "i1": np.array([1]),
}  # fmt: skip


@pytest.mark.parametrize("nodes", FUSED.values(), ids=FUSED)
def test_all_operands_of_products(nodes):
    proto, x = model_around(nodes, **IN_ONE_BLOCK)
    model = dml.onnx.load(proto, numerics="onnxruntime")
    assert "1 of 1 convolutions and products" in str(model)
    expected = onnxruntime_outputs(proto, {"x": x}, optimized=False)["y"]
    assert_same_bits(model.apply(model.params, x)["y"], expected)


OTHERS = {
    "Add": "r = Add(xd, wd)",
    "Mul": "r = Mul(wd, xd)",
    "Concat": "r = Concat<axis = 0>(xd, wd)",
    "look-up": "ids = ArgMax(x) r = Gather(wd, ids)",
    "product of floats": "r = MatMul(x, wd)",
    "product of floats by 4 bits": "r = MatMul(wd, x)",
    "bias": "r = Gemm(xd, xd, wd)",
    "product that cannot be fused": "r = Gemm<beta = 0.5>(xd, wd, wd)",
    "product by weights that are looked up": "ids = ArgMax(x) t = Gather(wd, ids) r = MatMul(xd, t)",
}


@pytest.mark.parametrize("nodes", OTHERS.values(), ids=OTHERS)
def test_other_operators_keep_4_bits(nodes):
    proto, x = model_around(nodes)
    model = dml.onnx.load(proto, numerics="onnxruntime")
    assert types(model) == ["uint4"]
    expected = onnxruntime_outputs(proto, {"x": x}, optimized=True)["y"]
    assert_same_bits(model.apply(model.params, x)["y"], expected)


FIRST_PRODUCT = "p = MatMul(xd, wd) q = QuantizeLinear(p, x_scale, x_zero) d = DequantizeLinear(q, x_scale, x_zero) "
READERS = {  # nodes behind a product that read its weights, the number of products, and the arrays of weights
    "a product shares the bytes": ("more = DequantizeLinear(w, y_scale, w_zero) r = MatMul(d, more)", 2, 1),
    "others keep 4 bits": ("r = Sub(d, wd)", 1, 2),
}


@pytest.mark.parametrize(("nodes", "products", "arrays"), READERS.values(), ids=READERS)
def test_other_readers_of_the_weights_of_a_product(nodes, products, arrays):
    model = dml.onnx.load(model_around(FIRST_PRODUCT + nodes)[0])
    assert f"{products} of {products} convolutions and products" in str(model)
    assert len(types(model)) == arrays
    assert ("uint4" in types(model)) == (arrays == 2)


def test_weights_that_are_an_input_stay_in_floats():
    proto, x = model_around("r = MatMul(xd, wd)")
    w = next(tensor for tensor in proto.graph.initializer if tensor.name == "w")
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.UINT4, [6, 6]))
    expected = onnxruntime_outputs(proto, {"x": x}, optimized=True)["y"]
    weights = numpy_helper.to_array(w)
    proto.graph.initializer.remove(w)
    model = dml.onnx.load(proto)
    assert "no operator runs on integers" in str(model)
    assert_same_bits(model.apply(model.params, x=x, w=weights)["y"], expected)


@pytest.mark.parametrize(
    ("given", "wrong", "remedy"),
    [
        ({"w": np.ones((6, 6), np.uint8)}, "ZeroPointTensor has data type UINT4", {"w_zero": np.uint8(7)}),
        ({"w_zero": np.array(7, "int4")}, "has data type INT4, expected UINT4", {"w_zero": np.array(7, "uint4")}),
    ],
)
def test_zero_points_of_another_type(given, wrong, remedy):
    """The error names the node of the file; with a zero point of the named type, the model runs."""
    proto, x = model_around("r = MatMul(xd, wd)", **given)
    model = dml.onnx.load(proto)
    with pytest.raises(ModelError, match=wrong) as error:
        model.apply(model.params, x)
    assert "(DequantizeLinear)" in str(error.value)
    proto, x = model_around("r = MatMul(xd, wd)", **given | remedy)
    model = dml.onnx.load(proto)
    expected = onnxruntime_outputs(proto, {"x": x}, optimized=False)["y"]
    assert_same_bits(model.apply(model.params, x)["y"], expected)


def test_8_bits_count_towards_the_limits():
    """The file, which holds two integers in a byte, is smaller than the limit."""
    proto, _ = model_around("r = MatMul(xd, wd)", size=64)
    with pytest.raises(ModelError, match=r"\(DequantizeLinear\): 4097 bytes .* limit of 4096; .* Limits\(file_bytes"):
        dml.onnx.load(proto, limits=Limits(file_bytes=4096))
    assert dml.onnx.load(proto, limits=Limits(file_bytes=4097))
    for name in ("look-up", "product of floats"):
        assert dml.onnx.load(model_around(OTHERS[name], size=64)[0], limits=Limits(file_bytes=4096))
