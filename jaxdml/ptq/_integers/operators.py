"""Integer operators of quantized graphs beyond DirectML's own, and the operators of quantize and dequantize nodes."""

import math
from collections.abc import Callable, Mapping, Sequence
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
from jaxdml.ptq._build.operators import FLOAT_OPERATORS, by_rows, equation
from jaxdml.ptq._grids.ranges import scale_and_zero_point

Array = Any
Sizes = Sequence[int]
Pairs = Sequence[tuple[int, int]]


def _as_images(x: Array, axes: Sizes) -> tuple[Array, tuple[Any, ...]]:
    """x as [N, C, H, W] with the elements of `axes` along H and W; also returns the sizes of all other axes."""
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    sizes = tuple(x.shape[axis] for axis in kept)
    space = [x.shape[axis] for axis in axes]
    space = [*space, 1] if len(space) == 1 else space if len(space) == 2 else [math.prod(space), 1]
    images = lax.transpose(x, (*kept, *axes)) if (*kept, *axes) != tuple(range(x.ndim)) else x
    return images.reshape(*(sizes[:1] or (1,)), math.prod(sizes[1:]), *space), sizes


def quantized_mean(
    x: Array, x_scale: Array, x_zero_point: Array, y_scale: Array, y_zero_point: Array, *, axes: Sizes
) -> Array:
    """Quantized means over axes of quantized x, by average pooling with a window as large as the image."""
    images, sizes = _as_images(x, axes)
    parameters = map(directml.scalar, (x_scale, x_zero_point, y_scale, y_zero_point))
    return quantized_linear_average_pooling(images, *parameters, window_size=images.shape[2:]).reshape(sizes)


def quantized_average(
    x: Array, x_scale: Array, x_zero_point: Array, y_scale: Array, y_zero_point: Array, *, window: Sizes,
    strides: Sizes, padding: Pairs, include_padding: bool,
) -> Array:  # fmt: skip
    """Quantized means over windows of quantized x."""
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


def integer_padding(x: Array, zero_point: Array, *, config: Sequence[tuple[int, int, int]]) -> Array:
    """Pads x with its zero point."""
    return lax.pad(x, jnp.asarray(zero_point, x.dtype).reshape(()), config)


def convolution_to_float(
    x: Array, x_scale: Array, x_zero_point: Array, w: Array, w_scale: Array, w_zero_point: Array,
    bias: Array | None = None, *, strides: Sizes, dilations: Sizes, padding: Pairs, group_count: int,
) -> Array:  # fmt: skip
    """Convolution of quantized [N, C, *spatial] to floats; bias is int32 [O] with the scale x_scale * w_scale."""
    options: dict[str, Any] = {"strides": strides, "dilations": dilations, "padding": padding}
    y = directml.integer_convolution(x, w, x_zero_point, w_zero_point, group_count=group_count, **options)
    if bias is not None:
        y = y + bias.reshape(-1, *(1,) * (y.ndim - 2))[None]
    scale = directml.scalar(x_scale) * directml.scalar(w_scale)
    return directml.to_floats(y, scale, None, axis=1)


def dynamic_product(
    a: Array, b: Array, b_scale: Array | None = None, bias: Array | None = None, *, alpha: float = 1.0, rows: int = 1
) -> Array:
    """alpha times the product of `a` and `b`, in floats; each row of float `a` is quantized to uint8 with its range.

    `b` is int8 with b_scale. If b_scale is None, `b` is float, and each column is quantized to int8 with its own range.
    """
    of_b, b_scale = _by_range(b, -2, np.int8, symmetric=True)[:2] if b_scale is None else (b, b_scale)
    b_scale = b_scale * np.float32(alpha) if alpha != 1.0 else b_scale

    def multiply(a: Array) -> Array:
        of_a, a_scale, a_zero_point = _by_range(a, -1, np.uint8, symmetric=False)
        return directml.float_product(of_a, of_b, a_scale, b_scale, a_zero_point, None, bias)

    # Prepared weights work only in a single product of all rows.
    return by_rows(multiply, a, rows if b.ndim > 2 else a.ndim - 1)


def _by_range(x: Array, axis: int, dtype: Any, *, symmetric: bool) -> tuple[Array, Array, Array]:
    """Quantizes each vector of x along an axis with its own range; scales and zero points have size 1 on that axis."""
    x = x.astype(np.float32)
    least, greatest = jnp.min(x, axis, keepdims=True), jnp.max(x, axis, keepdims=True)
    scale, zero_point = scale_and_zero_point(least, greatest, dtype, symmetric=symmetric)
    parameters = (jnp.broadcast_to(each, x.shape) for each in (scale, zero_point))
    return element_wise_quantize_linear(x, *parameters), scale, zero_point


def _of_rows(multiply: Callable[..., Array]) -> Callable[..., Array]:
    """Lets a product of integers take a left operand with several axes of rows."""

    def multiplied(a: Array, *others: Array | None, rows: int = 1) -> Array:
        return by_rows(lambda a: multiply(a, *others), a, rows)

    return multiplied


# The tables ----------------------------------------------------------------------------------------------------------


def _quantize(x: Array, scale: Array, zero_point: Array, *, axis: int = 1) -> Array:
    return directml.to_integers(x.astype(np.float32), scale, zero_point, axis=axis, dtype=zero_point.dtype)


def _dequantize(x: Array, scale: Array, zero_point: Array, *, axis: int = 1) -> Array:
    return directml.to_floats(x, scale, zero_point, axis=axis)


QUANTIZE = Operator("quantize", _quantize, kind="quantize_linear")
DEQUANTIZE = Operator("dequantize", _dequantize, kind="dequantize_linear")
TABLE = Operator("table", lambda x, table: looked_up(x, table), is_quantized=True)
DYNAMIC = Operator(
    "matrix_multiply_integer_to_float", dynamic_product, kind="float_product", prepare={1: prepared_matrix},
    is_quantized=True,
)  # fmt: skip
_BY_NAME = {each.name: each for each in (*FLOAT_OPERATORS, QUANTIZE, DEQUANTIZE, TABLE, DYNAMIC)}
_quantized = partial(Operator, is_quantized=True)
_PAGES = {
    "add": "element_wise_quantized_linear_add",
    "conv": "quantized_linear_convolution",
    "dot": "quantized_linear_matrix_multiply",
    "dot_to_float": "matrix_multiply_integer_to_float",
    "gemm": "quantized_linear_matrix_multiply",
}
_NAMED = {kind: replace(each, name=_PAGES.get(kind, f"quantized {kind}")) for kind, each in QUANTIZED[DIRECTML].items()}
INTEGERS: Mapping[str, Operator] = _NAMED | {
    kind: replace(_NAMED[kind], function=_of_rows(_NAMED[kind].function)) for kind in ("dot", "dot_to_float")
} | {
    "conv_to_float": _quantized(
        "convolution_integer", convolution_to_float, kind="float_product", uniform=(5,),
        prepare=QUANTIZED[DIRECTML]["conv"].prepare,
    ),
    "mean": _quantized("quantized_linear_average_pooling", quantized_mean),
    "pad": _quantized("pad", integer_padding),
    "window_mean": _quantized("quantized_linear_average_pooling", quantized_average),
}  # fmt: skip


def operator_named(name: str, kind: str | None, *, is_equation: bool) -> Operator:
    """The operator that a file names.

    Raises:
      KeyError: if there is no operator of this name.
    """
    return equation(name, kind) if is_equation else _BY_NAME[name]
