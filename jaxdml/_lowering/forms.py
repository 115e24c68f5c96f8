"""The contractions on int8, whatever the backend: zero points apart, and the forms that are products or sums of shifts.

Why it is exact: integer addition and multiplication modulo 2**32 may be reordered and distributed at will, so that
sum (x - zx)(y - zy) = sum xy - zy sum x - zx sum y + depth zx zy.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._lowering.int8 import product, signed, signed_zero_point, sums_of_rows
from jaxdml._lowering.prepared import PreparedFilter, PreparedMatrix, rows_of

Array = jax.Array
# From int8 x, padded, the filter, strides and dilations to int32 [N, O, *output].
Form = Callable[[Array, PreparedFilter, Sequence[int], Sequence[int]], Array]


def _corrected(
    total: Array, depth: int, x_zero_point: Array | None, y_sums: Array, y_zero_point: Array | None, x_sums: Array
) -> Array:
    """total less what the zero points add to it; a zero point of None costs nothing, its sums are not computed."""
    if y_zero_point is not None:
        total -= y_zero_point * x_sums
    if x_zero_point is not None:
        total -= x_zero_point * y_sums
    if x_zero_point is not None and y_zero_point is not None:
        total += np.int32(depth) * x_zero_point * y_zero_point
    return total


def dot(a: Array, a_zero_point: Array | None, b: PreparedMatrix, b_zero_point: Array | None) -> Array:
    """[..., M, K] times [..., K, N]."""
    a_zero_point = signed_zero_point(a_zero_point, a.dtype, a.ndim)
    b_zero_point = signed_zero_point(b_zero_point, b.dtype, b.ndim)
    a = signed(a)
    return _corrected(product(a, b.values, b.layout), a.shape[-1], a_zero_point, b.sums, b_zero_point, sums_of_rows(a))


def conv(
    form: Form,
    x: Array,
    x_zero_point: Array | None,
    filter: PreparedFilter,
    filter_zero_point: Array | None,
    *,
    strides: Sequence[int],
    dilations: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> Array:
    """[N, C, *spatial] with [O, C / groups, *kernel], multiplied out by form; padding is x_zero_point, real zero."""
    _, channels, *kernel = filter.shape
    x_zero_point = signed_zero_point(x_zero_point, x.dtype, x.ndim)
    filter_zero_point = signed_zero_point(filter_zero_point, filter.dtype, filter.ndim)
    edge = jnp.zeros((), jnp.int8) if x_zero_point is None else x_zero_point.astype(jnp.int8).reshape(())
    x = lax.pad(signed(x), edge, [(0, 0, 0), (0, 0, 0), *((start, end, 0) for start, end in padding)])
    total = form(x, filter, strides, dilations)
    channelwise = (1, -1, *(1,) * len(kernel))
    if filter_zero_point is not None:
        filter_zero_point = filter_zero_point.reshape(channelwise)
    x_sums = _window_sums(x, filter, strides, dilations)
    depth = channels * math.prod(kernel)
    return _corrected(total, depth, x_zero_point, filter.sums.reshape(channelwise), filter_zero_point, x_sums)


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


def _window_sums(x: Array, filter: PreparedFilter, strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """The sums of x under the kernel, for each output channel: [N, O, *output]."""
    groups, (outputs, channels, *kernel) = filter.group_count, filter.shape
    sums = jnp.sum(x.reshape(x.shape[0], groups, channels, *x.shape[2:]), axis=2, dtype=jnp.int32)
    for axis, window in enumerate(zip(kernel, strides, dilations, strict=True), start=2):
        sums = jnp.sum(_side_by_side(sums, axis, axis, *window), axis=axis, dtype=jnp.int32)
    return jnp.repeat(sums, outputs // groups, axis=1)


def _side_by_side(x: Array, axis: int, to: int, size: int, stride: int, dilation: int) -> Array:
    """What each of `size` elements of a kernel sees along an axis, side by side in a new axis `to`."""
    length = x.shape[axis] - (size - 1) * dilation
    starts = range(0, size * dilation, dilation)
    if size <= 32:
        return jnp.stack([lax.slice_in_dim(x, start, start + length, stride, axis) for start in starts], axis=to)
    # Slower to run, but hundreds of slices take XLA ten seconds to compile.
    indices = np.arange(0, size * dilation, dilation)[:, None] + np.arange(0, length, stride)
    return jnp.moveaxis(jnp.take(x, indices.astype(np.int32), axis=axis, mode="clip"), axis, to)


def matrix(x: Array, filter: PreparedFilter, strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """For each group a product of matrices: [O / groups, C / groups * kernel] times the windows side by side.

    1 x 1, 64 to 256 channels at 56 x 56: 1.1 ms, against 1.9 ms with channels last, which must be transposed twice.
    """
    groups, (outputs, channels, *kernel) = filter.group_count, filter.shape
    columns = jnp.moveaxis(x, 1, 0)  # [C, N, *spatial], to become [C, *kernel, N, *output]
    for axis, window in enumerate(zip(kernel, strides, dilations, strict=True)):
        columns = _side_by_side(columns, columns.ndim - len(kernel) + axis, 1 + axis, *window)
    seen_by_output = columns.shape[1 + len(kernel) :]
    # In two steps: on explicit axes JAX reshapes by merging dimensions or by splitting them, not both at once.
    columns = columns.reshape(groups, channels, *kernel, *seen_by_output)
    columns = columns.reshape(groups, channels * math.prod(kernel), *seen_by_output)
    total = product(rows_of(filter), columns)
    return jnp.moveaxis(total.reshape(outputs, *seen_by_output), 0, 1)


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
