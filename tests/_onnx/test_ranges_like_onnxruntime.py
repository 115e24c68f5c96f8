"""Large numbers and mixed types: nodes return what onnxruntime returns."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from helpers.compare import assert_same_bits
from helpers.hostile_models import FLOAT, INT64, constant, model, refused
from jaxdml.onnx import load

INT32, UINT8, FLOAT16 = TensorProto.INT32, TensorProto.UINT8, TensorProto.FLOAT16


def assert_like_onnxruntime(whole, x, **others):
    session = onnxruntime.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"])
    made = load(whole, numerics="onnxruntime")
    expected = session.run(None, {"x": x} | others)[0]
    assert_same_bits(made.apply(made.params, x, *others.values())["y"], expected)


def test_softsign_of_large_numbers():
    """The reciprocal of a number above 2**126 is subnormal, and XLA flushes it to zero."""
    x = np.array([0, 1, 1e38, -np.inf], np.float32)
    assert_like_onnxruntime(model([("Softsign", ["x"], ["y"])]), x)
    made = load(model([("Softsign", ["x"], ["y"])]))
    for bound in (2.0**126, 3e38):
        x = np.array([bound, -bound, 8e37, -8e37], np.float32)
        assert_same_bits(made.apply(made.params, x)["y"], np.sign(x))


@pytest.mark.parametrize("exponents", [[3, 4, 7, 0], [2, 2, 2, 2], [-1, 0.5, 2, -2], [2.0]])
@pytest.mark.parametrize("x", [[257, 85, 11, 7], [-3, 100, -11, 1]])
def test_powers_of_integers(x, exponents):
    """onnxruntime computes them in float64."""
    whole = model([("Pow", ["x", "e"], ["y"])], [constant(np.array(exponents, np.float32), "e")],
                  inputs=[("x", INT32)], outputs=[("y", INT32)])  # fmt: skip
    assert_like_onnxruntime(whole, np.array(x, np.int32))


@pytest.mark.parametrize("exponent", [2, 3])
def test_squares_and_cubes_of_integers_beyond_their_range(exponent):
    x = np.array([46341, -(2**31), 65537, -100], np.int32)
    power = ("Pow", ["x", "e"], ["y"])
    whole = model([power], [constant(np.float32(exponent), "e")], inputs=[("x", INT32)], outputs=[("y", INT32)])
    assert_like_onnxruntime(whole, x)


@pytest.mark.parametrize("name", ["ReduceMin", "ReduceMax"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint32, np.int32, np.float32])
def test_extremes_of_all_types(name, dtype):
    """onnxruntime has no extremes of uint32."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    whole = model([(name, ["x"], ["y"])], inputs=[("x", kind)], outputs=[("y", kind, (1,))])
    made, x = load(whole), np.array([3, 200, 1, 7]).astype(dtype)
    assert_same_bits(made.apply(made.params, x)["y"], getattr(x, name[-3:].lower())(keepdims=True))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 3)])
@pytest.mark.parametrize("reverse", [0, 1])
def test_exclusive_sums(shape, reverse):
    x = np.arange(6, dtype=np.float32)[: np.prod(shape)].reshape(shape)
    sums = helper.make_node("CumSum", ["x", "axis"], ["y"], exclusive=1, reverse=reverse)
    declared = {"inputs": [("x", FLOAT, shape)], "outputs": [("y", FLOAT, shape)]}
    assert_like_onnxruntime(model([sums], [constant(np.int32(0), "axis")], **declared), x)


def test_float16_is_quantized_by_a_float32_scale():
    parts = [constant(np.float32(0.02), "s"), constant(np.array(128, np.uint8), "z")]
    whole = model([("QuantizeLinear", ["x", "s", "z"], ["y"])], parts, opset=23,
                  inputs=[("x", FLOAT16)], outputs=[("y", UINT8)])  # fmt: skip
    assert_like_onnxruntime(whole, np.array([1, -2, 3, 0.01], np.float16))


def test_no_elements_are_quantized_dynamically():
    names = [("y", UINT8, ("n", 3)), ("scale", FLOAT, ()), ("zero", UINT8, ())]
    node = ("DynamicQuantizeLinear", ["x"], [name for name, *_ in names])
    whole = model([node], inputs=[("x", FLOAT, ("n", 3))], outputs=names)
    x = np.zeros((0, 3), np.float32)
    session = onnxruntime.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"])
    made = load(whole)
    for ours, theirs in zip(made.apply(made.params, x).values(), session.run(None, {"x": x}), strict=True):
        assert_same_bits(ours, theirs)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("is_known", [False, True])
def test_triangles(upper, is_known):
    """The diagonal may depend on data, and may lie outside of the matrix."""
    x = np.arange(1, 25, dtype=np.float32).reshape(2, 3, 4)
    trilu = helper.make_node("Trilu", ["x", "k"], ["y"], upper=upper)
    declared = {"outputs": [("y", FLOAT, x.shape)]}
    for k in np.int64([-(2**31), -3, -1, 0, 2, 4, 2**31 - 1]):
        if is_known:
            assert_like_onnxruntime(model([trilu], [constant(k, "k")], inputs=[("x", FLOAT, x.shape)], **declared), x)
        else:
            inputs = [("x", FLOAT, x.shape), ("k", INT64, ())]
            assert_like_onnxruntime(model([trilu], inputs=inputs, **declared), x, k=np.array(k))


@pytest.mark.parametrize("k", [[], [1, 2]])
@pytest.mark.parametrize(("name", "outputs"), [("Trilu", ["y"]), ("TopK", ["y", "indices"])])
def test_several_numbers_where_one_is_expected(name, outputs, k):
    whole = model([(name, ["x", "k"], outputs)], [constant(np.array(k, np.int64), "k")], [("x", FLOAT, (3, 4))],
                  [("y", FLOAT, (3, 4))])  # fmt: skip
    refused(whole, f"k has shape ({len(k)},), expected")
