"""The operators in NumPy, from the formulas of DirectML's pages: the answer that every other form must give.

Slow, short, and independent: nothing of jaxdml is imported, nothing is checked, nothing is rewritten by a compiler.
Arguments are as those of the functions of the same name; arrays are NumPy arrays, zero points and bias may be None,
scales are rounded to float32. Float arithmetic is float32, one operation at a time, and as in DirectX a subnormal
operand or result counts as a zero of its sign. Sums are exact and then taken modulo 2**32, as in an int32 accumulator.

Source: https://learn.microsoft.com/windows/win32/direct3d11/floating-point-rules
"""

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Array = np.ndarray


def _minus(x: Array, zero_point: Any) -> Array:
    """x - zero_point, in 64 bits."""
    return x.astype(np.int64) - (0 if zero_point is None else np.asarray(zero_point).astype(np.int64))


def _float32(x: Any) -> Array:
    """x in float32, without subnormals."""
    return _flushed(np.asarray(x, np.float32))


def _flushed(x: Array) -> Array:
    """float32 x, subnormals as zeros of their sign."""
    return np.where(np.abs(x) < np.finfo(np.float32).smallest_normal, np.copysign(np.float32(0), x), x)


def _product(x: Array, y: Array) -> Array:
    """The float32 product, flushed if its 24 bits lie below the smallest normal number, as processors that flush do."""
    fraction, exponent = np.frexp(x.astype(np.float64) * y)  # exact: 48 bits
    rounded = np.ldexp(fraction.astype(np.float32).astype(np.float64), exponent)
    small = np.abs(rounded) < np.finfo(np.float32).smallest_normal
    return np.where(small, np.copysign(0.0, rounded), rounded).astype(np.float32)


def _saturated(x: Array, zero_point: Any, dtype: Any) -> Array:
    """clamp(round(x) + zero_point, Min, Max) with NaN to Min."""
    limits = np.iinfo(dtype)
    offset = 0.0 if zero_point is None else np.asarray(zero_point).astype(np.float64)
    rounded = np.rint(x).astype(np.float64) + offset
    return np.clip(np.where(np.isnan(rounded), limits.min, rounded), limits.min, limits.max).astype(dtype)


def _output_dtype(output_dtype: Any, output_zero_point: Any, default: Any) -> Any:
    is_typed = isinstance(output_zero_point, np.ndarray | np.generic)
    if is_typed and output_zero_point.dtype.name in ("int8", "uint8", "int16", "uint16"):
        return output_zero_point.dtype
    return default if output_dtype is None else output_dtype


def _wrapped(accumulator: Array) -> Array:
    """int64 to int32, modulo 2**32."""
    return accumulator.astype(np.uint32).astype(np.int32)


def _requantized(
    accumulator: Array, a_scale: Array, b_scale: Array, output_scale: Any, zero_point: Any, dtype: Any
) -> Array:
    with np.errstate(all="ignore"):
        multiplier = _flushed(_product(a_scale, b_scale) / _float32(output_scale))
        return _saturated(accumulator.astype(np.float32) * multiplier, zero_point, dtype)


def element_wise_dequantize_linear(input: Array, scale: Any, zero_point: Any = None) -> Array:
    """(input - zero_point) * scale; a float16 scale is widened, and the product rounded to float16."""
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
    """clamp(round((a_value + b_value) / output_scale) + output_zero_point), x_value = (x - zero_point) * scale."""
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
    """[..., M, K] times [..., K, N]; parameters broadcast as NumPy does."""
    # The products of 9-bit integers and their sums are exact in float64, which NumPy multiplies fast.
    exact = _minus(a, a_zero_point).astype(np.float64) @ _minus(b, b_zero_point).astype(np.float64)
    accumulator = _wrapped(exact.astype(np.int64))
    dtype = _output_dtype(output_dtype, output_zero_point, a.dtype)
    return _requantized(accumulator, _float32(a_scale), _float32(b_scale), output_scale, output_zero_point, dtype)


def quantized_linear_convolution(
    input: Array, input_scale: Any, input_zero_point: Any, filter: Array, filter_scale: Any, filter_zero_point: Any,
    bias: Any, output_scale: Any, output_zero_point: Any, *, strides: Any = 1, dilations: Any = 1,
    start_padding: Any = 0, end_padding: Any = 0, group_count: int = 1, output_dtype: Any = None,
) -> Array:  # fmt: skip
    """[N, C, *spatial] with [O, C / group_count, *kernel]; filter parameters and bias hold one element or O."""
    spatial = input.ndim - 2
    strides, dilations, start_padding, end_padding = (
        np.broadcast_to(option, spatial) for option in (strides, dilations, start_padding, end_padding)
    )

    def channelwise(x: Any, axis: int) -> Array:
        return np.reshape(x, [-1 if d == axis else 1 for d in range(input.ndim)])

    x = _minus(input, None if input_zero_point is None else np.reshape(input_zero_point, ()))
    x = np.pad(x, [(0, 0), (0, 0), *zip(start_padding, end_padding, strict=True)])
    f = _minus(filter, None if filter_zero_point is None else channelwise(filter_zero_point, 0))
    extents = 1 + (np.array(f.shape[2:]) - 1) * dilations
    windows = sliding_window_view(x, tuple(extents), axis=tuple(range(2, input.ndim)))
    steps = [slice(None, None, stride) for stride in strides]
    holes = [slice(None, None, dilation) for dilation in dilations]
    windows = np.moveaxis(windows[(slice(None), slice(None), *steps, *holes)], 1, spatial + 1)  # [N, *out, C, *kernel]

    outputs = []
    for x_group, f_group in zip(
        np.split(windows, group_count, axis=spatial + 1), np.split(f, group_count, axis=0), strict=True
    ):
        rows = x_group.reshape(*x_group.shape[: spatial + 1], -1).astype(np.float64)
        outputs.append(rows @ f_group.reshape(len(f_group), -1).T.astype(np.float64))  # exact, as above
    accumulator = np.moveaxis(np.concatenate(outputs, axis=-1), -1, 1).astype(np.int64)
    if bias is not None:
        accumulator = accumulator + channelwise(np.asarray(bias, np.int64), 1)
    dtype = _output_dtype(output_dtype, output_zero_point, input.dtype)
    scales = (np.reshape(_float32(input_scale), ()), channelwise(_float32(filter_scale), 1))
    return _requantized(_wrapped(accumulator), *scales, output_scale, output_zero_point, dtype)
