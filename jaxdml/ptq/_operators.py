"""The operators of a function's graph, in floats, and those that stand for them on integers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._graph.graph import Operator
from jaxdml._operators.element_wise_quantize_linear import element_wise_quantize_linear
from jaxdml._operators.quantized_linear_average_pooling import quantized_linear_average_pooling
from jaxdml._quantized import directml
from jaxdml._quantized.kinds import DIRECTML, QUANTIZED, prepared_matrix
from jaxdml._quantized.onnxruntime.lookup import looked_up
from jaxdml.ptq._equations import run
from jaxdml.ptq._ranges import scale_and_zero_point

Array = Any
Sizes = Sequence[int]
Pairs = Sequence[tuple[int, int]]


def _wide(*arrays: Array) -> tuple[Array, ...]:
    """Floats as float32, in which the graph computes, or as float64 if one of them is."""
    is_double = any(x.dtype == np.float64 for x in arrays)
    return tuple(x.astype(np.float64 if is_double else np.float32) for x in arrays)


# In floats -----------------------------------------------------------------------------------------------------------


def _convolution(x: Array, w: Array, bias: Array | None = None, *, strides: Sizes, dilations: Sizes, padding: Pairs,
                 group_count: int) -> Array:  # fmt: skip
    """Convolution of [N, C, *spatial] with [O, I, *kernel]; bias is [O]."""
    x, w = _wide(x, w)
    y = lax.conv_general_dilated(x, w, strides, padding, rhs_dilation=dilations, feature_group_count=group_count)
    return y if bias is None else y + bias.astype(y.dtype).reshape(-1, *(1,) * (y.ndim - 2))[None]


def _product(a: Array, b: Array, *, alpha: float = 1.0) -> Array:
    """alpha times the matrix product of a and b."""
    y = jnp.matmul(*_wide(a, b))
    return y if alpha == 1.0 else y * np.asarray(alpha, y.dtype)


def _sum(x: Array, y: Array) -> Array:
    x, y = _wide(x, y)
    return lax.add(x, lax.expand_dims(y, range(x.ndim - y.ndim)) if y.ndim < x.ndim else y)


def _clip(x: Array, *, min: float | None = None, max: float | None = None) -> Array:
    x = x if min is None else lax.max(x, np.asarray(min, x.dtype))
    return x if max is None else lax.min(x, np.asarray(max, x.dtype))


def _merged(x: Array, *, count: int) -> Array:
    """x with so many last dimensions as one."""
    return x.reshape(*x.shape[:-count], math.prod(x.shape[-count:]))


def _split(x: Array, *, sizes: Sizes) -> Array:
    """x with its last dimension as several."""
    return x.reshape(*x.shape[:-1], *sizes)


def _with_ones(x: Array, *, count: int) -> Array:
    """Matrices with so many axes of one element before their rows."""
    return x.reshape(*x.shape[:-2], *(1,) * count, *x.shape[-2:])


def _largest(x: Array, *, window: Sizes, strides: Sizes, padding: Pairs, dilations: Sizes) -> Array:
    """The largest number of each window, found along one dimension after the other."""
    least = -np.inf if jnp.issubdtype(x.dtype, jnp.floating) else np.iinfo(x.dtype).min
    for axis, (size, stride, pair) in enumerate(zip(window, strides, padding, strict=True)):
        if (size, stride, *pair) != (1, 1, 0, 0):
            along = partial(_along, x.ndim, axis)
            x = lax.reduce_window(
                x, np.asarray(least, x.dtype), lax.max, along(size, 1), along(stride, 1), along(pair, (0, 0)),
                window_dilation=along(dilations[axis], 1),
            )  # fmt: skip
    return x


def _along(rank: int, axis: int, this: Any, other: Any) -> tuple[Any, ...]:
    """For each axis one value, and for one axis this."""
    return tuple(this if i == axis else other for i in range(rank))


def _average(x: Array, *, window: Sizes, strides: Sizes, padding: Pairs, include_padding: bool) -> Array:
    """The mean of each window."""
    (x,) = _wide(x)
    zero = np.zeros((), x.dtype)
    sums = lax.reduce_window(x, zero, lax.add, window, strides, padding)
    if include_padding:
        return sums / np.asarray(math.prod(window), x.dtype)
    return sums / lax.reduce_window(jnp.ones_like(x), zero, lax.add, window, strides, padding)


def _mean(x: Array, *, axes: Sizes) -> Array:
    return jnp.mean(_wide(x)[0], axis=tuple(axes))


def _padded(x: Array, *, pairs: Pairs) -> Array:
    return lax.pad(x, np.zeros((), x.dtype), [(low, high, 0) for low, high in pairs])


def _joined(*xs: Array, axis: int) -> Array:
    return lax.concatenate(_wide(*xs), axis)


# On integers ---------------------------------------------------------------------------------------------------------


def _as_images(x: Array, axes: Sizes) -> tuple[Array, tuple[Any, ...]]:
    """x as [N, C, H, W], H and W being the axes, and the sizes of the others."""
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    sizes = tuple(x.shape[axis] for axis in kept)
    space = [x.shape[axis] for axis in axes]
    space = [*space, 1] if len(space) == 1 else space if len(space) == 2 else [math.prod(space), 1]
    images = lax.transpose(x, (*kept, *axes)) if (*kept, *axes) != tuple(range(x.ndim)) else x
    return images.reshape(*(sizes[:1] or (1,)), math.prod(sizes[1:]), *space), sizes


def quantized_mean(
    x: Array, x_scale: Array, x_zero_point: Array, y_scale: Array, y_zero_point: Array, *, axes: Sizes
) -> Array:
    """Means over axes of quantized x, quantized: those of whole images."""
    images, sizes = _as_images(x, axes)
    parameters = map(directml.scalar, (x_scale, x_zero_point, y_scale, y_zero_point))
    return quantized_linear_average_pooling(images, *parameters, window_size=images.shape[2:]).reshape(sizes)


def quantized_average(
    x: Array, x_scale: Array, x_zero_point: Array, y_scale: Array, y_zero_point: Array, *, window: Sizes,
    strides: Sizes, padding: Pairs, include_padding: bool,
) -> Array:  # fmt: skip
    """Means over windows of quantized x, quantized."""
    axes = [i for i in range(x.ndim) if (window[i], strides[i], *padding[i]) != (1, 1, 0, 0)]
    images, sizes = _as_images(x, axes)
    start, end = ([*(padding[i][j] for i in axes), 0][:2] for j in (0, 1))
    window, strides = ([*(each[i] for i in axes), 1][:2] for each in (window, strides))
    parameters = map(directml.scalar, (x_scale, x_zero_point, y_scale, y_zero_point))
    y = quantized_linear_average_pooling(
        images, *parameters, window_size=window, strides=strides, start_padding=start, end_padding=end,
        include_padding=include_padding,
    )  # fmt: skip
    kept = [i for i in range(x.ndim) if i not in axes]
    y = y.reshape(*sizes, *y.shape[2 : 2 + len(axes)])
    return lax.transpose(y, np.argsort([*kept, *axes]))


def integer_padding(x: Array, zero_point: Array, *, pairs: Pairs) -> Array:
    """x with its zero point around it."""
    return lax.pad(x, jnp.asarray(zero_point, x.dtype).reshape(()), [(low, high, 0) for low, high in pairs])


def convolution_to_float(
    x: Array, x_scale: Array, x_zero_point: Array, w: Array, w_scale: Array, w_zero_point: Array,
    bias: Array | None = None, *, strides: Sizes, dilations: Sizes, padding: Pairs, group_count: int,
) -> Array:  # fmt: skip
    """Convolution of quantized [N, C, *spatial] in floats; bias is [O], int32 in steps of x_scale times w_scale."""
    options: dict[str, Any] = {"strides": strides, "dilations": dilations, "padding": padding}
    y = directml.integer_convolution(x, w, x_zero_point, w_zero_point, group_count=group_count, **options)
    if bias is not None:
        y = y + bias.reshape(-1, *(1,) * (y.ndim - 2))[None]
    scale = directml.scalar(x_scale) * directml.scalar(w_scale)
    return directml.to_floats(y, scale, None, axis=1)


def dynamic_product(
    a: Array, b: Array, b_scale: Array | None = None, bias: Array | None = None, *, alpha: float = 1.0
) -> Array:
    """The product of floats a and b, in floats: each row of a is quantized to uint8 by its range.

    b is quantized by b_scale, or its floats are, to int8, by the range of each column; alpha multiplies the product.
    """
    of_a, a_scale, a_zero_point = _by_range(a, -1, np.uint8, symmetric=False)
    of_b, b_scale = _by_range(b, -2, np.int8, symmetric=True)[:2] if b_scale is None else (b, b_scale)
    b_scale = b_scale * np.float32(alpha) if alpha != 1.0 else b_scale
    if a.ndim == 2 or b.ndim > 2:
        return directml.float_product(of_a, of_b, a_scale, b_scale, a_zero_point, None, bias)
    # One product of all rows takes prepared weights.
    rows = math.prod(a.shape[:-1])
    of_a, a_scale, a_zero_point = (x.reshape(rows, x.shape[-1]) for x in (of_a, a_scale, a_zero_point))
    y = directml.float_product(of_a, of_b, a_scale, b_scale, a_zero_point, None, bias)
    return y.reshape(*a.shape[:-1], of_b.shape[-1])


def _by_range(x: Array, axis: int, dtype: Any, *, symmetric: bool) -> tuple[Array, Array, Array]:
    """Floats in steps of a scale for each vector along an axis, and scales and zero points, with one element there."""
    x = x.astype(np.float32)
    least, greatest = jnp.min(x, axis, keepdims=True), jnp.max(x, axis, keepdims=True)
    scale, zero_point = scale_and_zero_point(least, greatest, dtype, symmetric=symmetric)
    parameters = (jnp.broadcast_to(each, x.shape) for each in (scale, zero_point))
    return element_wise_quantize_linear(x, *parameters), scale, zero_point


# Their table ---------------------------------------------------------------------------------------------------------


def _quantize(x: Array, scale: Array, zero_point: Array, *, axis: int = 1) -> Array:
    return directml.to_integers(x.astype(np.float32), scale, zero_point, axis=axis, dtype=zero_point.dtype)


def _dequantize(x: Array, scale: Array, zero_point: Array, *, axis: int = 1) -> Array:
    return directml.to_floats(x, scale, zero_point, axis=axis)


def equation(name: str, kind: str | None = None) -> Operator:
    """An equation of the function, run as it is; its node's option is the equation, or its number."""
    return Operator(name, run, kind=kind)


TRANSPOSE = Operator("transpose", lambda x, *, permutation: lax.transpose(x, permutation), kind="mover")
MERGE = Operator("merge", _merged, kind="mover")
SPLIT = Operator("split", _split, kind="mover")
ONES = Operator("expand", _with_ones, kind="mover")
CONVOLUTION = Operator("convolution", _convolution, kind="conv")
PRODUCT = Operator("product", _product, kind="dot")
ADD = Operator("add", _sum, kind="add")
MULTIPLY = Operator("multiply", lambda x, y: lax.mul(*_wide(x, y)), kind="mul")
CLIP = Operator("clip", _clip, kind="clip")
MAX_POOL = Operator("max pooling", _largest, kind="max_pool")
AVERAGE_POOL = Operator("average pooling", _average, kind="window_mean")
MEAN = Operator("mean", _mean, kind="mean")
PAD = Operator("pad", _padded, kind="pad")
CONCATENATE = Operator("concatenate", _joined, kind="concat")
QUANTIZE = Operator("quantize", _quantize, kind="quantize_linear")
DEQUANTIZE = Operator("dequantize", _dequantize, kind="dequantize_linear")
TABLE = Operator("table", lambda x, table: looked_up(x, table), is_quantized=True)
DYNAMIC = Operator(
    "matrix_multiply_integer_to_float", dynamic_product, kind="float_product", prepare={1: prepared_matrix},
    is_quantized=True,
)  # fmt: skip
OPERATORS: Mapping[str, Operator] = {
    each.name: each
    for each in (
        TRANSPOSE, MERGE, SPLIT, ONES, CONVOLUTION, PRODUCT, ADD, MULTIPLY, CLIP, MAX_POOL, AVERAGE_POOL, MEAN, PAD,
        CONCATENATE, QUANTIZE, DEQUANTIZE, TABLE, DYNAMIC,
    )
}  # fmt: skip
_quantized = partial(Operator, is_quantized=True)
_PAGES = {
    "add": "element_wise_quantized_linear_add",
    "conv": "quantized_linear_convolution",
    "dot": "quantized_linear_matrix_multiply",
    "dot_to_float": "matrix_multiply_integer_to_float",
    "gemm": "quantized_linear_matrix_multiply",
}
INTEGERS: Mapping[str, Operator] = {
    kind: replace(each, name=_PAGES.get(kind, f"quantized {kind}")) for kind, each in QUANTIZED[DIRECTML].items()
} | {
    "conv_to_float": _quantized(
        "convolution_integer", convolution_to_float, kind="float_product", uniform=(5,),
        prepare=QUANTIZED[DIRECTML]["conv"].prepare,
    ),
    "mean": _quantized("quantized_linear_average_pooling", quantized_mean),
    "pad": _quantized("pad", integer_padding),
    "window_mean": _quantized("quantized_linear_average_pooling", quantized_average),
}  # fmt: skip
