"""The quantized operators of a graph as DirectML has them: inputs in ONNX's order, for tensors of any shape.

Where a node's tensors are more general than DirectML's operator allows, such as a product of more than four dimensions,
they are reshaped to what it allows.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdml._arithmetic.prepared import PreparedMatrix, matrix
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._graph.windows import Pairs, check_convolution, explicit_padding
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
from jaxdml.errors import ModelError

Array = Any
NIBBLES = (jnp.dtype("int4"), jnp.dtype("uint4"))


def scalar(parameter: Array) -> Array:
    """A scale or zero point of one element without dimensions; another, and None, as it is."""
    return parameter.reshape(()) if parameter is not None and parameter.size == 1 else parameter


def offset(zero_point: Array) -> Array:
    """A zero point as DirectML's operators take it: None where it is known to be 0, which costs nothing."""
    if isinstance(zero_point, np.ndarray) and not zero_point.any():
        return None
    return scalar(zero_point)


# Contractions --------------------------------------------------------------------------------------------------------


def _convolution_options(x: Array, w: Array, strides: Any, dilations: Any, padding: Any) -> dict[str, Any]:
    pairs = explicit_padding(padding, x.shape[2:], w.shape[2:], strides, dilations)
    start, end = zip(*pairs, strict=True)
    return {"strides": strides, "dilations": dilations, "start_padding": start, "end_padding": end}


def convolution(
    x: Array, x_scale: Array, x_zero_point: Array, w: Array, w_scale: Array, w_zero_point: Array, y_scale: Array,
    y_zero_point: Array, bias: Array | None = None, *,
    strides: int | Sequence[int] = 1, dilations: int | Sequence[int] = 1, padding: Pairs | int | str = 0,
    group_count: int = 1, kernel_shape: Sequence[int] | None = None,
) -> Array:  # fmt: skip
    """Convolution of quantized [N, C, *spatial], quantized."""
    check_convolution(x, w, kernel_shape)
    of_x, of_w = (scalar(x_scale), offset(x_zero_point)), (scalar(w_scale), offset(w_zero_point))
    of_y = scalar(y_scale), scalar(y_zero_point)
    options = _convolution_options(x, w, strides, dilations, padding)
    return quantized_linear_convolution(x, *of_x, w, *of_w, bias, *of_y, group_count=group_count, **options)


def integer_convolution(
    x: Array, w: Array, x_zero_point: Array | None = None, w_zero_point: Array | None = None, *,
    strides: int | Sequence[int] = 1, dilations: int | Sequence[int] = 1, padding: Pairs | int | str = 0,
    group_count: int = 1, kernel_shape: Sequence[int] | None = None,
) -> Array:  # fmt: skip
    """Convolution of quantized [N, C, *spatial], in int32."""
    check_convolution(x, w, kernel_shape)
    options = _convolution_options(x, w, strides, dilations, padding)
    return convolution_integer(x, offset(x_zero_point), w, offset(w_zero_point), group_count=group_count, **options)


def _per_row(parameter: Array | None) -> Array | None:
    """A parameter of A, after `scalar` or `offset`: [M] as [M, 1]."""
    return parameter[:, None] if parameter is not None and parameter.ndim == 1 else parameter


class _Matrices:
    """Operands of a product as matrices that DirectML's products take, and the way back to the product's shape."""

    def __init__(self, a: Array, b: Array, is_one_scale: bool) -> None:
        self._dropped = [axis for axis, x in ((-2, a), (-1, b)) if x.ndim == 1]
        a = a[None] if a.ndim == 1 else a
        b = b[:, None] if b.ndim == 1 else b
        if b.ndim == 2 and is_one_scale:  # one product of all rows, which is faster and takes prepared weights
            self._shape = (*a.shape[:-1], b.shape[-1])
            self.a, self.b = a.reshape(math.prod(a.shape[:-1]), a.shape[-1]), b
            return
        b = matrix(b) if isinstance(b, PreparedMatrix) else b
        batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        self._shape = (*batch, a.shape[-2], b.shape[-1])
        merged = batch if len(batch) <= 2 else (math.prod(batch),)
        self.a, self.b = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])).reshape(*merged, *x.shape[-2:]) for x in (a, b))

    def restored(self, product: Array) -> Array:
        """The product in the shape that ONNX gives it."""
        product = product.reshape(self._shape)
        return jnp.squeeze(product, tuple(self._dropped)) if self._dropped else product


def product(
    a: Array, a_scale: Array, a_zero_point: Array, b: Array, b_scale: Array, b_zero_point: Array, y_scale: Array,
    y_zero_point: Array,
) -> Array:  # fmt: skip
    """Matrix product of quantized a and b, quantized."""
    of_a = _per_row(scalar(a_scale)), _per_row(offset(a_zero_point))
    of_b, of_y = (scalar(b_scale), offset(b_zero_point)), (scalar(y_scale), scalar(y_zero_point))
    matrices = _Matrices(a, b, all(x is None or x.ndim == 0 for x in of_a))
    return matrices.restored(quantized_linear_matrix_multiply(matrices.a, *of_a, matrices.b, *of_b, *of_y))


def integer_product(
    a: Array, b: Array, a_zero_point: Array | None = None, b_zero_point: Array | None = None
) -> Array:  # fmt: skip
    """Matrix product of quantized a and b, in int32."""
    of_a, of_b = _per_row(offset(a_zero_point)), offset(b_zero_point)
    matrices = _Matrices(a, b, of_a is None or of_a.ndim == 0)
    return matrices.restored(matrix_multiply_integer(matrices.a, of_a, matrices.b, of_b))


def float_product(
    a: Array, b: Array, a_scale: Array, b_scale: Array, a_zero_point: Array | None = None,
    b_zero_point: Array | None = None, bias: Array | None = None,
) -> Array:  # fmt: skip
    """Matrix product of quantized a and b, in floats."""
    of_a, of_b = (_per_row(scalar(a_scale)), _per_row(offset(a_zero_point))), (scalar(b_scale), offset(b_zero_point))
    matrices = _Matrices(a, b, all(x is None or x.ndim == 0 for x in of_a))
    return matrices.restored(matrix_multiply_integer_to_float(matrices.a, *of_a, matrices.b, *of_b, bias))


# Element by element --------------------------------------------------------------------------------------------------


def add(
    a: Array, a_scale: Array, a_zero_point: Array | None, b: Array, b_scale: Array, b_zero_point: Array | None,
    y_scale: Array, y_zero_point: Array | None = None,
) -> Array:  # fmt: skip
    """Sum of quantized a and b, which broadcast, quantized."""
    shape = jnp.broadcast_shapes(a.shape, b.shape)
    a, b = (jnp.broadcast_to(x, shape or (1,)) for x in (a, b))
    parameters = map(scalar, (a_scale, a_zero_point, b_scale, b_zero_point, y_scale, y_zero_point))
    a_scale, a_zero_point, b_scale, b_zero_point, *of_y = parameters
    return element_wise_quantized_linear_add(
        a, a_scale, a_zero_point, b, b_scale, b_zero_point, *of_y
    ).reshape(shape)  # fmt: skip


def average_pool(
    x: Array, x_scale: Array, x_zero_point: Array | None, y_scale: Array, y_zero_point: Array | None = None, *,
    window: Sequence[int], strides: int | Sequence[int] = 1, dilations: int | Sequence[int] = 1,
    padding: Pairs | int | str = 0, count_include_pad: int = 0,
) -> Array:  # fmt: skip
    """Means over windows of quantized [N, C, *spatial], quantized."""
    pairs = explicit_padding(padding, x.shape[2:], window, strides, dilations)
    start, end = zip(*pairs, strict=True)
    return quantized_linear_average_pooling(
        x, *map(scalar, (x_scale, x_zero_point, y_scale, y_zero_point)), window_size=tuple(window), strides=strides,
        dilations=dilations, start_padding=start, end_padding=end, include_padding=bool(count_include_pad),
    )  # fmt: skip


def global_average_pool(
    x: Array, x_scale: Array, x_zero_point: Array | None, y_scale: Array, y_zero_point: Array | None = None
) -> Array:
    """Means over the whole space of quantized [N, C, *spatial], quantized."""
    return average_pool(x, x_scale, x_zero_point, y_scale, y_zero_point, window=x.shape[2:])


# Between floats and integers -----------------------------------------------------------------------------------------


def _beside(parameter: Array | None, x: Array, axis: int) -> Array | None:
    """A parameter that broadcasts to x: one element, or one for each place along an axis; blocks stay as they are."""
    parameter = scalar(parameter)
    if parameter is None or parameter.ndim != 1 or x.ndim == 1:
        return parameter
    return parameter.reshape(tuple(parameter.size if i == axis % x.ndim else 1 for i in range(x.ndim)))


def _has_blocks(scale: Array, x: Array, block_size: int) -> bool:
    if scale.ndim > 1 and scale.size > 1 and (scale.ndim != x.ndim or block_size < 1):
        raise ModelError(f"scales of shape {scale.shape} need a block_size, and as many dimensions as {x.shape}")
    return scale.ndim > 1 and scale.ndim == x.ndim


def _in_blocks(x: Array, scale: Array, zero_point: Array, axis: int, block_size: int) -> tuple[Array, Array]:
    """Parameters with x's number of dimensions, as DirectML's operators with blocks take them; the last may be cut."""
    if not _has_blocks(scale, x, block_size):
        sizes = tuple(scale.size if i == axis % x.ndim else 1 for i in range(x.ndim))
        return scale.reshape(sizes), zero_point.reshape(sizes)
    size, is_wide = x.shape[axis], jnp.dtype(zero_point.dtype).itemsize > 1
    if size % scale.shape[axis] == 0 and not is_wide:
        return scale, zero_point
    places = np.arange(size) // block_size
    return jnp.take(scale, places, axis), jnp.take(zero_point, places, axis)


def to_integers(
    x: Array, scale: Array, zero_point: Array | None, *, axis: int, block_size: int = 0, dtype: Any
) -> Array:  # fmt: skip
    """Quantizes x to 4, 8 or 16 bits: by one scale, by one for each place along an axis, or by blocks."""
    zero_point = scalar(np.zeros((), dtype) if zero_point is None else zero_point)
    rows = x.reshape(x.shape or (1,))
    if _has_blocks(scale, x, block_size) or dtype in NIBBLES:
        scale, zero_point = _in_blocks(rows, scale, jnp.broadcast_to(zero_point, scale.shape), axis, block_size)
        if dtype.itemsize == 1:
            return quantize(rows, scale, zero_point).reshape(x.shape)
    parameters = _beside(scale, rows, axis), _beside(zero_point, rows, axis)
    level = FeatureLevel.JAXDML
    return element_wise_quantize_linear(rows, *parameters, feature_level=level).reshape(x.shape)


def to_floats(x: Array, scale: Array, zero_point: Array | None, *, axis: int, block_size: int = 0) -> Array:
    """Dequantizes x of 4, 8, 16 or 32 bits: by one scale, by one for each place along an axis, or by blocks."""
    rows = x.reshape(x.shape or (1,))
    if _has_blocks(scale, x, block_size) or x.dtype in NIBBLES:
        zero_point = scalar(np.zeros((), x.dtype) if zero_point is None else zero_point)
        scale, zero_point = _in_blocks(rows, scale, jnp.broadcast_to(zero_point, scale.shape), axis, block_size)
        if x.dtype.itemsize == 1:
            return dequantize(rows, scale, zero_point).reshape(x.shape)
    parameters = _beside(scale, rows, axis), _beside(zero_point, rows, axis)
    return element_wise_dequantize_linear(rows, *parameters).reshape(x.shape)


def to_integers_by_range(x: Array) -> tuple[Array, Array, Array]:
    """x in uint8 steps of a scale that its own range gives, the scale and the zero point without dimensions."""
    y, scale, zero_point = dynamic_quantize_linear(x.reshape(x.shape or (1,)), output_dtype=jnp.uint8)
    return y.reshape(x.shape), scale.reshape(()), zero_point.reshape(())
