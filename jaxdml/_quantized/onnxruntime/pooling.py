"""com.microsoft's QLinearAveragePool and QLinearGlobalAveragePool."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import rounding
from jaxdml._arithmetic.pooling import sums_of_images
from jaxdml._quantized.onnxruntime.values import dequantized, float32, packed, scale_of, zero_point_of
from jaxdml._quantized.windows import Pairs, explicit_padding, for_each
from jaxdml._shapes import output_extent, rounded_up_extent
from jaxdml.errors import ModelError

Array = jax.Array
UNROLLED = 64  # loops over windows of at most this many elements are unrolled


def qlinear_global_average_pool(
    x: Any, x_scale: Any, x_zero_point: Any | None, y_scale: Any, y_zero_point: Any | None = None, *,
    channels_last: int = 0,
) -> Array:  # fmt: skip
    """Global average pooling of 8-bit [N, C, *spatial], or [N, *spatial, C], with a quantized result.

    sat(rne(fl(sum * fl(x_scale / fl(y_scale * elements)))) + y_zero_point), with the exact sum of x - x_zero_point.
    ONNX Runtime rejects quotients below 2**-32, and quotients of 256 and above.
    """
    if channels_last:
        x = jnp.moveaxis(x, -1, 1)
    elements = _int32(math.prod(x.shape[2:]))
    total = sums_of_images(x) - zero_point_of(x_zero_point) * elements
    divisor = rounding.product(scale_of(y_scale), float32(elements))
    multiplier = rounding.quotient(scale_of(x_scale), divisor)
    y = rounding.saturate(float32(total) * multiplier, zero_point_of(y_zero_point), x.dtype)
    return jnp.moveaxis(y, 1, -1) if channels_last else y


def qlinear_average_pool(
    x: Any, x_scale: Any, x_zero_point: Any | None, y_scale: Any, y_zero_point: Any | None = None, *,
    window: Sequence[int], strides: int | Sequence[int] = 1, dilations: int | Sequence[int] = 1,
    padding: Pairs | int | str = 0, count_include_pad: int = 0, ceil_mode: int = 0, channels_last: int = 0,
) -> Array:  # fmt: skip
    """Average pooling of 8-bit [N, C, *spatial], or [N, *spatial, C], with a quantized result.

    Dequantized elements are added one by one in row-major order, and each sum is rounded. The result is
    sat(rne(fl(fl(fl(sum / count) / y_scale) + y_zero_point))). The count excludes padding unless count_include_pad is
    set. For an unpadded window as large as the image, the formula is that of global average pooling.

    Raises:
      ModelError: if the windows have dilations, which ONNX Runtime does not support.
    """
    sizes = x.shape[1:-1] if channels_last else x.shape[2:]
    if any(dilation != 1 for dilation in for_each("dilations", dilations, len(sizes))):
        raise ModelError("dilations are not supported by the quantized operator")
    padding = explicit_padding(padding, sizes, window, strides, dilations)
    strides = for_each("strides", strides, len(sizes))
    parameters = x_scale, x_zero_point, y_scale, y_zero_point
    if channels_last:
        x = jnp.moveaxis(x, -1, 1)
    if tuple(window) == sizes and not any(map(any, padding)):
        y = qlinear_global_average_pool(x, *parameters)
    else:
        outputs = [
            rounded_up_extent(size, extent, stride, *pair)
            if ceil_mode
            else output_extent(size, extent, stride, 1, *pair)
            for size, extent, stride, pair in zip(sizes, window, strides, padding, strict=True)
        ]
        total = _sums(dequantized(x, x_scale, x_zero_point), window, strides, padding, outputs)
        count = _int32(math.prod(window)) if count_include_pad else _counts(sizes, window, strides, padding, outputs)
        mean = rounding.flushed(rounding.quotient(total, float32(count)))
        steps = rounding.quotient(mean, scale_of(y_scale))
        y = packed(steps + float32(zero_point_of(y_zero_point)), x.dtype)
    return jnp.moveaxis(y, 1, -1) if channels_last else y


def _sums(x: Array, window: Sequence[int], strides: Sequence[int], padding: Pairs, outputs: Sequence[Any]) -> Array:
    """The sums of windows of float32 [N, C, *spatial], added in row-major order; padding adds zeros."""
    spans = [count * stride for count, stride in zip(outputs, strides, strict=True)]
    missing = [
        span + extent - 1 - start - size
        for span, extent, (start, _), size in zip(spans, window, padding, x.shape[2:], strict=True)
    ]
    pads = [(start, end, 0) for (start, _), end in zip(padding, missing, strict=True)]
    x = lax.optimization_barrier(lax.pad(x, np.float32(0), [(0, 0, 0), (0, 0, 0), *pads]))

    def seen(place: Sequence[Any]) -> Array:
        part = lax.dynamic_slice(x, (0, 0, *place), (*x.shape[:2], *spans))
        return lax.slice(part, (0,) * x.ndim, part.shape, (1, 1, *strides))

    if math.prod(window) <= UNROLLED:
        places = itertools.product(*map(range, window))
        total = seen(next(places))
        for place in places:
            total = total + seen(place)
        return total
    return lax.fori_loop(
        1, math.prod(window), lambda i, total: total + seen(jnp.unravel_index(i, window)), seen([0] * len(window))
    )


def _counts(
    sizes: Sequence[Any], window: Sequence[int], strides: Sequence[int], padding: Pairs, outputs: Sequence[Any]
) -> Array:  # fmt: skip
    """The number of elements of each window, padding excluded, as [1, 1, *spatial]."""
    counts = jnp.ones((1,) * (2 + len(sizes)), jnp.int32)
    for axis, each in enumerate(zip(sizes, window, strides, padding, outputs, strict=True), 2):
        size, extent, stride, (start, _), count = each
        first = jnp.arange(count, dtype=jnp.int32) * stride - start
        inside = jnp.minimum(first + extent, _int32(size)) - jnp.maximum(first, 0)
        counts = counts * inside.reshape([-1 if i == axis else 1 for i in range(counts.ndim)])
    return counts


def _int32(number: Any) -> Array:
    """A number or a symbolic dimension as int32."""
    return jnp.asarray(number, jnp.int32)
