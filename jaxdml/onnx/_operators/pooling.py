"""Max, average and Lp pooling of float and 8-bit tensors [N, C, *space]."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.pooling import greatest_of_windows
from jaxdml._quantized.windows import Pairs, explicit_padding, for_each
from jaxdml._shapes import rounded_up_extent
from jaxdml.errors import ModelError
from jaxdml.onnx._operators._arrays import Array, divided, product, sealed, wide
from jaxdml.onnx._operators.convolution import Sizes, padding_option
from jaxdml.onnx._table import BYTE, FLOAT, MICROSOFT, operator


def window_options(
    auto_pad: str,
    ceil_mode: int,
    dilations: Sizes | None,
    kernel_shape: Sizes,
    pads: Sizes | None,
    strides: Sizes | None,
) -> dict[str, Any]:
    """The options that all pooling operators share; padding is a pair for each dimension, or a value of `auto_pad`.

    Raises:
      ModelError: if an attribute has the wrong number of elements or an element that is too small, or if a pad is not
        smaller than the window.
    """
    rank = len(kernel_shape)
    padding = padding_option(auto_pad, pads)
    if not isinstance(padding, str):
        padding = explicit_padding(padding, kernel_shape, kernel_shape, 1, 1)
        if any(pad >= size or pad < 0 for pair, size in zip(padding, kernel_shape, strict=True) for pad in pair):
            raise ModelError(f"pads are {padding}, expected less than the window of {kernel_shape}")
    return {
        "window": for_each("kernel_shape", kernel_shape, rank),
        "strides": for_each("strides", strides or 1, rank),
        "dilations": for_each("dilations", dilations or 1, rank),
        "padding": padding,
        "ceil_mode": ceil_mode,
    }


def padding_of(
    sizes: Sequence[Any], *, window: Sizes, strides: Sizes, dilations: Sizes, padding: Pairs | str, ceil_mode: int = 0
) -> tuple[Pairs, tuple[Any, ...]]:
    """The padding of each spatial dimension, and how many elements `ceil_mode` appends to the dimension."""
    if len(sizes) != len(window):
        raise ModelError(f"kernel_shape is {window}, the input has {len(sizes)} spatial dimensions")
    pairs = explicit_padding(padding, sizes, window, strides, dilations)
    beyond = []
    for size, extent, stride, dilation, (start, end) in zip(sizes, window, strides, dilations, pairs, strict=True):
        if not ceil_mode or stride == 1:
            beyond.append(0)
            continue
        reach = (extent - 1) * dilation + 1
        last = (rounded_up_extent(size, reach, stride, start, end) - 1) * stride  # where the last window starts
        beyond.append(max(last + reach - size - start - end, 0))
    return pairs, tuple(beyond)


def sum_of_windows(
    x: Array, *, window: Sizes, strides: Sizes, dilations: Sizes, padding: Sequence[tuple[Any, Any]]
) -> Array:
    """The sum of each window, added up in row-major order unless the window is large."""
    if math.prod(window) > 64:
        return _reduced(x, 0, lax.add, window, strides, dilations, padding)
    # `reduce_window` does not sum in row-major order if the windows do not overlap.
    x = lax.pad(x, np.zeros((), x.dtype), _border(padding))
    offsets = itertools.product(*map(range, window))
    return functools.reduce(lax.add, (_strided(x, offset, window, strides, dilations) for offset in offsets))


def _border(padding: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any, int]]:
    return [(0, 0, 0)] * 2 + [(start, end, 0) for start, end in padding]


def _reduced(
    x: Array, start: Any, function: Callable[..., Any],
    window: Sizes, strides: Sizes, dilations: Sizes, padding: Sequence[tuple[Any, Any]],
) -> Array:  # fmt: skip
    window, strides, dilations = ((1, 1, *each) for each in (window, strides, dilations))
    pairs = [(0, 0), (0, 0), *padding]
    return lax.reduce_window(x, np.asarray(start, x.dtype), function, window, strides, pairs, window_dilation=dilations)


def _extended(pairs: Pairs, beyond: Sequence[Any]) -> Pairs:
    return tuple((start, end + more) for (start, end), more in zip(pairs, beyond, strict=True))


def _lowest(dtype: Any) -> Any:
    return -np.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min  # type: ignore[no-untyped-call]


def max_pool_options(
    *, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Sizes | None = None, kernel_shape: Sizes,
    pads: Sizes | None = None, storage_order: int = 0, strides: Sizes | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Converts the attributes of MaxPool."""
    options = window_options(auto_pad, ceil_mode, dilations, kernel_shape, pads, strides)
    return options | {"storage_order": storage_order}


@operator("MaxPool", types=(FLOAT | BYTE,), kind="max_pool", options=max_pool_options)
def max_pool(
    x: Array, *, window: Sizes, strides: Sizes, dilations: Sizes, padding: Pairs | str, ceil_mode: int = 0,
    storage_order: int = 0, output_count: int = 1,
) -> Array | tuple[Array, Array]:  # fmt: skip
    """The maximum of each window, and its index in the flattened tensor."""
    windows: dict[str, Any] = {"window": window, "strides": strides, "dilations": dilations}
    pairs = _extended(*padding_of(x.shape[2:], **windows, padding=padding, ceil_mode=ceil_mode))
    if output_count == 1:
        return greatest_of_windows(jnp.asarray(x), **windows, padding=pairs)
    return _with_indices(jnp.asarray(x), pairs, storage_order, **windows)


def nhwc_max_pool_options(
    *, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Sizes | None = None, kernel_shape: Sizes,
    pads: Sizes | None = None, strides: Sizes | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Converts the attributes of NhwcMaxPool."""
    return window_options(auto_pad, ceil_mode, dilations, kernel_shape, pads, strides)


@operator("NhwcMaxPool", domain=MICROSOFT, types=(BYTE,), options=nhwc_max_pool_options, is_quantized=True)
def nhwc_max_pool(x: Array, **options: Any) -> Array:
    """`max_pool` of 8-bit [N, *space, C]."""
    y: Any = max_pool(jnp.moveaxis(x, -1, 1), **options)
    return jnp.moveaxis(y, 1, -1)


def _with_indices(
    x: Array, pairs: Pairs, storage_order: int, *, window: Sizes, strides: Sizes, dilations: Sizes
) -> tuple[Array, Array]:
    """The maximum of each window, and the index of its first occurrence in row-major order, which is never padding."""
    space = x.shape[2:]
    dims = range(len(space))
    dtype = jax.dtypes.canonicalize_dtype(np.int64)
    index = jnp.zeros((1, 1, *space), dtype)
    for axis in dims:
        inner = [space[i] for i in dims if (i < axis if storage_order else i > axis)]
        index = index + lax.broadcasted_iota(dtype, index.shape, axis + 2) * math.prod(inner)
    border = _border(pairs)
    x, index = lax.pad(x, np.asarray(_lowest(x.dtype), x.dtype), border), lax.pad(index, np.asarray(-1, dtype), border)
    offsets = list(itertools.product(*map(range, window)))
    slices = [[_strided(array, offset, window, strides, dilations) for array in (x, index)] for offset in offsets]
    best, found = slices[0][0], jnp.broadcast_to(slices[0][1], slices[0][0].shape)
    for value, at in slices[1:]:
        at = jnp.broadcast_to(at, value.shape)
        is_better = (at >= 0) & ((found < 0) | (value > best))
        best, found = jnp.where(is_better, value, best), jnp.where(is_better, at, found)
    image = lax.broadcasted_iota(dtype, found.shape, 0) * x.shape[1] + lax.broadcasted_iota(dtype, found.shape, 1)
    return best, image * math.prod(space) + found


def _strided(x: Array, offset: Sizes, window: Sizes, strides: Sizes, dilations: Sizes) -> Array:
    """The elements of padded x at one offset within each window."""
    slices = []
    for at, extent, stride, dilation, size in zip(offset, window, strides, dilations, x.shape[2:], strict=True):
        slices.append(slice(at * dilation, size - (extent - 1 - at) * dilation, stride))
    return x[(slice(None), slice(None), *slices)]


def average_pool_options(
    *, auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad: int = 0, dilations: Sizes | None = None,
    kernel_shape: Sizes, pads: Sizes | None = None, strides: Sizes | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Converts the attributes of AveragePool."""
    options = window_options(auto_pad, ceil_mode, dilations, kernel_shape, pads, strides)
    return options | {"count_include_pad": count_include_pad}


@operator("AveragePool", types=(FLOAT,), kind="average_pool", options=average_pool_options)
def average_pool(
    x: Array, *, window: Sizes, strides: Sizes, dilations: Sizes, padding: Pairs | str, ceil_mode: int = 0,
    count_include_pad: int = 0,
) -> Array:  # fmt: skip
    """The mean of each window; padding counts as zeros only if `count_include_pad` is set."""
    windows: dict[str, Any] = {"window": window, "strides": strides, "dilations": dilations}
    pairs, beyond = padding_of(x.shape[2:], **windows, padding=padding, ceil_mode=ceil_mode)
    total = sum_of_windows(wide(jnp.asarray(x)), **windows, padding=_extended(pairs, beyond))
    counted = tuple((0, more) for more in beyond) if count_include_pad else _extended(pairs, beyond)
    if not any(map(any, counted)):
        return divided(total, float(math.prod(window))).astype(x.dtype)
    extra = [sum(pair) if count_include_pad else 0 for pair in pairs]
    counts = []  # the elements in each window, counted one dimension at a time
    for axis, (size, padded) in enumerate(zip(x.shape[2:], extra, strict=True), 2):
        ones = jnp.ones([size + padded if i == axis else 1 for i in range(x.ndim)], total.dtype)
        alone = {key: tuple(v if i == axis else 1 for i, v in enumerate(each, 2)) for key, each in windows.items()}
        ends = [pair if i == axis else (0, 0) for i, pair in enumerate(counted, 2)]
        counts.append(sum_of_windows(ones, **alone, padding=ends))
    return divided(total, functools.reduce(jnp.multiply, counts)).astype(x.dtype)


def power_pool_options(
    *, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Sizes | None = None, kernel_shape: Sizes,
    p: int = 2, pads: Sizes | None = None, strides: Sizes | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Converts the attributes of LpPool."""
    options = window_options(auto_pad, ceil_mode, dilations, kernel_shape, pads, strides)
    return options | {"power": p}


@operator("LpPool", types=(FLOAT,), options=power_pool_options)
def power_pool(
    x: Array, *, window: Sizes, strides: Sizes, dilations: Sizes, padding: Pairs | str, ceil_mode: int = 0,
    power: int = 2,
) -> Array:  # fmt: skip
    """The Lp norm of each window."""
    windows: dict[str, Any] = {"window": window, "strides": strides, "dilations": dilations}
    pairs = _extended(*padding_of(x.shape[2:], **windows, padding=padding, ceil_mode=ceil_mode))
    total = sum_of_windows(_powers(wide(jnp.asarray(x)), power), **windows, padding=pairs)
    return _root(total, power).astype(x.dtype)


def _powers(x: Array, power: int) -> Array:
    return jnp.abs(x) if power == 1 else product(x, x) if power == 2 else sealed(jnp.abs(x) ** power)


def _root(x: Array, power: int) -> Array:
    return x if power == 1 else jnp.sqrt(x) if power == 2 else x ** (1 / power)


def _space(x: Array) -> Sizes:
    return tuple(range(2, x.ndim))


@operator("GlobalAveragePool", types=(FLOAT,), kind="global_average_pool")
def global_average_pool(x: Array) -> Array:
    """The mean over space."""
    total = _sum_of_images(wide(jnp.asarray(x)))
    return divided(total, jnp.full_like(total, math.prod(x.shape[2:]))).astype(x.dtype)


def _sum_of_images(x: Array) -> Array:
    """The sum over space, [N, C, 1, ...], in the order of ONNX Runtime's four-lane vectors.

    Each lane sums every fourth element; then the lanes are added, then the remaining elements. For a pooling between
    float convolutions, ONNX Runtime may use another order, which depends on the processor.
    """
    *outer, size = shape = (*x.shape[:2], math.prod(x.shape[2:]))
    lanes = 4
    if not isinstance(size, int) or size < lanes:
        return jnp.sum(x, _space(x), keepdims=True)
    flat, even = x.reshape(shape), size // lanes * lanes
    steps = jnp.moveaxis(flat[..., :even].reshape(*outer, even // lanes, lanes), 2, 0)
    sums, _ = lax.scan(lambda total, step: (total + step, None), steps[0], steps[1:], unroll=16)
    total = (sums[..., 0] + sums[..., 2]) + (sums[..., 1] + sums[..., 3])
    for index in range(even, size):
        total = total + flat[..., index]
    return total.reshape(*outer, *(1 for _ in _space(x)))


@operator("GlobalMaxPool", types=(FLOAT,))
def global_max_pool(x: Array) -> Array:
    """The maximum over space."""
    return jnp.max(jnp.asarray(x), _space(x), keepdims=True)


@operator("GlobalLpPool", types=(FLOAT,))
def global_power_pool(x: Array, *, p: int = 2) -> Array:
    """The Lp norm over space."""
    total = jnp.sum(_powers(wide(jnp.asarray(x)), p), _space(x), keepdims=True)
    return _root(total, p).astype(x.dtype)
