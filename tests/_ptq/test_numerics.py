"""ONNX Runtime's formulas for quantized sums and means, where a model is quantized with numerics="onnxruntime"."""

import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest
from jax import lax
from onnx import TensorProto, helper, numpy_helper

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely
from jaxdml.ptq import PtqError

RANDOM = np.random.default_rng(0)
# Integers times a power of two: with these ranges, sums and means lie halfway between two integers, and the zero
# points of the results are odd. The two formulas round such values differently.
A = RANDOM.integers(-129, 127, (64, 4, 6, 6)).astype(np.float32) / 64
B = RANDOM.integers(-129, 127, A.shape).astype(np.float32) / 64
A[0], A[1], B[0], B[1] = -129 / 64, 126 / 64, -129 / 64, 126 / 64
ZERO_POINTS = 1, 1
KERNEL = (np.eye(4, dtype=np.float32)[:, :, None, None],)


def windows(x):
    return lax.reduce_window(x, 0.0, lax.add, (1, 1, 2, 2), (1, 1, 2, 2), "VALID") / 4


# The operation on float images, then what onnxruntime computes from the integers.
OPERATIONS = {
    "QLinearAdd": (lambda a, b: a + b, {}),
    "QLinearGlobalAveragePool": (lambda a, b: jnp.mean(a, (2, 3), keepdims=True), {}),
    "QLinearAveragePool": (
        lambda a, b: windows(a),
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
}


def by_onnxruntime(operator, inputs, constants, attributes):
    """The result of one node with the inputs x, and constants after each of them."""
    names = [f"x{i}" for i in range(len(inputs))]
    order = [name for i, x in enumerate(names) for name in (x, f"s{i}", f"z{i}")] + ["s", "z"]
    node = helper.make_node(operator, order, ["y"], domain="com.microsoft", **attributes)
    values = [helper.make_tensor_value_info(name, TensorProto.INT8, None) for name in (*names, "y")]
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph([node], "g", values[:-1], values[-1:], initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip(names, inputs, strict=True)))[0]


@pytest.mark.parametrize("operator", rest_rarely(OPERATIONS, 1))
def test_sums_and_means_have_the_formulas_of_onnxruntime(operator, tmp_path):
    compute, attributes = OPERATIONS[operator]

    def apply(kernel, a, b):  # the identity after the operation shows its integers
        return lax.conv_general_dilated(compute(a, b), kernel[0], (1, 1), "VALID")

    def integers(model):
        y = np.asarray(model.apply(model.params, A, B))
        scale = next(value for name, value in model.graph.constants.items() if name == f"{result}:scale")
        return np.rint(y / scale).astype(np.int32) + model.graph.constants[f"{result}:zero_point"]

    models = {
        numerics: dml.ptq.quantize(
            apply, KERNEL, [(A, B)], activations=jnp.int8, numerics=numerics, progress=False
        ) for numerics in ("directml", "onnxruntime")
    }  # fmt: skip
    model = models["onnxruntime"]
    result = next(node.name for node in reversed(model.graph.nodes) if node.operator.name == "quantize")
    given = zip((A, B) if operator == "QLinearAdd" else (A,), ZERO_POINTS, strict=False)
    inputs = [(np.rint(x * 64) + zero_point).astype(np.int8) for x, zero_point in given]
    constants = {"s": model.graph.constants[f"{result}:scale"], "z": model.graph.constants[f"{result}:zero_point"]}
    for i in range(len(inputs)):
        constants |= {f"s{i}": np.float32(1 / 64), f"z{i}": np.int8(ZERO_POINTS[i])}
        assert model.graph.constants[f"input_{i}:scale"] == np.float32(1 / 64)
        assert model.graph.constants[f"input_{i}:zero_point"] == ZERO_POINTS[i]
    assert_same_bits(integers(model).astype(np.int8), by_onnxruntime(operator, inputs, constants, attributes))
    assert operator.replace("Global", "") in str(model)
    if operator != "QLinearGlobalAveragePool":  # its formulas hardly differ
        assert (integers(model) != integers(models["directml"])).any()
    dml.ptq.save(tmp_path / "model.npz", model)
    loaded = dml.ptq.load(tmp_path / "model.npz", apply)
    assert loaded.numerics == "onnxruntime"
    assert_same_bits(loaded.apply(loaded.params, A[:5], B[:5]), model.apply(model.params, A[:5], B[:5]))


def test_wrong_numerics():
    with pytest.raises(PtqError, match="numerics is 'ort', expected 'directml' or 'onnxruntime'"):
        dml.ptq.quantize(lambda w, x: x @ w, np.eye(4, dtype=np.float32), [np.eye(4)], numerics="ort")
