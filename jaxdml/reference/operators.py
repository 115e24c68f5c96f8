"""The operators in NumPy, with the formulas of DirectML's pages. Every other implementation must return the same bits.

This file imports nothing from jaxdml, and checks nothing. Each function takes the arguments of the operator of the same
name, as NumPy arrays; zero points and bias may be None. Scales are rounded to float32. Float arithmetic is float32, one
operation at a time; as in DirectX, a subnormal operand or result becomes a zero of the same sign. Sums are exact; sums
of 8-bit products then wrap to int32.

Source: https://learn.microsoft.com/windows/win32/direct3d11/floating-point-rules
"""

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

__all__ = [
    "convolution_integer",
    "dequantize",
    "dynamic_quantize_linear",
    "element_wise_dequantize_linear",
    "element_wise_quantize_linear",
    "element_wise_quantized_linear_add",
    "matrix_multiply_blocks",
    "matrix_multiply_integer",
    "matrix_multiply_integer_to_float",
    "quantize",
    "quantized_linear_average_pooling",
    "quantized_linear_convolution",
    "quantized_linear_matrix_multiply",
]

Array = np.ndarray
LIMITS = {f"uint{bits}": (0, 2**bits - 1) for bits in (4, 8, 16)}
LIMITS |= {f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (4, 8, 16)}


def _minus(x: Array, zero_point: Any) -> Array:
    """x - zero_point in int64."""
    return x.astype(np.int64) - (0 if zero_point is None else np.asarray(zero_point).astype(np.int64))


def _float32(x: Any) -> Array:
    """x in float32, with subnormals flushed."""
    return _flushed(np.asarray(x, np.float32))


def _flushed(x: Array) -> Array:
    """x with float32 subnormals replaced by zeros of the same sign."""
    return np.where(np.abs(x) < np.finfo(np.float32).smallest_normal, np.copysign(np.float32(0), x), x)


def _product(x: Array, y: Array) -> Array:
    """The float32 product, flushed if it is subnormal after rounding to 24 bits with an unbounded exponent."""
    fraction, exponent = np.frexp(x.astype(np.float64) * y)  # exact: 48 bits
    rounded = np.ldexp(fraction.astype(np.float32).astype(np.float64), exponent)
    small = np.abs(rounded) < np.finfo(np.float32).smallest_normal
    return np.where(small, np.copysign(0.0, rounded), rounded).astype(np.float32)


def _saturated(x: Array, zero_point: Any, dtype: Any) -> Array:
    """clamp(round(x) + zero_point, Min, Max), where NaN becomes Min."""
    lowest, highest = LIMITS[np.dtype(dtype).name]
    offset = 0.0 if zero_point is None else np.asarray(zero_point).astype(np.float64)
    rounded = np.rint(x).astype(np.float64) + offset
    return np.clip(np.where(np.isnan(rounded), lowest, rounded), lowest, highest).astype(dtype)


def _output_dtype(output_dtype: Any, output_zero_point: Any, default: Any) -> Any:
    given = getattr(output_zero_point, "dtype", None)  # None for a Python number
    if given is not None and given.name in LIMITS:
        return given
    return default if output_dtype is None else output_dtype


def _wrapped(accumulator: Array) -> Array:
    """int64 wrapped to int32."""
    return accumulator.astype(np.uint32).astype(np.int32)


def _requantized(
    accumulator: Array, a_scale: Array, b_scale: Array, output_scale: Any, zero_point: Any, dtype: Any
) -> Array:
    with np.errstate(all="ignore"):
        multiplier = _flushed(_product(a_scale, b_scale) / _float32(output_scale))
        return _saturated(accumulator.astype(np.float32) * multiplier, zero_point, dtype)


def element_wise_dequantize_linear(input: Array, scale: Any, zero_point: Any = None) -> Array:
    """(input - zero_point) * scale; for a float16 scale the float32 product is rounded to float16."""
    dtype = np.float16 if getattr(scale, "dtype", None) == np.float16 else np.float32
    with np.errstate(all="ignore"):
        return _flushed(_minus(input, zero_point).astype(np.float32) * _float32(scale)).astype(dtype)


def element_wise_quantize_linear(
    input: Array, scale: Any, zero_point: Any = None, *, output_dtype: Any = None
) -> Array:
    """clamp(round(input / scale) + zero_point, Min, Max)."""
    dtype = _output_dtype(output_dtype, zero_point, np.uint8)
    with np.errstate(all="ignore"):
        return _saturated(_flushed(_float32(input) / _float32(scale)), zero_point, dtype)


def element_wise_quantized_linear_add(
    a: Array, a_scale: Any, a_zero_point: Any, b: Array, b_scale: Any, b_zero_point: Any,
    output_scale: Any, output_zero_point: Any, *, output_dtype: Any = None,
) -> Array:  # fmt: skip
    """clamp(round((a_value + b_value) / output_scale) + output_zero_point); x_value is (x - zero_point) * scale."""
    dtype = _output_dtype(output_dtype, output_zero_point, a.dtype)
    with np.errstate(all="ignore"):
        a_value = _flushed(_minus(a, a_zero_point).astype(np.float32) * _float32(a_scale))
        b_value = _flushed(_minus(b, b_zero_point).astype(np.float32) * _float32(b_scale))
        total = _flushed(a_value + b_value)
        return _saturated(_flushed(total / _float32(output_scale)), output_zero_point, dtype)


def quantized_linear_matrix_multiply(
    a: Array, a_scale: Any, a_zero_point: Any, b: Array, b_scale: Any, b_zero_point: Any,
    output_scale: Any, output_zero_point: Any, *, output_dtype: Any = None,
) -> Array:  # fmt: skip
    """[..., M, K] times [..., K, N]; scales and zero points broadcast as in NumPy."""
    # The products of 9-bit integers and their sums are exact in float64, and NumPy multiplies float64 matrices fast.
    exact = _minus(a, a_zero_point).astype(np.float64) @ _minus(b, b_zero_point).astype(np.float64)
    accumulator = _wrapped(exact.astype(np.int64))
    dtype = _output_dtype(output_dtype, output_zero_point, a.dtype)
    return _requantized(accumulator, _float32(a_scale), _float32(b_scale), output_scale, output_zero_point, dtype)


def _number(x: Any) -> Any:
    """A parameter of one element as a scalar."""
    return None if x is None else np.reshape(x, ())


def _channelwise(x: Any, axis: int, rank: int) -> Array:
    """A parameter with one element, or one per index of `axis`, reshaped to `rank` dimensions."""
    return np.reshape(x, [-1 if d == axis else 1 for d in range(rank)])


def _windows(x: Array, window: Any, options: tuple[Any, ...]) -> Array:
    """Zero-padded windows of [N, C, *spatial]: [N, C, *output, *window]; options: strides, dilations, start, end."""
    strides, dilations, start, end = (np.broadcast_to(option, x.ndim - 2) for option in options)
    x = np.pad(x, [(0, 0), (0, 0), *zip(start, end, strict=True)])
    extents = 1 + (np.array(window) - 1) * dilations
    steps = [slice(None, None, stride) for stride in strides]
    holes = [slice(None, None, dilation) for dilation in dilations]
    windows = sliding_window_view(x, tuple(extents), axis=tuple(range(2, x.ndim)))
    return windows[(slice(None), slice(None), *steps, *holes)]


def _convolved(x: Array, f: Array, options: tuple[Any, ...], group_count: int) -> Array:
    """Exact sums of products, int64 [N, O, *output]."""
    spatial = x.ndim - 2
    windows = np.moveaxis(_windows(x, f.shape[2:], options), 1, spatial + 1)  # [N, *output, C, *kernel]
    outputs = []
    for x_group, f_group in zip(
        np.split(windows, group_count, axis=spatial + 1), np.split(f, group_count, axis=0), strict=True
    ):
        rows = x_group.reshape(*x_group.shape[: spatial + 1], -1).astype(np.float64)
        outputs.append(rows @ f_group.reshape(len(f_group), -1).T.astype(np.float64))  # exact in float64
    return np.moveaxis(np.concatenate(outputs, axis=-1), -1, 1).astype(np.int64)


def quantized_linear_convolution(
    input: Array, input_scale: Any, input_zero_point: Any, filter: Array, filter_scale: Any, filter_zero_point: Any,
    bias: Any, output_scale: Any, output_zero_point: Any, *, strides: Any = 1, dilations: Any = 1,
    start_padding: Any = 0, end_padding: Any = 0, group_count: int = 1, output_dtype: Any = None,
) -> Array:  # fmt: skip
    """``[N, C, *spatial]`` with ``[O, C / group_count, *kernel]``; filter parameters and bias have 1 or O elements."""
    rank, options = input.ndim, (strides, dilations, start_padding, end_padding)
    x = _minus(input, _number(input_zero_point))
    f = _minus(filter, None if filter_zero_point is None else _channelwise(filter_zero_point, 0, rank))
    accumulator = _convolved(x, f, options, group_count)
    if bias is not None:
        accumulator = accumulator + _channelwise(np.asarray(bias, np.int64), 1, rank)
    dtype = _output_dtype(output_dtype, output_zero_point, input.dtype)
    scales = (_number(_float32(input_scale)), _channelwise(_float32(filter_scale), 1, rank))
    return _requantized(_wrapped(accumulator), *scales, output_scale, output_zero_point, dtype)


def matrix_multiply_integer(a: Array, a_zero_point: Any, b: Array, b_zero_point: Any) -> Array:
    """[..., M, K] times [..., K, N] in int32."""
    exact = _minus(a, a_zero_point).astype(np.float64) @ _minus(b, b_zero_point).astype(np.float64)
    return _wrapped(exact.astype(np.int64))


def convolution_integer(
    input: Array, input_zero_point: Any, filter: Array, filter_zero_point: Any, *, strides: Any = 1,
    dilations: Any = 1, start_padding: Any = 0, end_padding: Any = 0, group_count: int = 1,
) -> Array:  # fmt: skip
    """``[N, C, *spatial]`` with ``[O, C / group_count, *kernel]`` in int32; filter_zero_point has 1 or O elements."""
    x, windows_of = _minus(input, _number(input_zero_point)), (strides, dilations, start_padding, end_padding)
    f = _minus(filter, None if filter_zero_point is None else _channelwise(filter_zero_point, 0, input.ndim))
    return _wrapped(_convolved(x, f, windows_of, group_count))


def dynamic_quantize_linear(input: Array, *, output_dtype: Any = np.uint8) -> tuple[Array, Array, Array]:
    """The output, its scale and its zero point, computed from the input's range, extended to contain 0."""
    limits, x = np.iinfo(output_dtype), _float32(input)
    with np.errstate(all="ignore"):
        low, high = np.minimum(x.min(), np.float32(0)), np.maximum(x.max(), np.float32(0))
        scale = _flushed(_flushed(high - low) / np.float32(limits.max - limits.min))
        scale = np.where(scale == 0, np.float32(1), scale)
        zero_point = _saturated(np.float32(limits.min) - _flushed(low / scale), None, output_dtype)
        output = _saturated(_flushed(x / scale), zero_point, output_dtype)
    return output, np.reshape(scale, (1,) * x.ndim), np.reshape(zero_point, (1,) * x.ndim)


def matrix_multiply_integer_to_float(
    a: Array, a_scale: Any, a_zero_point: Any, b: Array, b_scale: Any, b_zero_point: Any, bias: Any = None
) -> Array:
    """[..., M, K] times [..., K, N], times a_scale and b_scale, plus bias; float16 scales are converted to float32."""
    if a.dtype.itemsize == b.dtype.itemsize == 1:
        total = matrix_multiply_integer(a, a_zero_point, b, b_zero_point).astype(np.float32)
    else:  # Python's integers cannot overflow
        exact = _minus(a, a_zero_point).astype(object) @ _minus(b, b_zero_point).astype(object)
        total = np.vectorize(_nearest, otypes=[np.float32])(exact)
    dtype = np.float16 if getattr(a_scale, "dtype", None) == np.float16 else np.float32
    with np.errstate(all="ignore"):
        output = _flushed(total * _product(_float32(a_scale), _float32(b_scale)))
        return (output if bias is None else _flushed(output + _float32(bias))).astype(dtype)


def _nearest(integer: int) -> Any:
    """The float32 nearest to an integer, ties to even."""
    shift = max(abs(integer).bit_length() - 24, 0)
    quotient, rest = divmod(abs(integer), 1 << shift)
    half = 1 << shift >> 1
    rounded = quotient + (shift > 0 and (rest > half or (rest == half and quotient % 2 == 1)))
    return np.ldexp(np.float32(rounded if integer >= 0 else -rounded), shift)


def quantized_linear_average_pooling(
    input: Array, input_scale: Any, input_zero_point: Any, output_scale: Any, output_zero_point: Any, *,
    window_size: Any, strides: Any = 1, start_padding: Any = 0, end_padding: Any = 0, dilations: Any = 1,
    include_padding: bool = False, output_dtype: Any = None,
) -> Array:  # fmt: skip
    """Means of windows of ``[N, C, *spatial]``; scales and zero points have 1 or C elements."""
    rank, options = input.ndim, (strides, dilations, start_padding, end_padding)
    window = tuple(np.broadcast_to(window_size, rank - 2))
    x = _minus(input, None if input_zero_point is None else _channelwise(input_zero_point, 1, rank))
    kernel = tuple(range(-len(window), 0))
    total = _windows(x, window, options).sum(kernel).astype(np.float32)
    inside = _windows(np.ones_like(x), window, options).sum(kernel).astype(np.float32)
    count = np.float32(np.prod(window)) if include_padding else inside
    dtype = _output_dtype(output_dtype, output_zero_point, input.dtype)
    zero_point = None if output_zero_point is None else _channelwise(output_zero_point, 1, rank)
    scales = (_channelwise(_float32(scale), 1, rank) for scale in (input_scale, output_scale))
    input_scale, output_scale = scales
    with np.errstate(all="ignore"):
        mean = _flushed(_flushed(total * input_scale) / count)
        return _saturated(_flushed(mean / output_scale), zero_point, dtype)


def quantize(input: Array, scale: Any, zero_point: Any = None, *, output_dtype: Any = None) -> Array:
    """`element_wise_quantize_linear` with a scale and a zero point for each block of input."""
    dtype = np.dtype(_output_dtype(output_dtype, zero_point, np.uint8))
    scale, zero_point = (_each(x, input.shape) for x in (scale, _with_middle(zero_point, dtype)))
    with np.errstate(all="ignore"):
        return _saturated(_flushed(_float32(input) / _float32(scale)), zero_point, dtype)


def dequantize(input: Array, scale: Any, zero_point: Any = None) -> Array:
    """`element_wise_dequantize_linear` with a scale and a zero point for each block of input."""
    parameters = (_each(x, input.shape) for x in (scale, _with_middle(zero_point, input.dtype)))
    return element_wise_dequantize_linear(input, *parameters)


def _with_middle(zero_point: Any, dtype: Any) -> Any:
    """The zero point; if it is None and dtype is unsigned, the middle of dtype's range."""
    return {"uint4": 8, "uint8": 128}.get(np.dtype(dtype).name) if zero_point is None else zero_point


def _each(parameter: Any, shape: tuple[int, ...]) -> Any:
    """A parameter with one value per block, repeated to one value per element."""
    if np.ndim(parameter) == 0:
        return parameter
    for axis, size in enumerate(shape):
        parameter = np.repeat(parameter, size // parameter.shape[axis], axis)
    return parameter


PLANES = {"int8": 1, "int15": 2, "int22": 3}


def matrix_multiply_blocks(
    a: Array, b: Array, b_scale: Array, b_zero_point: Any = None, *, precision: str = "int22", bias: Any = None
) -> Array:
    """[..., K] times b [N, K], whose blocks along K have scales and zero points [N, blocks]: [..., N] of a's type."""
    (columns, depth), blocks = b.shape, b_scale.shape[1]
    size = next(each for each in (16, 32, 64, 128, 256) if -(-depth // each) == blocks)
    scales, zero_points = _float32(b_scale), _with_middle(b_zero_point, b.dtype)
    zero_points = np.broadcast_to(_minus(np.asarray(0 if zero_points is None else zero_points), None), scales.shape)
    x = _float32(a).reshape(-1, depth)
    total: Any = np.float32(-0.0)  # -0 + x is x, even for zeros
    with np.errstate(all="ignore"):
        for block in range(blocks):
            inside = slice(block * size, (block + 1) * size)
            a_scale, planes = _in_planes(x[:, inside], PLANES[precision])
            weights = b[:, inside].astype(np.int64) - zero_points[:, block, None]
            product: Any = np.float32(0)
            for plane in planes:  # a plane's sum is below 2**23, so it is exact
                product = product * np.float32(128) + (plane @ weights.T.astype(np.float64)).astype(np.float32)
            scale = _product(a_scale[:, None], scales[None, :, block])
            total = _flushed(total + _flushed(scale * product))
        output = total if bias is None else _flushed(total + _float32(bias))
        return output.reshape(*a.shape[:-1], columns).astype(a.dtype)


def _in_planes(x: Array, count: int) -> tuple[Array, list[Array]]:
    """The scale of each row of x, and the row's integers as planes of base 128, in float64, the highest first."""
    most = np.float32(127 * 128 ** (count - 1) + sum(63 * 128**place for place in range(count - 1)))
    high = np.abs(x).max(-1)
    is_finite, is_live = np.isfinite(high), np.isfinite(high) & (high >= most * np.finfo(np.float32).smallest_normal)
    scale = np.where(is_live, high / most, np.where(is_finite, np.float32(0), np.float32(np.nan)))
    inverse = np.where(is_live, most / high, np.float32(0))
    rest = np.where(is_live[:, None], np.rint(x * inverse[:, None]), 0).astype(np.int64)
    planes: list[Array] = []
    for _ in range(count - 1):
        lowest = (rest + 64) % 128 - 64
        planes.insert(0, lowest.astype(np.float64))
        rest = (rest - lowest) // 128
    return scale, [rest.astype(np.float64), *planes]
