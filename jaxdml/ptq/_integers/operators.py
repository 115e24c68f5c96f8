"""Integer operators of quantized graphs beyond DirectML's own, and the operators of quantize and dequantize nodes."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.kernel_call import with_kernel
from jaxdml._arithmetic.native_elementwise import QUANTIZE_ROWS
from jaxdml._graph.graph import Operator
from jaxdml._operators.element_wise_quantize_linear import element_wise_quantize_linear
from jaxdml._operators.quantized_linear_average_pooling import quantized_linear_average_pooling
from jaxdml._quantized import directml
from jaxdml._quantized.kinds import DIRECTML, ONNXRUNTIME, QUANTIZED, prepared_matrix
from jaxdml._quantized.matrices import by_rows
from jaxdml._quantized.onnxruntime.lookup import looked_up
from jaxdml._quantized.onnxruntime.pooling import qlinear_average_pool, qlinear_global_average_pool
from jaxdml.ptq._build.operators import FLOAT_OPERATORS, equation
from jaxdml.ptq._grids.ranges import scale_and_zero_point

Array = Any
Sizes = Sequence[int]
Pairs = Sequence[tuple[int, int]]


def as_images(x: Array, axes: Sizes) -> tuple[Array, tuple[Any, ...]]:
    """x as [N, C, H, W] with the elements of `axes` along H and W; also returns the sizes of all other axes."""
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    sizes = tuple(x.shape[axis] for axis in kept)
    space = [x.shape[axis] for axis in axes]
    space = [*space, 1] if len(space) == 1 else space if len(space) == 2 else [math.prod(space), 1]
    images = lax.transpose(x, (*kept, *axes)) if (*kept, *axes) != tuple(range(x.ndim)) else x
    return images.reshape(*(sizes[:1] or (1,)), math.prod(sizes[1:]), *space), sizes


def _directml_pool(x: Array, *parameters: Array, window: Sizes, strides: Sizes, padding: Pairs,
                   include_padding: bool) -> Array:  # fmt: skip
    start, end = zip(*padding, strict=True)
    return quantized_linear_average_pooling(
        x, *parameters, window_size=window, strides=strides, start_padding=start, end_padding=end,
        include_padding=include_padding,
    )  # fmt: skip


def _directml_global_pool(x: Array, *parameters: Array) -> Array:
    return quantized_linear_average_pooling(x, *parameters, window_size=x.shape[2:])


def _onnxruntime_pool(x: Array, *parameters: Array, include_padding: bool, **options: Any) -> Array:
    return qlinear_average_pool(x, *parameters, count_include_pad=include_padding, **options)


def quantized_mean(x: Array, *parameters: Array, axes: Sizes, pool: Callable[..., Array]) -> Array:
    """Quantized means over axes of quantized x, by average pooling with a window as large as the image.

    The parameters are the scale and zero point of x, then the scale and zero point of the means.
    """
    images, sizes = as_images(x, axes)
    return pool(images, *map(directml.scalar, parameters)).reshape(sizes)


def pooled_axes(window: Sizes, strides: Sizes, padding: Pairs) -> list[int]:
    """The axes along which windows have several elements, a stride or padding."""
    return [i for i, each in enumerate(zip(window, strides, padding, strict=True)) if each != (1, 1, (0, 0))]


def window_of_images(axes: Sizes, window: Sizes, strides: Sizes, padding: Pairs) -> dict[str, Any]:
    """The options of windows over `axes` as options for the two spatial dimensions of `as_images`."""
    window, strides = ([*(each[i] for i in axes), 1][:2] for each in (window, strides))
    return {"window": window, "strides": strides, "padding": ([*(tuple(padding[i]) for i in axes), (0, 0)])[:2]}


def quantized_average(
    x: Array, *parameters: Array, window: Sizes, strides: Sizes, padding: Pairs, include_padding: bool,
    pool: Callable[..., Array],
) -> Array:  # fmt: skip
    """Quantized means over windows of quantized x; parameters as for `quantized_mean`."""
    axes = pooled_axes(window, strides, padding)
    images, sizes = as_images(x, axes)
    options = window_of_images(axes, window, strides, padding)
    y = pool(images, *map(directml.scalar, parameters), include_padding=include_padding, **options)
    kept = [i for i in range(x.ndim) if i not in axes]
    y = y.reshape(*sizes, *y.shape[2 : 2 + len(axes)])
    return lax.transpose(y, np.argsort([*kept, *axes]))


def integer_padding(x: Array, zero_point: Array, *, config: Sequence[tuple[int, int, int]]) -> Array:
    """Pads x with its zero point."""
    return lax.pad(x, jnp.asarray(zero_point, x.dtype).reshape(()), config)


def dynamic_product(
    a: Array, b: Array, b_scale: Array | None = None, bias: Array | None = None, *, alpha: float = 1.0, rows: int = 1
) -> Array:
    """alpha times the float product of `a` and `b`; each row of float `a` is quantized to uint8 with its own range.

    `b` is int8 with b_scale. If b_scale is None, `b` is float, and each column is quantized to int8 with its own range.
    """
    of_b, b_scale = _by_range(b, -2, np.int8, symmetric=True)[:2] if b_scale is None else (b, b_scale)
    b_scale = b_scale * np.float32(alpha) if alpha != 1.0 else b_scale

    def multiply(a: Array) -> Array:
        of_a, a_scale, a_zero_point = quantized_rows(a.astype(np.float32))
        return directml.float_product(of_a, of_b, a_scale, b_scale, a_zero_point, None, bias)

    # Prepared weights support only a single product of all rows.
    return by_rows(multiply, a, rows if b.ndim > 2 else a.ndim - 1)


@with_kernel(QUANTIZE_ROWS)
def quantized_rows(x: Array) -> tuple[Array, Array, Array]:
    """Quantizes each row of float32 x to uint8 with its own range; scales and zero points are [..., 1]."""
    return _by_range(x, -1, np.uint8, symmetric=False)


def _by_range(x: Array, axis: int, dtype: Any, *, symmetric: bool) -> tuple[Array, Array, Array]:
    """Quantizes each vector of x along an axis with its own range; scales and zero points have size 1 on that axis."""
    x = x.astype(np.float32)
    has_nan = jnp.any(x != x, axis, keepdims=True)  # the extremes of XLA's kernels for large arrays ignore NaN
    ends = jnp.min(x, axis, keepdims=True), jnp.max(x, axis, keepdims=True)
    least, greatest = (jnp.where(has_nan, np.float32(np.nan), end) for end in ends)
    scale, zero_point = scale_and_zero_point(least, greatest, dtype, symmetric=symmetric)
    parameters = (jnp.broadcast_to(each, x.shape) for each in (scale, zero_point))
    return element_wise_quantize_linear(x, *parameters), scale, zero_point


def _of_rows(multiply: Callable[..., Array]) -> Callable[..., Array]:
    """Extends a product of integers to a left operand with several axes of rows."""

    def multiplied(a: Array, *others: Array | None, rows: int = 1) -> Array:
        return by_rows(lambda a: multiply(a, *others), a, rows)

    return multiplied


# The tables ----------------------------------------------------------------------------------------------------------


def _quantize(x: Array, scale: Array, zero_point: Array, *, axis: int = 1) -> Array:
    return directml.to_integers(x.astype(np.float32), scale, zero_point, axis=axis, dtype=zero_point.dtype)


def _dequantize(x: Array, scale: Array, zero_point: Array, *, axis: int = 1, block_size: int = 0) -> Array:
    return directml.to_floats(x, scale, zero_point, axis=axis, block_size=block_size)


QUANTIZE = Operator("quantize", _quantize, kind="quantize_linear")
DEQUANTIZE = Operator("dequantize", _dequantize, kind="dequantize_linear")
TABLE = Operator("table", lambda x, table: looked_up(x, table), is_quantized=True)
DYNAMIC = Operator(
    "matrix_multiply_integer_to_float", dynamic_product, kind="dynamic_product", prepare={(1,): prepared_matrix},
    is_quantized=True,
)  # fmt: skip
_BY_NAME = {each.name: each for each in (*FLOAT_OPERATORS, QUANTIZE, DEQUANTIZE, TABLE, DYNAMIC)}
_quantized = partial(Operator, is_quantized=True)
_PAGES = {
    "add": "element_wise_quantized_linear_add",
    "conv": "quantized_linear_convolution",
    "conv_to_float": "convolution_integer",
    "dot": "quantized_linear_matrix_multiply",
    "dot_of_blocks": "matrix_multiply_blocks",
    "dot_to_float": "matrix_multiply_integer_to_float",
    "gemm": "quantized_linear_matrix_multiply",
}
_POOLS: Mapping[str, tuple[str, Callable[..., Array], Callable[..., Array]]] = {
    DIRECTML: ("quantized_linear_average_pooling", _directml_global_pool, _directml_pool),
    ONNXRUNTIME: ("QLinearAveragePool", qlinear_global_average_pool, _onnxruntime_pool),
}


def _integers(numerics: str) -> Mapping[str, Operator]:
    """The quantized operators by kind, with the formulas of DirectML or of ONNX Runtime."""
    named = {kind: replace(each, name=f"quantized {kind}") for kind, each in QUANTIZED[DIRECTML].items()}
    named |= {kind: replace(named[kind], name=name) for kind, name in _PAGES.items()}
    if numerics == ONNXRUNTIME:
        named["add"] = QUANTIZED[ONNXRUNTIME]["add"]
    pool, of_image, of_windows = _POOLS[numerics]
    return named | {
        kind: replace(named[kind], function=_of_rows(named[kind].function)) for kind in ("dot", "dot_to_float")
    } | {
        "mean": _quantized(pool, partial(quantized_mean, pool=of_image)),
        "pad": _quantized("pad", integer_padding),
        "window_mean": _quantized(pool, partial(quantized_average, pool=of_windows)),
    }  # fmt: skip


INTEGERS: Mapping[str, Mapping[str, Operator]] = {numerics: _integers(numerics) for numerics in QUANTIZED}


def operator_named(name: str, kind: str | None, *, is_equation: bool) -> Operator:
    """The operator that a file names.

    Raises:
      KeyError: if there is no operator of this name.
    """
    return equation(name, kind) if is_equation else _BY_NAME[name]
