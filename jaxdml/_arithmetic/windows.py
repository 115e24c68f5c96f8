"""int8 convolutions without XLA's convolution: matrix products of windows (im2col), and sums of shifted products."""

import itertools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import int8
from jaxdml._arithmetic.layouts import Filter

Array = jax.Array
# (padded int8 x, filter, strides, dilations) -> int32 [N, O, *output]
Form = Callable[[Array, Filter, Sequence[int], Sequence[int]], Array]


def _windows(x: Array, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> list[Array]:
    """For each element of the kernel, in row-major order, the values of x that it multiplies: [N, C, *output]."""
    reach = [(k - 1) * dilation for k, dilation in zip(kernel, dilations, strict=True)]
    windows = []
    for element in itertools.product(*(range(k) for k in kernel)):
        starts = [i * dilation for i, dilation in zip(element, dilations, strict=True)]
        ends = [size - last + start for size, last, start in zip(x.shape[2:], reach, starts, strict=True)]
        windows.append(lax.slice(x, (0, 0, *starts), (*x.shape[:2], *ends), (1, 1, *strides)))
    return windows


def _windows_of_rows(x: Array, kernel: Sequence[int], dilations: Sequence[int]) -> list[Array]:
    """`_windows` at stride 1 in two dimensions, with rows of x concatenated: each is [N, C, output rows * row length].

    The last windows of a row extend into the next row; the caller drops their results.
    """
    *outer, rows, row = x.shape
    length = (rows - (kernel[0] - 1) * dilations[0]) * row
    x = lax.pad(x, np.int8(0), [(0, 0, 0), (0, 0, 0), (0, 1, 0), (0, 0, 0)])  # so that the last windows fit
    x = lax.optimization_barrier(x).reshape(*outer, -1)  # the barrier keeps the pad out of the fused sum
    starts = [i * dilations[0] * row + j * dilations[1] for i in range(kernel[0]) for j in range(kernel[1])]
    return [lax.slice_in_dim(x, start, start + length, axis=2) for start in starts]


def window_sums(x: Array, filter: Filter, strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """The sums of x over the kernel's window, for each output channel: [N, O, *output]."""
    groups, (outputs, channels, *kernel) = filter.group_count, filter.shape
    total = lax.reshape(x, (x.shape[0], groups, channels, *x.shape[2:]))
    total = _sum(lax.convert_element_type(total, jnp.int32), 2)
    for axis, window in enumerate(zip(kernel, strides, dilations, strict=True), start=2):
        total = _sum(_stacked_windows(total, axis, axis, *window), axis)
    return jnp.repeat(total, outputs // groups, axis=1)


def _sum(x: Array, axis: int) -> Array:
    return lax.reduce(x, np.int32(0), lax.add, (axis,))


def _stacked_windows(x: Array, axis: int, to: int, size: int, stride: int, dilation: int) -> Array:
    """The `_windows` of a kernel of `size` elements along one axis, stacked along a new axis `to`."""
    if size == 1:
        return lax.expand_dims(lax.slice_in_dim(x, 0, x.shape[axis], stride, axis), (to,))
    length = x.shape[axis] - (size - 1) * dilation
    starts = range(0, size * dilation, dilation)
    if size <= 32:
        return jnp.stack([lax.slice_in_dim(x, start, start + length, stride, axis) for start in starts], axis=to)
    # A gather runs slower, but hundreds of slices take XLA too long to compile.
    indices = np.arange(0, size * dilation, dilation)[:, None] + np.arange(0, length, stride)
    return jnp.moveaxis(jnp.take(x, indices.astype(np.int32), axis=axis, mode="clip"), axis, to)


def matrix(
    x: Array,
    filter: Filter,
    strides: Sequence[int],
    dilations: Sequence[int],
    dot: Callable[[Array, Array, str], Array] = int8.product_in_parts,
) -> Array:
    """A matrix product for each group: [O / groups, C / groups * kernel] times the windows, stacked (im2col)."""
    groups, (outputs, channels, *kernel) = filter.group_count, filter.shape
    columns = _swapped(x)  # [C, N, *spatial], to become [C, *kernel, N, *output]
    for axis, window in enumerate(zip(kernel, strides, dilations, strict=True)):
        columns = _stacked_windows(columns, columns.ndim - len(kernel) + axis, 1 + axis, *window)
    output = columns.shape[1 + len(kernel) :]
    # There are two reshapes, because on explicit axes one reshape may merge dimensions or split them, but not both.
    columns = lax.reshape(columns, (groups, channels, *kernel, *output))
    columns = lax.reshape(columns, (groups, channels * math.prod(kernel), *output))
    total = dot(filter.rows(), columns, "KN")
    return _swapped(lax.reshape(total, (outputs, *output)))


def _swapped(x: Array) -> Array:
    """x with its first two dimensions swapped."""
    return lax.transpose(x, (1, 0, *range(2, x.ndim)))


def suits_depthwise(filter: Filter) -> bool:
    """Whether `depthwise` is suitable: groups of one input channel, few outputs, and a small enough kernel."""
    outputs, channels, *kernel = filter.shape
    return channels == 1 and outputs <= 4 * filter.group_count and math.prod(kernel) <= 128


def depthwise(
    x: Array, filter: Filter, strides: Sequence[int], dilations: Sequence[int], has_vector_registers: bool = True
) -> Array:
    """The convolution of groups with one input channel each: the sum of shifted copies of x times kernel elements.

    At stride 1, rows are concatenated for processors with vector registers, because short rows would not fill them.
    """
    groups, (outputs, _, *kernel) = filter.group_count, filter.shape
    is_concatenated = has_vector_registers and tuple(strides) == (1, 1)
    windows = _windows_of_rows(x, kernel, dilations) if is_concatenated else _windows(x, kernel, strides, dilations)
    batch, _, *output = windows[0].shape
    values = filter.rows().reshape(1, groups, outputs // groups, len(windows), *(1,) * len(output)).astype(jnp.int32)
    products = (
        window.astype(jnp.int32).reshape(batch, groups, 1, *output) * values[:, :, :, element]
        for element, window in enumerate(windows)
    )
    total = sum(products, start=jnp.zeros((), jnp.int32)).reshape(batch, outputs, *output)
    if is_concatenated:  # without the barrier XLA would fuse the sum into a loop over short rows
        total = lax.optimization_barrier(total).reshape(batch, outputs, -1, x.shape[-1])
        total = total[..., : x.shape[-1] - (kernel[-1] - 1) * dilations[-1]]
    return total
