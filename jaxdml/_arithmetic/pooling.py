"""Average pooling of quantized tensors, and max pooling of tensors of any type."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import native_bytes, native_elementwise, rounding
from jaxdml._arithmetic.kernel_call import with_kernel

Array = jax.Array
IDENTITY: dict[str, Any] = {"window": 1, "strides": 1, "dilations": 1, "padding": (0, 0)}  # keeps a dimension as it is


def mean_of_windows(
    x: Array, scale: Array, zero_point: Array | None, output_scale: Array, output_zero_point: Array | None, *,
    output_dtype: Any, window: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
    padding: Sequence[tuple[int, int]], include_padding: bool,
) -> Array:  # fmt: skip
    """The means of windows of 8-bit [N, C, *spatial], requantized.

    Scales and zero points are scalars or [1, C, 1, ...]. Padding stands for the real value 0. The divisor counts
    padding if include_padding is set.
    """
    options: dict[str, Any] = {"window": window, "strides": strides, "dilations": dilations, "padding": padding}
    has_padding, count = any(map(any, padding)), jnp.asarray(math.prod(window), jnp.int32)
    if tuple(window) == x.shape[2:] and not has_padding:
        return _mean_of_images(x, scale, zero_point, output_scale, output_zero_point, output_dtype=output_dtype)
    steps = _int32(x) if zero_point is None else lax.sub(_int32(x), _int32(rounding.with_rank(zero_point, x.ndim)))
    total = _sums(steps, **options)
    if has_padding and not include_padding:
        count = _elements_inside(x.shape, options)
    return rounding.averaged(total, scale, count, output_scale, output_zero_point, output_dtype)


@with_kernel(native_bytes.MEANS)
def _mean_of_images(
    x: Array, scale: Array, zero_point: Array | None, output_scale: Array, output_zero_point: Array | None, *,
    output_dtype: Any,
) -> Array:  # fmt: skip
    count, total = jnp.asarray(math.prod(x.shape[2:]), jnp.int32), sums_of_images(x)
    if zero_point is not None:
        total = lax.sub(total, lax.mul(_int32(rounding.with_rank(zero_point, x.ndim)), count))
    return rounding.averaged(total, scale, count, output_scale, output_zero_point, output_dtype)


@with_kernel(native_elementwise.IMAGE_SUMS)
def sums_of_images(x: Array) -> Array:
    """int32 sums of 8-bit [N, C, *spatial] over all spatial dimensions: [N, C, 1, ...].

    XLA:CPU is faster with one window for each image than with a reduction.
    """
    space = x.shape[2:]
    ones, none = (1,) * len(space), ((0, 0),) * len(space)
    return _sums(_int32(x), window=space, strides=ones, dilations=ones, padding=none)


@with_kernel(native_bytes.MAX_POOL)
def greatest_of_windows(
    x: Array, *, window: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
    padding: Sequence[tuple[Any, Any]],
) -> Array:  # fmt: skip
    """The maximum of each window over the last dimensions, one for each window extent.

    Padding is the least value of x's type.

    XLA:CPU is faster with one dimension at a time than with all at once.
    """
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    least = np.asarray(-np.inf if is_float else rounding.limits_of(x.dtype).min, x.dtype)
    each = zip(window, strides, dilations, padding, strict=True)
    for axis, (extent, stride, dilation, pair) in enumerate(each, x.ndim - len(window)):
        if (extent, stride, pair) != (1, 1, (0, 0)):
            numbers = {"window_dimensions": extent, "window_strides": stride, "window_dilation": dilation}
            options = {name: [number if i == axis else 1 for i in range(x.ndim)] for name, number in numbers.items()}
            pads = [pair if i == axis else (0, 0) for i in range(x.ndim)]
            x = lax.reduce_window(x, least, lax.max, padding=pads, **options)
    return x


def _elements_inside(shape: Sequence[int], options: dict[str, Any]) -> Array:
    """The number of elements of each window that lie in the input.

    Each dimension is counted separately, and the counts are multiplied: XLA folds constants of whole images slowly.
    """
    counts = []
    for axis, size in enumerate(shape[2:], 2):
        line = [1] * len(shape)
        line[axis] = size
        alone = {
            name: [value if i == axis else IDENTITY[name] for i, value in enumerate(values, 2)]
            for name, values in options.items()
        }
        counts.append(_sums(jnp.ones(line, jnp.int32), **alone))
    return functools.reduce(lax.mul, counts)


def _sums(
    x: Array, *, window: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> Array:  # fmt: skip
    """int32 sums over windows, one dimension at a time."""
    for axis, (extent, stride, dilation, added) in enumerate(zip(window, strides, dilations, padding, strict=True), 2):
        if not isinstance(extent, int):  # a symbolic size is that of the whole dimension
            x = jnp.sum(x, axis, dtype=jnp.int32, keepdims=True)
            continue
        if extent == stride == 1 and added == (0, 0):
            continue
        ones = [1] * x.ndim
        options = {"window_dimensions": extent, "window_strides": stride, "window_dilation": dilation}
        windows = {name: (*ones[:axis], value, *ones[axis + 1 :]) for name, value in options.items()}
        pads = [added if i == axis else (0, 0) for i in range(x.ndim)]
        x = lax.reduce_window(x, np.int32(0), lax.add, padding=pads, base_dilation=ones, **windows)
    return x


def _int32(x: Array) -> Array:
    return lax.convert_element_type(x, jnp.int32)
