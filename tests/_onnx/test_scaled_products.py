"""Integer products and the nodes that scale their sums run as one operator, if nothing else reads the sums."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jaxdml as dml
from _onnx.saved import run
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely

RANDOM = np.random.default_rng(0)
A = RANDOM.integers(0, 256, (5, 3, 12)).astype(np.uint8)
IMAGES = RANDOM.integers(0, 256, (2, 4, 7, 7)).astype(np.uint8)


def floats(*shape):
    return RANDOM.uniform(0.001, 0.01, shape).astype(np.float32)


def ints(*shape, dtype=np.int32, most=1000):
    return RANDOM.integers(-most, most, shape).astype(dtype)


CONSTANTS = {
    "za": np.uint8(7), "zw": np.uint8(128), "w": RANDOM.integers(0, 256, (12, 6)).astype(np.uint8), "s": floats(6),
    "s_one": floats(), "s_row": floats(1, 1, 6), "s_other": floats(5, 1, 1), "b": floats(6), "b_matrix": floats(3, 6),
    "i": ints(6), "i_matrix": ints(3, 6), "f": RANDOM.integers(0, 256, (6, 4, 3, 3)).astype(np.uint8),
    "s_image": floats(6, 1, 1), "i_image": ints(1, 6, 1, 1), "i_one": ints(1, 1, 1), "one": np.float32(1),
    "half": np.float32(0.5), "zy": np.uint8(100),
}  # fmt: skip
PRODUCT = ("MatMulInteger", "a w za zw", "sum")
CONVOLUTION = ("ConvInteger", "x f za zw", "sum")
CAST = ("Cast", "sum", "cast")
# The nodes, each with its inputs and output, and what runs.
MODELS = {
    "a scale for each column": ([PRODUCT, CAST, ("Mul", "cast s", "y")], ["MatMulIntegerToFloat"]),
    "one scale": ([PRODUCT, CAST, ("Mul", "s_one cast", "y")], ["MatMulIntegerToFloat"]),
    "a scale with ones": ([PRODUCT, CAST, ("Mul", "cast s_row", "y")], ["MatMulIntegerToFloat"]),
    "a bias": ([PRODUCT, CAST, ("Mul", "cast s", "m"), ("Add", "m b", "y")], ["MatMulIntegerToFloat"]),
    "a sum that is no bias": (
        [PRODUCT, CAST, ("Mul", "cast s", "m"), ("Add", "m b_matrix", "y")], ["MatMulIntegerToFloat", "Add"]
    ),
    "a scale along another axis": ([PRODUCT, CAST, ("Mul", "cast s_other", "y")], ["MatMulInteger", "Cast", "Mul"]),
    "sums that are read twice": (
        [PRODUCT, CAST, ("Mul", "cast s", "m"), ("Cast", "sum", "c"), ("Sub", "m c", "y")],
        ["MatMulInteger", "Cast", "Mul", "Cast", "Sub"],
    ),
    "an integer bias": (
        [PRODUCT, ("Add", "sum i", "t"), ("Cast", "t", "cast"), ("Mul", "cast s", "m"),
         ("QuantizeLinear", "m one zy", "q"), ("DequantizeLinear", "q half zy", "y")], ["QGemm", "DequantizeLinear"]
    ),
    "an integer bias, and floats": (
        [PRODUCT, ("Add", "i sum", "t"), ("Cast", "t", "cast"), ("Mul", "cast s", "y")],
        ["MatMulInteger", "Add", "Cast", "Mul"],
    ),
    "an integer bias, and another step": (
        [PRODUCT, ("Add", "sum i", "t"), ("Cast", "t", "cast"), ("Mul", "cast s", "m"),
         ("QuantizeLinear", "m half zy", "q"), ("DequantizeLinear", "q half zy", "y")],
        ["MatMulInteger", "Add", "Cast", "Mul", "QuantizeLinear", "DequantizeLinear"],
    ),
    "an integer sum that is no bias": (
        [PRODUCT, ("Add", "sum i_matrix", "t"), ("Cast", "t", "cast"), ("Mul", "cast s", "m"),
         ("QuantizeLinear", "m one zy", "q"), ("DequantizeLinear", "q half zy", "y")],
        ["MatMulInteger", "Add", "Cast", "Mul", "QuantizeLinear", "DequantizeLinear"],
    ),
    "a convolution": ([CONVOLUTION, CAST, ("Mul", "cast s_image", "y")], ["ConvInteger"]),
    "a convolution with a bias": (
        [CONVOLUTION, ("Add", "sum i_image", "t"), ("Cast", "t", "cast"), ("Mul", "cast s_one", "y")], ["ConvInteger"]
    ),
    "a convolution with one bias": (
        [CONVOLUTION, ("Add", "sum i_one", "t"), ("Cast", "t", "cast"), ("Mul", "cast s_image", "y")], ["ConvInteger"]
    ),
    "a convolution and a scale that is no scale of channels": (
        [("ConvInteger", "x f za zw", "sum"), CAST, ("Mul", "cast s_columns", "y")], ["ConvInteger", "Cast", "Mul"]
    ),
    "a product that is multiplied by itself": ([PRODUCT, CAST, ("Mul", "cast cast", "y")],
                                               ["MatMulInteger", "Cast", "Mul"]),
}  # fmt: skip
CONSTANTS["s_columns"] = floats(5)


def model_of(nodes):
    has_images = nodes[0][0] == "ConvInteger"
    name, value = ("x", IMAGES) if has_images else ("a", A)
    made = [helper.make_node(kind, inputs.split(), [output], f"n{i}", **({"to": 1} if kind == "Cast" else {}))
            for i, (kind, inputs, output) in enumerate(nodes)]  # fmt: skip
    read = {each for node in made for each in node.input}
    initializers = [numpy_helper.from_array(np.asarray(value), key) for key, value in CONSTANTS.items() if key in read]
    graph = helper.make_graph(
        made, "g", [helper.make_tensor_value_info(name, TensorProto.UINT8, value.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], initializers,
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return proto, value


@pytest.mark.parametrize("name", rest_rarely(MODELS, 2))
def test_sums_are_scaled_in_one_operator_where_that_changes_no_bits(name, tmp_path):
    nodes, expected = MODELS[name]
    proto, value = model_of(nodes)
    onnx.save(proto, tmp_path / "model.onnx")
    loaded = dml.onnx.load(proto)
    assert list(loaded.operators) == expected
    received = loaded.apply(loaded.params, value)["y"]
    assert_same_bits(received, run(tmp_path / "model.onnx", value, level="DISABLE")["y"])
