"""Pooling: the largest element or the mean of windows, or of the whole space."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._quantized.windows import Pairs, explicit_padding, for_each
from jaxdml._shapes import rounded_up_extent
from jaxdml.errors import ModelError
from jaxdml.onnx._arrays import Array
from jaxdml.onnx._operators._floats import divided, product, sealed, wide
from jaxdml.onnx._operators.convolution import Sizes, padding_option
from jaxdml.onnx._table import BYTE, FLOAT, operator


def window_options(
    auto_pad: str,
    ceil_mode: int,
    dilations: Sizes | None,
    kernel_shape: Sizes,
    pads: Sizes | None,
    strides: Sizes | None,
) -> dict[str, Any]:
    """The options that all pooling has: a number for each dimension of the window; padding as pairs, or a rule.

    Raises:
      ModelError: if numbers are too few, too many or too small, or pads as large as the window.
    """
    rank = len(kernel_shape)
    padding = padding_option(auto_pad, pads)
    if not isinstance(padding, str):
        padding = explicit_padding(padding, kernel_shape, kernel_shape, 1, 1)
        if any(pad >= size or pad < 0 for pair, size in zip(padding, kernel_shape, strict=True) for pad in pair):
            raise ModelError(f"pads are {padding}, they should be smaller than the window of {kernel_shape}")
    return {
        "window": for_each("kernel_shape", kernel_shape, rank),
        "strides": for_each("strides", strides or 1, rank),
        "dilations": for_each("dilations", dilations or 1, rank),
        "padding": padding,
        "ceil_mode": ceil_mode,
    }


def windows_of(
    sizes: Sequence[Any], *, window: Sizes, strides: Sizes, dilations: Sizes, padding: Pairs | str, ceil_mode: int = 0
) -> tuple[Pairs, tuple[Any, ...]]:
    """The padding of each dimension of space, and how far the last windows reach beyond it."""
    if len(sizes) != len(window):
        raise ModelError(f"kernel_shape is {window}, the input has {len(sizes)} dimensions of space")
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


def largest_in_windows(
    x: Array, *, window: Sizes, strides: Sizes, dilations: Sizes, padding: Sequence[tuple[Any, Any]]
) -> Array:
    """The largest element of each window of [N, C, *space]: one dimension after the other, 2.5 times as fast."""
    for axis, (extent, stride, dilation, pair) in enumerate(zip(window, strides, dilations, padding, strict=True)):
        if (extent, stride, pair) != (1, 1, (0, 0)):
            each = [(extent, stride, dilation, pair) if i == axis else (1, 1, 1, (0, 0)) for i in range(x.ndim - 2)]
            x = _reduced(x, _least(x.dtype), lax.max, *zip(*each, strict=True))
    return x


def summed_windows(
    x: Array, *, window: Sizes, strides: Sizes, dilations: Sizes, padding: Sequence[tuple[Any, Any]]
) -> Array:
    """The sum of each window of [N, C, *space]: in row-major order, unless it is large."""
    if math.prod(window) > 64:
        return _reduced(x, 0, lax.add, window, strides, dilations, padding)
    # XLA sums windows in another order where they do not overlap.
    x = lax.pad(x, np.zeros((), x.dtype), _border(padding))
    elements = itertools.product(*map(range, window))
    return functools.reduce(lax.add, (_seen_by(x, each, window, strides, dilations) for each in elements))


def _border(padding: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any, int]]:
    return [(0, 0, 0)] * 2 + [(start, end, 0) for start, end in padding]


def _reduced(
    x: Array, start: Any, function: Callable[..., Any],
    window: Sizes, strides: Sizes, dilations: Sizes, padding: Sequence[tuple[Any, Any]],
) -> Array:  # fmt: skip
    sizes, steps, spaces = ((1, 1, *each) for each in (window, strides, dilations))
    pairs = [(0, 0), (0, 0), *padding]
    return lax.reduce_window(x, np.asarray(start, x.dtype), function, sizes, steps, pairs, window_dilation=spaces)


def _extended(pairs: Pairs, beyond: Sequence[Any]) -> Pairs:
    return tuple((start, end + more) for (start, end), more in zip(pairs, beyond, strict=True))


def _least(dtype: Any) -> Any:
    return -np.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min  # type: ignore[no-untyped-call]


def max_pool_options(
    *, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Sizes | None = None, kernel_shape: Sizes,
    pads: Sizes | None = None, storage_order: int = 0, strides: Sizes | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The options of MaxPool, of its attributes."""
    options = window_options(auto_pad, ceil_mode, dilations, kernel_shape, pads, strides)
    return options | {"storage_order": storage_order}


@operator("MaxPool", types=(FLOAT | BYTE,), kind="max_pool", options=max_pool_options)
def max_pool(
    x: Array, *, window: Sizes, strides: Sizes, dilations: Sizes, padding: Pairs | str, ceil_mode: int = 0,
    storage_order: int = 0, output_count: int = 1,
) -> Array | tuple[Array, Array]:  # fmt: skip
    """The largest element of each window, and its place in the whole tensor."""
    places: dict[str, Any] = {"window": window, "strides": strides, "dilations": dilations}
    pairs = _extended(*windows_of(x.shape[2:], **places, padding=padding, ceil_mode=ceil_mode))
    if output_count == 1:
        return largest_in_windows(jnp.asarray(x), **places, padding=pairs)
    return _with_places(jnp.asarray(x), pairs, storage_order, **places)


def _with_places(
    x: Array, pairs: Pairs, storage_order: int, *, window: Sizes, strides: Sizes, dilations: Sizes
) -> tuple[Array, Array]:
    """The largest element of each window and its place: the first of equal ones. Padding has place -1."""
    space = x.shape[2:]
    order = range(len(space))
    kind = jax.dtypes.canonicalize_dtype(np.int64)
    place = jnp.zeros((1, 1, *space), kind)
    for axis in order:
        inner = [space[i] for i in order if (i < axis if storage_order else i > axis)]
        place = place + lax.broadcasted_iota(kind, place.shape, axis + 2) * math.prod(inner)
    border = _border(pairs)
    x, place = lax.pad(x, np.asarray(_least(x.dtype), x.dtype), border), lax.pad(place, np.asarray(-1, kind), border)
    elements = list(itertools.product(*map(range, window)))
    seen = [[_seen_by(array, each, window, strides, dilations) for array in (x, place)] for each in elements]
    best, found = seen[0][0], jnp.broadcast_to(seen[0][1], seen[0][0].shape)
    for value, at in seen[1:]:
        at = jnp.broadcast_to(at, value.shape)
        is_better = (at >= 0) & ((found < 0) | (value > best))
        best, found = jnp.where(is_better, value, best), jnp.where(is_better, at, found)
    image = lax.broadcasted_iota(kind, found.shape, 0) * x.shape[1] + lax.broadcasted_iota(kind, found.shape, 1)
    return best, image * math.prod(space) + found


def _seen_by(x: Array, element: Sizes, window: Sizes, strides: Sizes, dilations: Sizes) -> Array:
    """What one element of each window sees of padded x."""
    cuts = []
    for at, extent, stride, dilation, size in zip(element, window, strides, dilations, x.shape[2:], strict=True):
        cuts.append(slice(at * dilation, size - (extent - 1 - at) * dilation, stride))
    return x[(slice(None), slice(None), *cuts)]


def average_pool_options(
    *, auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad: int = 0, dilations: Sizes | None = None,
    kernel_shape: Sizes, pads: Sizes | None = None, strides: Sizes | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The options of AveragePool, of its attributes."""
    options = window_options(auto_pad, ceil_mode, dilations, kernel_shape, pads, strides)
    return options | {"count_include_pad": count_include_pad}


@operator("AveragePool", types=(FLOAT,), kind="average_pool", options=average_pool_options)
def average_pool(
    x: Array, *, window: Sizes, strides: Sizes, dilations: Sizes, padding: Pairs | str, ceil_mode: int = 0,
    count_include_pad: int = 0,
) -> Array:  # fmt: skip
    """The mean of each window; padding is 0, and counts where the node says so."""
    places: dict[str, Any] = {"window": window, "strides": strides, "dilations": dilations}
    pairs, beyond = windows_of(x.shape[2:], **places, padding=padding, ceil_mode=ceil_mode)
    total = summed_windows(wide(jnp.asarray(x)), **places, padding=_extended(pairs, beyond))
    counted = tuple((0, more) for more in beyond) if count_include_pad else _extended(pairs, beyond)
    if not any(map(any, counted)):
        return divided(total, float(math.prod(window))).astype(x.dtype)
    more = [sum(pair) if count_include_pad else 0 for pair in pairs]
    counts = []
    for axis, (size, added) in enumerate(zip(x.shape[2:], more, strict=True), 2):
        line = jnp.ones([size + added if i == axis else 1 for i in range(x.ndim)], total.dtype)
        alone = {name: tuple(v if i == axis else 1 for i, v in enumerate(values, 2)) for name, values in places.items()}
        ends = [pair if i == axis else (0, 0) for i, pair in enumerate(counted, 2)]
        counts.append(summed_windows(line, **alone, padding=ends))
    return divided(total, functools.reduce(jnp.multiply, counts)).astype(x.dtype)


def power_pool_options(
    *, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Sizes | None = None, kernel_shape: Sizes,
    p: int = 2, pads: Sizes | None = None, strides: Sizes | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The options of LpPool, of its attributes."""
    options = window_options(auto_pad, ceil_mode, dilations, kernel_shape, pads, strides)
    return options | {"power": p}


@operator("LpPool", types=(FLOAT,), options=power_pool_options)
def power_pool(
    x: Array, *, window: Sizes, strides: Sizes, dilations: Sizes, padding: Pairs | str, ceil_mode: int = 0,
    power: int = 2,
) -> Array:  # fmt: skip
    """The norm of each window: the root of a sum of powers."""
    places: dict[str, Any] = {"window": window, "strides": strides, "dilations": dilations}
    pairs = _extended(*windows_of(x.shape[2:], **places, padding=padding, ceil_mode=ceil_mode))
    total = summed_windows(_powers(wide(jnp.asarray(x)), power), **places, padding=pairs)
    return _root(total, power).astype(x.dtype)


def _powers(x: Array, power: int) -> Array:
    return jnp.abs(x) if power == 1 else product(x, x) if power == 2 else sealed(jnp.abs(x) ** power)


def _root(x: Array, power: int) -> Array:
    return x if power == 1 else jnp.sqrt(x) if power == 2 else x ** (1 / power)


def _space(x: Array) -> Sizes:
    return tuple(range(2, x.ndim))


@operator("GlobalAveragePool", types=(FLOAT,), kind="global_average_pool")
def global_average_pool(x: Array) -> Array:
    """The mean of the whole space."""
    total = _sum_of_images(wide(jnp.asarray(x)))
    return divided(total, jnp.full_like(total, math.prod(x.shape[2:]))).astype(x.dtype)


def _sum_of_images(x: Array) -> Array:
    """The sum over the space of [N, C, *space], in ONNX Runtime's order: [N, C, 1, ...].

    Every fourth element from each of the first four on, then those four sums, then what is left at the end. Between
    float convolutions ONNX Runtime may use another order, which depends on the processor.
    """
    *outer, size = shape = (*x.shape[:2], math.prod(x.shape[2:]))
    lanes = 4
    if not isinstance(size, int) or size < lanes:
        return jnp.sum(x, _space(x), keepdims=True)
    flat, even = x.reshape(shape), size // lanes * lanes
    steps = jnp.moveaxis(flat[..., :even].reshape(*outer, even // lanes, lanes), 2, 0)
    sums, _ = lax.scan(lambda total, step: (total + step, None), steps[0], steps[1:], unroll=16)
    total = (sums[..., 0] + sums[..., 2]) + (sums[..., 1] + sums[..., 3])
    for place in range(even, size):
        total = total + flat[..., place]
    return total.reshape(*outer, *(1 for _ in _space(x)))


@operator("GlobalMaxPool", types=(FLOAT,))
def global_max_pool(x: Array) -> Array:
    """The largest element of the whole space."""
    return jnp.max(jnp.asarray(x), _space(x), keepdims=True)


@operator("GlobalLpPool", types=(FLOAT,))
def global_power_pool(x: Array, *, p: int = 2) -> Array:
    """The norm of the whole space."""
    total = jnp.sum(_powers(wide(jnp.asarray(x)), p), _space(x), keepdims=True)
    return _root(total, p).astype(x.dtype)
