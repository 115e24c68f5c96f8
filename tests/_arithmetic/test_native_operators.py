"""Operators that share the native kernels of products, convolutions and quantization."""

import re

import jax
import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.native_calls import A, B, F, X, native_calls, needs_native
from jaxdml import reference
from jaxdml.ptq._integers.operators import _by_range, dynamic_product, quantized_rows

V = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)
WORDS = np.random.default_rng(1).integers(-(2**15), 2**15, (3, 37), np.int16)
SCALES = np.float32(0.1), np.uint8(3), np.float32(0.2), np.uint8(5)


def pooled(module):
    return lambda x: module.quantized_linear_average_pooling(x, *SCALES, window_size=X.shape[2:])


def pooled_by_channel(module):
    scale = np.linspace(0.1, 0.2, X.shape[1], dtype=np.float32).reshape(1, -1, 1, 1)
    return lambda x: module.quantized_linear_average_pooling(x, scale, *SCALES[1:], window_size=X.shape[2:])


# The operator, of either module; its first argument; the kernels that it calls.
CALLS = {
    "integer product": (lambda m: lambda a: m.matrix_multiply_integer(a, np.uint8(3), B, None), A, ["matmul"]),
    "integer convolution": (lambda m: lambda x: m.convolution_integer(x, np.uint8(3), F, None), X, ["convolve"]),
    "product in floats": (
        lambda m: lambda a: m.matrix_multiply_integer_to_float(a, np.float32(0.1), np.uint8(3), B, np.float32(1), None),
        A, ["matmul"],
    ),
    "pooling of whole images": (pooled, X, ["means"]),
    "pooling of channels with a scale each": (pooled_by_channel, X, ["row_sums"]),
    "dynamic quantization": (lambda m: lambda x: m.dynamic_quantize_linear(x)[0], V, ["extremes", "quantized"]),
    "quantization": (lambda m: lambda x: m.quantize(x, np.float32(0.1)), V, ["quantized"]),
    "dequantization": (lambda m: lambda x: m.dequantize(x, np.float32(0.1)), A, ["dequantized"]),
    "dequantization of 16 bits": (
        lambda m: lambda x: m.element_wise_dequantize_linear(x, np.float32(0.1), np.int16(-700)), WORDS,
        ["dequantized"],
    ),
    "dequantization of unsigned 16 bits": (
        lambda m: lambda x: m.element_wise_dequantize_linear(x, np.float32(0.1), None), WORDS.view(np.uint16),
        ["dequantized"],
    ),
}  # fmt: skip


@needs_native
@pytest.mark.parametrize("name", CALLS)
def test_kernels_of_a_call(name):
    function, x, kernels = CALLS[name]
    assert native_calls(function(dml), x) == kernels
    with dml.use_kernels("xla"):
        assert native_calls(function(dml), x) == []


ROW_SCALES = np.geomspace(1e-30, 1e3, 5, dtype=np.float32)[:, None]
COLUMN_SCALES = np.float32([0.1, -0.2, 0, -0.0, 1e-40, 1e-9, np.inf, -np.inf, np.nan, *np.geomspace(1e-3, 9e3, 11)])
COLUMN_BIASES = np.float32([0, -0.0, 1e-40, -1e-40, np.inf, -np.inf, *np.linspace(-9e3, 9e3, 14)])
# Scales of rows and columns, the bias, and whether XLA scales the sums.
FLOAT_PRODUCTS = {
    "numbers": (np.float32(0.1), np.float32(-3), None, False),
    "scales of rows and columns": (ROW_SCALES, COLUMN_SCALES, None, False),
    "scales of columns": (np.float32(0.3), COLUMN_SCALES, COLUMN_BIASES, False),
    "both": (ROW_SCALES, COLUMN_SCALES, COLUMN_BIASES, False),
    "a bias of the columns": (np.float32(0.1), np.float32(0.3), COLUMN_BIASES, False),
    "a bias of the columns as a matrix": (ROW_SCALES, np.float32(0.3), COLUMN_BIASES[None], False),
    "float16": (ROW_SCALES[-2:].repeat(3, 0)[:5].astype(np.float16), np.float16(0.3), np.float16(V[0, :20]), False),
    "a bias of all outputs": (ROW_SCALES, COLUMN_SCALES, V[:, :20], True),
    "one bias": (ROW_SCALES, COLUMN_SCALES, V[:1, :1], True),
    "a bias of rows": (np.float32(0.1), COLUMN_SCALES, V[:, :1], True),
}


@needs_native
@pytest.mark.parametrize("name", FLOAT_PRODUCTS)
def test_products_in_floats(name):
    """The kernel writes floats, and adds a bias of the columns; XLA scales int32 sums only for other biases."""
    a_scale, b_scale, bias, has_sums = FLOAT_PRODUCTS[name]

    def multiply(a, module=dml, b=B, a_scale=a_scale):
        return module.matrix_multiply_integer_to_float(a, a_scale, np.uint8(3), b, b_scale, np.int8(-5), bias)

    assert_same_bits(multiply(A), multiply(A, reference))
    assert_same_bits(multiply(A, b=dml.prepare_matrix_multiply_b(B)), multiply(A, reference))
    gradient = jax.grad(lambda scale: multiply(A, a_scale=scale).astype(np.float32).sum())
    assert native_calls(gradient, a_scale) == ["matmul"]
    hlo = jax.jit(multiply).lower(A).compile().as_text()
    assert ("s32[5,20]" in hlo) == has_sums
    assert hlo.count("jaxdml_cpu_matmul") == 1


@needs_native
@pytest.mark.parametrize(
    ("kernel", "x_dtype", "y_dtype"), [("quantized", np.float32, np.int8), ("add", np.int8, np.int8)]
)
def test_zero_points_of_16_bits_are_not_for_outputs_of_8_bits(kernel, x_dtype, y_dtype):
    x, scale, zero_point = np.ones(5, x_dtype), np.ones((), np.float32), np.zeros((), np.int16)
    operands = (x, scale, zero_point) * (2 if kernel == "add" else 1) + (scale, zero_point) * (kernel == "add")
    call = jax.ffi.ffi_call(f"jaxdml_cpu_{kernel}", jax.ShapeDtypeStruct((5,), y_dtype))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"zero point is (wider than the output|not int8 or uint8)"):
        jax.block_until_ready(call(*operands, leading_count=np.int64(0)))


@needs_native
@pytest.mark.parametrize("name", CALLS)
def test_vmap_is_folded(name):
    """vmap over one new dimension, and over two."""
    function, x, kernels = CALLS[name]
    stack = np.stack([x, x[::-1], x // 2, x * 3 if x.dtype == np.float32 else ~x])
    mapped = jax.vmap(function(dml))
    assert native_calls(mapped, stack) == kernels
    expected = np.stack([function(reference)(one) for one in stack])
    assert_same_bits(jax.jit(mapped)(stack), expected)
    twice = jax.vmap(mapped)
    assert native_calls(twice, stack.reshape(2, 2, *x.shape)) == kernels
    assert_same_bits(jax.jit(twice)(stack.reshape(2, 2, *x.shape)).reshape(expected.shape), expected)


@needs_native
@pytest.mark.parametrize(
    ("axes", "is_merged"),
    [((0, None, None, None), False), ((0, 0, None, None), True), ((0, 0, None, 0), False), ((0, 0, 0, None), False)],
)
def test_products_under_vmap_by_one_matrix_are_one_product_of_all_rows(axes, is_merged):
    """Unless the items share a scale of each row, or have parameters of their own for columns."""
    rng = np.random.default_rng(0)
    shapes = [(5, 1), (64, 20), (20,)]
    stack = [np.stack([A, A[::-1], A // 2]), *(rng.uniform(0.1, 1, (3, *shape)).astype(np.float32) for shape in shapes)]
    stack[2] = rng.integers(-128, 128, (3, 64, 20), np.int8)
    given = [x if axis == 0 else x[0] for x, axis in zip(stack, axes, strict=True)]

    def multiply(a, a_scale, b, b_scale, module=dml):
        return module.matrix_multiply_integer_to_float(a, a_scale, np.uint8(3), b, b_scale, None, None)

    mapped = jax.jit(jax.vmap(multiply, axes))
    (call,) = re.findall(r"= f32\[([\d,]+)\].*jaxdml_cpu_matmul", mapped.lower(*given).compile().as_text())
    assert call == ("15,20" if is_merged else "3,5,20")
    items = ([x if axis is None else x[i] for x, axis in zip(given, axes, strict=True)] for i in range(3))
    assert_same_bits(mapped(*given), np.stack([multiply(*item, module=reference) for item in items]))


ODD = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1e-40, -1e-42, 2**-126, 3e38, -3e38], np.float32)


def odd_rows(seed):
    """Rows of all magnitudes, some with one sign, some with odd numbers, some of zeros alone."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(*rng.integers(1, 5, 2), rng.integers(1, 200))) * np.exp2(rng.integers(-130, 120, (1, 1, 1)))
    x = np.abs(x) * rng.choice([-1, 1], x.shape if rng.random() < 0.5 else (1, 1, 1)) * (rng.random((1, 1, 1)) < 0.9)
    is_odd = rng.random(x.shape) < rng.choice([0, 0.01])
    return np.where(is_odd, rng.choice(ODD, x.shape), x.astype(np.float32))


@pytest.mark.rare
@needs_native
def test_quantized_rows_have_the_bits_of_xla():
    by_xla = jax.jit(lambda x: _by_range(x, -1, np.uint8, symmetric=False))
    for seed in range(12):
        x = odd_rows(seed) if seed else np.float32([[2e-38, -1e-38], [1e-37, 0], [-1e-45, 0], [1.2e-38, -3e38]])
        expected = by_xla(x)
        for one, other in zip(quantized_rows(x), expected, strict=True):
            assert_same_bits(one, other)
        assert native_calls(quantized_rows, x) == ["quantized_rows"]
    mapped = jax.vmap(jax.vmap(quantized_rows))
    assert native_calls(mapped, x) == ["quantized_rows"]
    for one, other in zip(mapped(x), expected, strict=True):
        assert_same_bits(one, other)


@needs_native
def test_not_a_number_reaches_all_of_a_dynamic_product_that_depends_on_it():
    """Of a size for which XLA computes extremes with a kernel of its own."""
    a, b = np.random.default_rng(0).standard_normal((2, 3, 4, 64, 64)).astype(np.float32)
    a[0, 1, 2], b[1, 2, 3, 4] = np.nan, np.nan
    expected = np.isnan(a).any(-1, keepdims=True) | np.isnan(b).any(-2, keepdims=True)
    native = np.asarray(jax.jit(dynamic_product)(a, b))
    assert_same_bits(np.isnan(native), expected)
    with dml.use_kernels("xla"):
        assert_same_bits(jax.jit(lambda a, b: dynamic_product(a, b))(a, b), native)


def test_a_product_of_quantized_rows_keeps_weights_packed():
    """Parameters of each row need no batch of products, which would unpack prepared weights in every call."""
    a, b = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32), dml.prepare_matrix_multiply_b(B)
    scales = np.full(20, 0.1, np.float32)
    assert native_calls(dynamic_product, a, b, scales) == ["quantized_rows", "matmul"]
    assert "s8[64,20]" not in jax.jit(dynamic_product).lower(a, b, scales).compile().as_text()
    assert_same_bits(dynamic_product(a, b, scales), dynamic_product(a, B, scales))
