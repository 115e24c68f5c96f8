"""Convolutions of int8 as sums over windows of the input: products of matrices, and sums of shifted products."""

import itertools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import int8
from jaxdml._arithmetic.prepared import PreparedFilter, rows_of

Array = jax.Array
# From int8 x, padded, the filter, strides and dilations to int32 [N, O, *output].
Form = Callable[[Array, PreparedFilter, Sequence[int], Sequence[int]], Array]


def _windows(x: Array, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> list[Array]:
    """What each element of the kernel sees of x, in row-major order: [N, C, *output] each."""
    reach = [(k - 1) * dilation for k, dilation in zip(kernel, dilations, strict=True)]
    windows = []
    for element in itertools.product(*(range(k) for k in kernel)):
        starts = [i * dilation for i, dilation in zip(element, dilations, strict=True)]
        ends = [size - last + start for size, last, start in zip(x.shape[2:], reach, starts, strict=True)]
        windows.append(lax.slice(x, (0, 0, *starts), (*x.shape[:2], *ends), (1, 1, *strides)))
    return windows


def _windows_end_to_end(x: Array, kernel: Sequence[int], dilations: Sequence[int]) -> list[Array]:
    """The same at stride 1 in two dimensions, rows of x end to end: [N, C, output rows * row of x] each.

    The end of each row sees the start of the next: that is to be thrown away.
    """
    *outer, rows, row = x.shape
    length = (rows - (kernel[0] - 1) * dilations[0]) * row
    x = lax.pad(x, np.int8(0), [(0, 0, 0), (0, 0, 0), (0, 1, 0), (0, 0, 0)])  # what the last row's end sees
    x = lax.optimization_barrier(x).reshape(*outer, -1)
    starts = [i * dilations[0] * row + j * dilations[1] for i in range(kernel[0]) for j in range(kernel[1])]
    return [lax.slice_in_dim(x, start, start + length, axis=2) for start in starts]


def window_sums(x: Array, filter: PreparedFilter, strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """The sums of x under the kernel, for each output channel: [N, O, *output]."""
    groups, (outputs, channels, *kernel) = filter.group_count, filter.shape
    total = lax.reshape(x, (x.shape[0], groups, channels, *x.shape[2:]))
    total = _sum(lax.convert_element_type(total, jnp.int32), 2)
    for axis, window in enumerate(zip(kernel, strides, dilations, strict=True), start=2):
        total = _sum(_side_by_side(total, axis, axis, *window), axis)
    return jnp.repeat(total, outputs // groups, axis=1)


def _sum(x: Array, axis: int) -> Array:
    return lax.reduce(x, np.int32(0), lax.add, (axis,))


def _side_by_side(x: Array, axis: int, to: int, size: int, stride: int, dilation: int) -> Array:
    """What each of `size` elements of a kernel sees along an axis, side by side in a new axis `to`."""
    if size == 1:
        return lax.expand_dims(lax.slice_in_dim(x, 0, x.shape[axis], stride, axis), (to,))
    length = x.shape[axis] - (size - 1) * dilation
    starts = range(0, size * dilation, dilation)
    if size <= 32:
        return jnp.stack([lax.slice_in_dim(x, start, start + length, stride, axis) for start in starts], axis=to)
    # Slower to run, but hundreds of slices take XLA ten seconds to compile.
    indices = np.arange(0, size * dilation, dilation)[:, None] + np.arange(0, length, stride)
    return jnp.moveaxis(jnp.take(x, indices.astype(np.int32), axis=axis, mode="clip"), axis, to)


def matrix(
    x: Array,
    filter: PreparedFilter,
    strides: Sequence[int],
    dilations: Sequence[int],
    dot: Callable[[Array, Array, str], Array] = int8.product,
) -> Array:
    """For each group a product of matrices: [O / groups, C / groups * kernel] times the windows side by side (im2col).

    1 x 1, 64 to 256 channels at 56 x 56: 1.1 ms, against 1.9 ms with channels last, which must be transposed twice.
    """
    groups, (outputs, channels, *kernel) = filter.group_count, filter.shape
    columns = _swapped(x)  # [C, N, *spatial], to become [C, *kernel, N, *output]
    for axis, window in enumerate(zip(kernel, strides, dilations, strict=True)):
        columns = _side_by_side(columns, columns.ndim - len(kernel) + axis, 1 + axis, *window)
    seen_by_output = columns.shape[1 + len(kernel) :]
    # In two steps: on explicit axes JAX reshapes by merging dimensions or by splitting them, not both at once.
    columns = lax.reshape(columns, (groups, channels, *kernel, *seen_by_output))
    columns = lax.reshape(columns, (groups, channels * math.prod(kernel), *seen_by_output))
    total = dot(rows_of(filter), columns, "KN")
    return _swapped(lax.reshape(total, (outputs, *seen_by_output)))


def _swapped(x: Array) -> Array:
    """x with its first two dimensions the other way round."""
    return lax.transpose(x, (1, 0, *range(2, x.ndim)))


def suits_depthwise(filter: PreparedFilter) -> bool:
    """Whether to add up shifted products: one input channel to a group, few outputs, few enough elements to compile."""
    outputs, channels, *kernel = filter.shape
    return channels == 1 and outputs <= 4 * filter.group_count and math.prod(kernel) <= 128


def depthwise(x: Array, filter: PreparedFilter, strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """One input channel to a group: a sum of shifted products, element by element.

    144 channels at 56 x 56, 3 x 3: 0.5 ms, against 200 ms as a convolution. At stride 1 rows lie end to end, for rows
    of 14 elements fill no vector registers: 512 channels at 14 x 14 take 0.35 ms instead of 0.5.
    """
    groups, (outputs, _, *kernel) = filter.group_count, filter.shape
    end_to_end = tuple(strides) == (1, 1)
    windows = _windows_end_to_end(x, kernel, dilations) if end_to_end else _windows(x, kernel, strides, dilations)
    batch, _, *output = windows[0].shape
    values = rows_of(filter).reshape(1, groups, outputs // groups, len(windows), *(1,) * len(output)).astype(jnp.int32)
    products = (
        window.astype(jnp.int32).reshape(batch, groups, 1, *output) * values[:, :, :, element]
        for element, window in enumerate(windows)
    )
    total = sum(products, start=jnp.zeros((), jnp.int32)).reshape(batch, outputs, *output)
    if end_to_end:
        total = lax.optimization_barrier(total).reshape(batch, outputs, -1, x.shape[-1])
        total = total[..., : x.shape[-1] - (kernel[-1] - 1) * dilations[-1]]
    return total
