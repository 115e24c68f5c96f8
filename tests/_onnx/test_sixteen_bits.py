"""Products and convolutions with operands of 16 bits: exact sums, each rounded to float32 once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.marks import on_both_kernels
from jaxdml._arithmetic.halves import TERMS

pytestmark = on_both_kernels
RANDOM = np.random.default_rng(0)
WORDS, BYTES = (np.uint16, np.int16), (np.uint8, np.int8)


def drawn(dtype, *shape):
    info = np.iinfo(dtype)
    return RANDOM.integers(info.min, info.max + 1, shape).astype(dtype)


def ends(dtype):
    info = np.iinfo(dtype)
    return info.min, info.max


def rounded_product(a, a_zero_point, b, b_zero_point):
    """Computed in Python's integers; NumPy rounds an int64 to float32 once."""
    total = (a.astype(object) - int(a_zero_point)) @ (b.astype(object) - int(b_zero_point))
    return total.astype(np.int64).astype(np.float32)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("b_type", BYTES)
@pytest.mark.parametrize("a_type", WORDS)
def test_products_are_rounded_once(a_type, b_type):
    """Products of random operands, and of operands and zero points at the ends of their types."""
    multiply = jax.jit(
        lambda a, a_zero, b, b_zero: dml.matrix_multiply_integer_to_float(
            a, np.float32(0.25), a_zero, b, np.float32(2), b_zero
        )
    )
    for a_zero_point, b_zero_point in [(a, b) for a in (*ends(a_type), 77) for b in (*ends(b_type), 3)]:
        a, b = drawn(a_type, 4, 700), drawn(b_type, 700, 5)
        a[0], a[1], b[:, 0], b[:, 1] = *ends(a_type), *ends(b_type)
        expected = rounded_product(a, a_zero_point, b, b_zero_point) * np.float32(0.5)
        assert_same_bits(multiply(a, a_type(a_zero_point), b, b_type(b_zero_point)), expected)
        prepared = dml.prepare_matrix_multiply_b(b)
        assert_same_bits(multiply(a, a_type(a_zero_point), prepared, b_type(b_zero_point)), expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("b_type", WORDS)
@pytest.mark.parametrize("a_type", [*WORDS, *BYTES])
def test_products_by_16_bits_are_rounded_once(a_type, b_type):
    """Products of batches, with zero points at the ends of their types."""
    multiply = jax.jit(dml.matrix_multiply_integer_to_float)
    a, b = drawn(a_type, 2, 4, 700), drawn(b_type, 2, 700, 5)
    a[:, 0], a[:, 1], b[..., 0], b[..., 1] = *ends(a_type), *ends(b_type)
    for zero_points in zip((*ends(a_type), 77), (*ends(b_type)[::-1], 3), strict=True):
        a_zero_point, b_zero_point = (kind(each) for kind, each in zip((a_type, b_type), zero_points, strict=True))
        y = multiply(a, np.float32(0.25), a_zero_point, b, np.float32(2), b_zero_point)
        expected = [rounded_product(*each) for each in zip(a, [a_zero_point] * 2, b, [b_zero_point] * 2, strict=True)]
        assert_same_bits(y, np.stack(expected) * np.float32(0.5))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("depth", [1, TERMS, TERMS + 1])
def test_long_sums_do_not_overflow(depth):
    """Sums of bytes fit in int32 up to TERMS terms; longer ones are computed in another way."""
    for a, zero_point in ((65535, 0), (0, 65535), (255, 65280)):
        operands = np.full((1, depth), a, np.uint16), np.uint16(zero_point), np.full((depth, 1), 255, np.uint8)
        y = dml.matrix_multiply_integer_to_float(operands[0], 1.0, operands[1], operands[2], 1.0, None)
        assert_same_bits(y, rounded_product(*operands, 0))


@pytest.mark.rare
@pytest.mark.parametrize("depth", [TERMS // 2, TERMS])
def test_long_sums_of_two_words_do_not_overflow(depth):
    """Two sums of products of bytes are added, so that int32 holds half as many terms."""
    a, b = np.full((1, depth), 65535, np.uint16), np.full((depth, 1), 65535, np.uint16)
    y = dml.matrix_multiply_integer_to_float(a, 1.0, None, b, 1.0, None)
    assert_same_bits(y, rounded_product(a, 0, b, 0))


@pytest.mark.rare
def test_modes():
    a, b = drawn(np.uint16, 3, 4, 64), drawn(np.int8, 64, 6)

    def multiply(a):
        return dml.matrix_multiply_integer_to_float(a, np.float32(0.1), np.uint16(40000), b, np.float32(0.3), None)

    expected = [rounded_product(each, 40000, b, 0) * (np.float32(0.1) * np.float32(0.3)) for each in a]
    for found in (
        np.stack([multiply(each) for each in a]),
        jax.vmap(multiply)(a),
        jax.jit(jax.vmap(multiply))(a),
        jax.jit(lambda: jnp.stack([multiply(each) for each in a]))(),
    ):
        assert_same_bits(found, np.stack(expected))


def test_zero_points_that_are_traced_or_of_each_row():
    a, b = drawn(np.int16, 4, 64), drawn(np.uint8, 64, 6)
    zero_points = np.int16([[0], [-32768], [32767], [-5]])
    expected = np.concatenate([rounded_product(a[i : i + 1], zero_points[i, 0], b, 9) for i in range(4)])
    y = jax.jit(lambda z: dml.matrix_multiply_integer_to_float(a, 1.0, z, b, 1.0, np.uint8(9)))(zero_points)
    assert_same_bits(y, expected)


# Files --------------------------------------------------------------------------------------------------------------


def convolved(x, w, *, strides, padding, groups):
    """int64 convolution of [N, C, H, W] by [O, C / groups, KH, KW]."""
    x = np.pad(x.astype(np.int64), [(0, 0), (0, 0), padding, padding])
    kernel, channels = w.shape[2:], w.shape[1]
    sizes = [(x.shape[2 + i] - kernel[i]) // strides + 1 for i in range(2)]
    y = np.zeros((len(x), len(w), *sizes), np.int64)
    for o in range(len(w)):
        first = o // (len(w) // groups) * channels
        for i, j in np.ndindex(*sizes):
            window = x[:, first : first + channels, i * strides : i * strides + kernel[0]]
            y[:, o, i, j] = (window[..., j * strides : j * strides + kernel[1]] * w[o]).sum((1, 2, 3))
    return y


def quantized_model(node, constants, x_type, shape, scale, zero_point):
    """x is dequantized, goes through the node, and the result is given as floats."""
    nodes, tensors = [], {"x_scale": np.float32(scale), "x_zero": np.asarray(zero_point, x_type)}
    for name, (integers, scales, axis) in constants.items():
        tensors |= {
            f"{name}_q": integers,
            f"{name}_scale": scales,
            f"{name}_zero": np.zeros(scales.shape, integers.dtype),
        }
        names = [f"{name}_q", f"{name}_scale", f"{name}_zero"]
        nodes.append(helper.make_node("DequantizeLinear", names, [name], axis=axis))
    nodes.append(helper.make_node("DequantizeLinear", ["x_q", "x_scale", "x_zero"], ["x"]))
    held = [numpy_helper.from_array(value, name) for name, value in tensors.items()]
    given = helper.make_tensor_value_info("x_q", helper.np_dtype_to_tensor_dtype(np.dtype(x_type)), shape)
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([*nodes, node], "g", [given], [made], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("x_type", WORDS)
def test_convolutions_of_files(x_type, groups):
    """Padding with the zero point, scales of each channel, and a bias that is added in floats, as that of Gemm."""
    x, w = drawn(x_type, 2, 4, 7, 7), drawn(np.int8, 8, 4 // groups, 3, 3)
    scales = RANDOM.uniform(0.001, 0.01, 8).astype(np.float32)
    bias = np.int32([0, 1, -1, 255, 256, 2**31 - 1, -(2**31), 12345])
    zero_point = drawn(x_type)
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], strides=[2, 2], pads=[1] * 4, group=groups)
    constants = {"w": (w, scales, 0), "b": (bias, np.float32(0.002) * scales, 0)}
    model = dml.onnx.load(quantized_model(node, constants, x_type, x.shape, 0.002, zero_point))
    assert "ConvInteger" in model.operators
    total = convolved(x.astype(np.int64) - int(zero_point), w, strides=2, padding=(1, 1), groups=groups)
    of_bias = bias.astype(np.float32) * (np.float32(0.002) * scales)
    expected = total.astype(np.float32) * (np.float32(0.002) * scales)[:, None, None] + of_bias[:, None, None]
    for way in (model.apply, jax.jit(model.apply)):
        assert_same_bits(way(model.params, x)["y"], expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("trans_b", [0, 1])
def test_gemm_of_files(trans_b):
    x, w = drawn(np.uint16, 3, 40), drawn(np.int8, 40, 6)
    scales = RANDOM.uniform(0.001, 0.01, 6).astype(np.float32)
    bias = drawn(np.int32, 6) // 2**12
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=trans_b)
    held = np.ascontiguousarray(w.T) if trans_b else w
    constants = {"w": (held, scales, 0 if trans_b else 1), "b": (bias, np.float32(0.002) * scales, 0)}
    model = dml.onnx.load(quantized_model(node, constants, np.uint16, x.shape, 0.002, 31000))
    assert "MatMulIntegerToFloat" in model.operators
    of_bias = bias.astype(np.float32) * (np.float32(0.002) * scales)
    expected = rounded_product(x, 31000, w, 0) * (np.float32(0.002) * scales) + of_bias
    assert_same_bits(jax.jit(model.apply)(model.params, x)["y"], expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("y_type", [*WORDS, *BYTES])
def test_results_of_files_are_quantized_to_any_type(y_type):
    """The exact sum is rounded to float32, scaled, divided by the scale of y, and rounded half to even."""
    x, w = drawn(np.uint16, 3, 40), drawn(np.int8, 40, 6)
    scales = RANDOM.uniform(0.001, 0.01, 6).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    made = quantized_model(node, {"w": (w, scales, 1)}, np.uint16, x.shape, 0.002, 31000)
    info = np.iinfo(y_type)
    y_scale, y_zero_point = np.float32(np.ptp(x) * 0.01 / (int(info.max) - info.min)), y_type(info.max - 100)
    made.graph.initializer.extend(
        [
            numpy_helper.from_array(np.asarray(y_scale), "y_scale"),
            numpy_helper.from_array(np.asarray(y_zero_point), "y_zero"),
        ]
    )
    made.graph.node.append(helper.make_node("QuantizeLinear", ["y", "y_scale", "y_zero"], ["y_q"]))
    made.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("y_q", helper.np_dtype_to_tensor_dtype(np.dtype(y_type)), None)
    )
    model = dml.onnx.load(made)
    assert "MatMulIntegerToFloat" in model.operators
    floats = rounded_product(x, 31000, w, 0) * (np.float32(0.002) * scales)
    expected = np.clip(np.rint(floats / y_scale).astype(np.int64) + int(y_zero_point), info.min, info.max)
    assert len(np.unique(expected)) > 3
    for way in (model.apply, jax.jit(model.apply)):
        assert_same_bits(way(model.params, x)["y_q"], expected.astype(y_type))


@pytest.mark.rare
@pytest.mark.parametrize("b_type", [np.uint16, np.uint8])
def test_products_of_two_computed_values_of_files(b_type):
    """Products of 16 bits by 16 bits, and of 16 bits by 8 bits."""
    a, b = drawn(np.uint16, 2, 3, 40), drawn(b_type, 2, 40, 6)
    node = helper.make_node("MatMul", ["x", "b"], ["y"])
    made = quantized_model(node, {}, np.uint16, a.shape, 0.002, 31000)
    names = ["b_q", "b_scale", "b_zero"]
    made.graph.node.insert(0, helper.make_node("DequantizeLinear", names, ["b"]))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(b_type))
    made.graph.input.append(helper.make_tensor_value_info("b_q", kind, b.shape))
    for name, value in (("b_scale", np.float32(0.003)), ("b_zero", b_type(99))):
        made.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    model = dml.onnx.load(made)
    assert model.operators == ("MatMulIntegerToFloat",)
    expected = np.stack([rounded_product(*each, 99) for each in zip(a, [31000] * 2, b, strict=True)])
    y = jax.jit(model.apply)(model.params, x_q=a, b_q=b)["y"]
    assert_same_bits(y, expected * (np.float32(0.002) * np.float32(0.003)))


def test_products_too_long_for_int32_stay_in_floats():
    """Products of more than TERMS terms are computed in floats."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    for depth, is_integer in ((TERMS, True), (TERMS + 1, False)):
        w = np.ones((depth, 1), np.int8)
        made = quantized_model(node, {"w": (w, np.float32([0.01]), 1)}, np.uint16, (1, depth), 0.002, 0)
        assert ("MatMulIntegerToFloat" in dml.onnx.load(made).operators) == is_integer
