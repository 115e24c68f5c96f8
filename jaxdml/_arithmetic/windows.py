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
from jaxdml._shapes import is_surely_a_size, output_extent

Array = jax.Array
# (padded int8 x, filter, strides, dilations) -> int32 [N, O, *output]
Form = Callable[[Array, Filter, Sequence[int], Sequence[int]], Array]


def _is_sliceable(sizes: Sequence[int], kernel: Sequence[int], dilations: Sequence[int]) -> bool:
    """Whether JAX can tell that the kernel fits, which slices of symbolic sizes require."""
    options = zip(sizes, kernel, dilations, strict=True)
    return all(is_surely_a_size(size - (extent - 1) * dilation) for size, extent, dilation in options)


def _windows(x: Array, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> list[Array]:
    """For each element of the kernel, in row-major order, the values of x that it multiplies: [N, C, *output]."""
    if not _is_sliceable(x.shape[2:], kernel, dilations):
        for i, window in enumerate(zip(kernel, strides, dilations, strict=True)):
            x = _stacked_windows(x, 2 + 2 * i, i, *window)
        return [x[element] for element in itertools.product(*map(range, kernel))]
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
    *outer, _, row = x.shape
    length = _length_of_rows(x, kernel, dilations)
    x = lax.pad(x, np.int8(0), [(0, 0, 0), (0, 0, 0), (0, 1, 0), (0, 0, 0)])  # so that the last windows fit
    x = lax.optimization_barrier(x).reshape(*outer, -1)  # the barrier keeps the pad out of the fused sum
    starts = [i * dilations[0] * row + j * dilations[1] for i in range(kernel[0]) for j in range(kernel[1])]
    return [lax.slice_in_dim(x, start, start + length, axis=2) for start in starts]


def _length_of_rows(x: Array, kernel: Sequence[int], dilations: Sequence[int]) -> int:
    *_, rows, row = x.shape
    return (rows - (kernel[0] - 1) * dilations[0]) * row


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
    if size <= 32:
        return jnp.stack(parts(x, axis, size, stride, dilation), axis=to)
    # A gather runs slower, but hundreds of slices take XLA too long to compile.
    return jnp.moveaxis(_gathered(x, axis, size, stride, dilation), axis, to)


def parts(x: Array, axis: int, size: int, stride: int, dilation: int) -> list[Array]:
    """For each element of a window of `size` elements along one axis, the values of x that it sees.

    There are none if the window is longer than x. Slices must lie in x; where JAX cannot tell that the window fits into
    a symbolic size, a gather takes their place.
    """
    length = x.shape[axis] - (size - 1) * dilation
    if not is_surely_a_size(length):
        gathered = _gathered(x, axis, size, stride, dilation)
        return [lax.index_in_dim(gathered, place, axis, keepdims=False) for place in range(size)]
    starts = range(0, size * dilation, dilation)
    return [lax.slice_in_dim(x, start, start + length, stride, axis) for start in starts]


def _gathered(x: Array, axis: int, size: int, stride: int, dilation: int) -> Array:
    """The `parts`, stacked along a new axis `axis`."""
    count = jax.core.max_dim(output_extent(x.shape[axis], size, stride, dilation, 0, 0), 0)
    x = lax.pad(x, np.zeros((), x.dtype), [(0, int(i == axis), 0) for i in range(x.ndim)])  # x may be empty
    starts = np.arange(0, size * dilation, dilation).astype(np.int32)
    indices = starts[:, None] + lax.iota(np.int32, count)[None] * np.int32(stride)
    return jnp.take(x, indices, axis=axis, mode="clip")


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
    is_concatenated = has_vector_registers and tuple(strides) == (1, 1) and (
        _is_sliceable(x.shape[2:], kernel, dilations) and is_surely_a_size(_length_of_rows(x, kernel, dilations))
    )  # fmt: skip
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
