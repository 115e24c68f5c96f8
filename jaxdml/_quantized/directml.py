"""DirectML's quantized operators as functions of graph nodes, with inputs in ONNX's order and tensors of any shape.

Tensors that DirectML's operators do not allow, such as operands with more than four dimensions, are reshaped.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdml._arithmetic import elementwise, halves, rounding
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._operators.convolution_integer import convolution_integer
from jaxdml._operators.dequantize import dequantize
from jaxdml._operators.dynamic_quantize_linear import dynamic_quantize_linear
from jaxdml._operators.element_wise_dequantize_linear import element_wise_dequantize_linear
from jaxdml._operators.element_wise_quantize_linear import element_wise_quantize_linear
from jaxdml._operators.element_wise_quantized_linear_add import element_wise_quantized_linear_add
from jaxdml._operators.matrix_multiply_integer import matrix_multiply_integer
from jaxdml._operators.matrix_multiply_integer_to_float import matrix_multiply_integer_to_float
from jaxdml._operators.quantize import quantize
from jaxdml._operators.quantized_linear_average_pooling import quantized_linear_average_pooling
from jaxdml._operators.quantized_linear_convolution import quantized_linear_convolution
from jaxdml._operators.quantized_linear_matrix_multiply import quantized_linear_matrix_multiply
from jaxdml._quantized.axes import axis_of
from jaxdml._quantized.matrices import multiplied
from jaxdml._quantized.windows import Pairs, check_convolution, explicit_padding
from jaxdml.errors import ModelError

Array = Any
NIBBLES = (jnp.dtype("int4"), jnp.dtype("uint4"))


def scalar(parameter: Array) -> Array:
    """Reshapes a scale or zero point with one element to a scalar; other parameters and None stay unchanged."""
    return parameter.reshape(()) if parameter is not None and parameter.size == 1 else parameter


def offset(zero_point: Array) -> Array:
    """A zero point as DirectML's operators take it; None if it is a constant 0, which saves the subtraction."""
    if isinstance(zero_point, np.ndarray) and not zero_point.any():
        return None
    return scalar(zero_point)


def _without_rows[**P](function: Callable[P, Array]) -> Callable[P, Array]:
    """Lets a function take a first argument with 0 rows: it gets one row of zeros, whose result is dropped."""

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> Array:
        x: Any = args[0]
        if x.shape[:1] != (0,):
            return function(*args, **options)
        rest: Any = jnp.zeros((1, *x.shape[1:]), x.dtype), *args[1:]
        return function(*rest, **options)[:0]

    return call


# Contractions --------------------------------------------------------------------------------------------------------


def _convolution_options(x: Array, w: Array, strides: Any, dilations: Any, padding: Any) -> dict[str, Any]:
    pairs = explicit_padding(padding, x.shape[2:], w.shape[2:], strides, dilations)
    start, end = zip(*pairs, strict=True)
    return {"strides": strides, "dilations": dilations, "start_padding": start, "end_padding": end}


@_without_rows
def convolution(
    x: Array, x_scale: Array, x_zero_point: Array, w: Array, w_scale: Array, w_zero_point: Array, y_scale: Array,
    y_zero_point: Array, bias: Array | None = None, *,
    strides: int | Sequence[int] = 1, dilations: int | Sequence[int] = 1, padding: Pairs | int | str = 0,
    group_count: int = 1, kernel_shape: Sequence[int] | None = None,
) -> Array:  # fmt: skip
    """Convolution of quantized [N, C, *spatial], with a quantized result."""
    check_convolution(x, w, kernel_shape)
    of_x, of_w = (scalar(x_scale), offset(x_zero_point)), (scalar(w_scale), offset(w_zero_point))
    of_y = scalar(y_scale), scalar(y_zero_point)
    options = _convolution_options(x, w, strides, dilations, padding)
    return quantized_linear_convolution(x, *of_x, w, *of_w, bias, *of_y, group_count=group_count, **options)


@_without_rows
def integer_convolution(
    x: Array, w: Array, x_zero_point: Array | None = None, w_zero_point: Array | None = None, *,
    strides: int | Sequence[int] = 1, dilations: int | Sequence[int] = 1, padding: Pairs | int | str = 0,
    group_count: int = 1, kernel_shape: Sequence[int] | None = None,
) -> Array:  # fmt: skip
    """Convolution of quantized [N, C, *spatial], with an int32 result."""
    check_convolution(x, w, kernel_shape)
    options = _convolution_options(x, w, strides, dilations, padding)
    return convolution_integer(x, offset(x_zero_point), w, offset(w_zero_point), group_count=group_count, **options)


def float_convolution(
    x: Array, x_scale: Array, x_zero_point: Array, w: Array, w_scale: Array, w_zero_point: Array,
    bias: Array | None = None, **options: Any,
) -> Array:  # fmt: skip
    """Convolution of quantized [N, C, *spatial], with a float result.

    For 8-bit x, the bias [O] is int32 with the scale x_scale * w_scale. For 16-bit x, the bias is float32 and is added
    to the scaled sum, as in `float_product`.
    """
    if x.dtype.itemsize > 1:
        sums = halves.by_bytes(
            lambda x, of_x: integer_convolution(x, w, of_x, w_zero_point, **options), x, x_zero_point
        )
        beside: Any = functools.partial(_beside, x=sums, axis=1)
        y = rounding.multiplied(sums, beside(x_scale), beside(w_scale), beside(bias))
        return rounding.rounded_to(y, x_scale.dtype)
    y = integer_convolution(x, w, x_zero_point, w_zero_point, **options)
    scale: Any = _beside(scalar(x_scale) * scalar(w_scale), y, 1)
    ones = (1,) * (y.ndim - 2)
    return elementwise.scaled_sums(y, None if bias is None else bias.reshape(1, -1, *ones), scale.reshape(1, -1, *ones))


def product(
    a: Array, a_scale: Array, a_zero_point: Array, b: Array, b_scale: Array, b_zero_point: Array, y_scale: Array,
    y_zero_point: Array,
) -> Array:  # fmt: skip
    """Matrix product of quantized `a` and `b`, with a quantized result."""
    of_a, of_b = (a, scalar(a_scale), offset(a_zero_point)), (b, scalar(b_scale), offset(b_zero_point))
    of_y = scalar(y_scale), scalar(y_zero_point)
    return multiplied(quantized_linear_matrix_multiply, of_a, of_b, *of_y, dtype=y_zero_point.dtype)


def integer_product(
    a: Array, b: Array, a_zero_point: Array | None = None, b_zero_point: Array | None = None
) -> Array:  # fmt: skip
    """Matrix product of quantized `a` and `b`, with an int32 result."""
    of_a, of_b = (a, offset(a_zero_point)), (b, offset(b_zero_point))
    return multiplied(matrix_multiply_integer, of_a, of_b, dtype=jnp.int32)


def float_product(
    a: Array, b: Array, a_scale: Array, b_scale: Array, a_zero_point: Array | None = None,
    b_zero_point: Array | None = None, bias: Array | None = None,
) -> Array:  # fmt: skip
    """Matrix product of quantized `a` and `b`, with a float result.

    The sum is multiplied by fl(a_scale * b_scale), then the bias is added. ONNX Runtime differs if `b` has more
    than two dimensions and all matrices share one b_scale [N]: it multiplies by b_scale last, after adding the bias.
    """
    of_a, of_b = (a, scalar(a_scale), offset(a_zero_point)), (b, scalar(b_scale), offset(b_zero_point))
    return multiplied(matrix_multiply_integer_to_float, of_a, of_b, bias, dtype=a_scale.dtype)


# Element by element --------------------------------------------------------------------------------------------------


def add(
    a: Array, a_scale: Array, a_zero_point: Array | None, b: Array, b_scale: Array, b_zero_point: Array | None,
    y_scale: Array, y_zero_point: Array | None = None,
) -> Array:  # fmt: skip
    """Sum of quantized `a` and `b`, which broadcast, with a quantized result."""
    shape = jnp.broadcast_shapes(a.shape, b.shape)
    if 0 in shape:
        return jnp.zeros(shape, a.dtype)
    a, b = (jnp.broadcast_to(x, shape or (1,)) for x in (a, b))
    parameters = map(scalar, (a_scale, a_zero_point, b_scale, b_zero_point, y_scale, y_zero_point))
    a_scale, a_zero_point, b_scale, b_zero_point, *of_y = parameters
    return element_wise_quantized_linear_add(
        a, a_scale, a_zero_point, b, b_scale, b_zero_point, *of_y
    ).reshape(shape)  # fmt: skip


@_without_rows
def average_pool(
    x: Array, x_scale: Array, x_zero_point: Array | None, y_scale: Array, y_zero_point: Array | None = None, *,
    window: Sequence[int], strides: int | Sequence[int] = 1, dilations: int | Sequence[int] = 1,
    padding: Pairs | int | str = 0, count_include_pad: int = 0,
) -> Array:  # fmt: skip
    """Average pooling of quantized [N, C, *spatial], with a quantized result."""
    pairs = explicit_padding(padding, x.shape[2:], window, strides, dilations)
    start, end = zip(*pairs, strict=True)
    return quantized_linear_average_pooling(
        x, *map(scalar, (x_scale, x_zero_point, y_scale, y_zero_point)), window_size=tuple(window), strides=strides,
        dilations=dilations, start_padding=start, end_padding=end, include_padding=bool(count_include_pad),
    )  # fmt: skip


@_without_rows
def global_average_pool(
    x: Array, x_scale: Array, x_zero_point: Array | None, y_scale: Array, y_zero_point: Array | None = None
) -> Array:
    """Global average pooling of quantized [N, C, *spatial], with a quantized result."""
    return average_pool(x, x_scale, x_zero_point, y_scale, y_zero_point, window=x.shape[2:])


# Between floats and integers -----------------------------------------------------------------------------------------


def _beside(parameter: Array | None, x: Array, axis: int) -> Array | None:
    """Reshapes a parameter, which has one element or one for each index along an axis, to broadcast to x."""
    parameter = scalar(parameter)
    if parameter is None or parameter.ndim == 0:
        return parameter
    if parameter.ndim > 1:
        raise ModelError(f"scales of shape {parameter.shape} need a block_size")
    place = axis_of(axis, x.ndim)
    return parameter.reshape(tuple(parameter.size if i == place else 1 for i in range(x.ndim)))


def _in_blocks(parameter: Array, x: Array, axis: int, block_size: int, is_wide: bool) -> Array:
    """A parameter with a value per block of x, or per element if a block is partial or integers have over 8 bits."""
    place = axis_of(axis, x.ndim)
    size, count = x.shape[place], -(-x.shape[place] // block_size)
    shape = tuple(count if i == place else each for i, each in enumerate(x.shape))
    if parameter.shape != shape:
        text = f"a scale or zero point has the shape {parameter.shape}, expected {shape}"
        raise ModelError(f"{text} for blocks of {block_size} along axis {axis} of {x.shape}")
    if size == count * block_size and not is_wide:
        return parameter
    library: Any = np if isinstance(parameter, np.ndarray) else jnp
    return library.take(parameter, np.arange(size) // block_size, place)


def _fitted(parameter: Array | None, x: Array, axis: int, block_size: int, dtype: Any) -> Array | None:
    """A scale or zero point of x as DirectML's operators take it, with blocks or without."""
    if parameter is None or block_size == 0:
        return _beside(parameter, x, axis)
    return _in_blocks(parameter, x, axis, block_size, jnp.dtype(dtype).itemsize > 1)


def _is_blocked(dtype: Any, block_size: int) -> bool:
    """Whether to use DirectML's operators with blocks; only these operators have 4-bit types."""
    return jnp.dtype(dtype) in NIBBLES or (block_size > 0 and jnp.dtype(dtype).itemsize == 1)


def to_integers(
    x: Array, scale: Array, zero_point: Array | None, *, axis: int, block_size: int = 0, dtype: Any
) -> Array:  # fmt: skip
    """Quantizes x to 4, 8 or 16 bits, with one scale, one for each index along an axis, or one for each block."""
    if 0 in x.shape:
        return jnp.zeros(x.shape, dtype)
    rows = x.reshape(x.shape or (1,))
    scale, zero_point = (_fitted(each, rows, axis, block_size, dtype) for each in (scale, zero_point))
    if _is_blocked(dtype, block_size):
        zero_point = np.zeros((), dtype) if zero_point is None else zero_point
        return quantize(rows, scale, zero_point).reshape(x.shape)
    level = FeatureLevel.JAXDML
    return element_wise_quantize_linear(
        rows, scale, zero_point, output_dtype=dtype, feature_level=level
    ).reshape(x.shape)  # fmt: skip


def to_floats(x: Array, scale: Array, zero_point: Array | None, *, axis: int, block_size: int = 0) -> Array:
    """Dequantizes x of 4, 8, 16 or 32 bits, with one scale, one for each index along an axis, or one for each block."""
    if 0 in x.shape:
        return jnp.zeros(x.shape, scale.dtype)
    rows = x.reshape(x.shape or (1,))
    scale, zero_point = (_fitted(each, rows, axis, block_size, x.dtype) for each in (scale, zero_point))
    if _is_blocked(x.dtype, block_size):
        zero_point = np.zeros((), x.dtype) if zero_point is None else zero_point
        return dequantize(rows, scale, zero_point).reshape(x.shape)
    return element_wise_dequantize_linear(rows, scale, zero_point).reshape(x.shape)


def known_integers(
    x: np.ndarray, scale: Any, zero_point: Any, *, axis: int, block_size: int = 0, dtype: Any
) -> np.ndarray:  # fmt: skip
    """`to_integers` in NumPy, with the same bits, for arguments that `to_integers` allows."""
    scale, zero_point = (_fitted(each, x, axis, block_size, np.int32) for each in (scale, zero_point))
    steps = np.rint(_flushed(_flushed(x.astype(np.float32)) / _flushed(scale.astype(np.float32))))
    limits = rounding.limits_of(dtype)
    values = steps if zero_point is None else steps + zero_point.astype(np.float32)
    return np.clip(np.where(np.isnan(values), limits.min, values), limits.min, limits.max).astype(dtype)


def known_floats(
    x: np.ndarray, scale: Any, zero_point: Any, *, axis: int, block_size: int = 0
) -> np.ndarray:  # fmt: skip
    """`to_floats` in NumPy, with the same bits, for arguments that `to_floats` allows."""
    scale, zero_point = (_fitted(each, x, axis, block_size, np.int32) for each in (scale, zero_point))
    integers = x.astype(np.int64) - (0 if zero_point is None else zero_point.astype(np.int64))
    return (integers.astype(np.float32) * _flushed(scale.astype(np.float32))).astype(scale.dtype)


def _flushed(x: np.ndarray) -> np.ndarray:
    """x with float32 subnormals replaced by zeros of the same sign."""
    return np.where(np.abs(x) < np.finfo(np.float32).smallest_normal, np.copysign(np.float32(0), x), x)


def to_integers_by_range(x: Array) -> tuple[Array, Array, Array]:
    """Quantizes x to uint8 with the range of x; returns the integers, and scale and zero point as scalars.

    DirectML has no empty tensors; for an empty x the scale is 1, as in onnxruntime.
    """
    if 0 in x.shape:
        return jnp.zeros(x.shape, jnp.uint8), jnp.float32(1), jnp.uint8(0)
    y, scale, zero_point = dynamic_quantize_linear(x.reshape(x.shape or (1,)), output_dtype=jnp.uint8)
    return y.reshape(x.shape), scale.reshape(()), zero_point.reshape(())
