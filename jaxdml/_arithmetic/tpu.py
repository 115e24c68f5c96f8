"""Products and convolutions for TPUs, whose matrix units multiply int8. Tests lower them; none has run on a TPU."""

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax import lax

from jaxdml._arithmetic import int8, int32, windows, zero_points
from jaxdml._arithmetic.layouts import Filter
from jaxdml._arithmetic.sharding import broadcast_like, out_sharding

Array = jax.Array
WIDTH = 128  # of a matrix unit, at least


def dot_and_sums(a: Array, b: Array, layout: str) -> tuple[Array, Array]:
    """The product of `int8`, and the sums of the columns of b. A product of few rows sums by a row of ones.

    The sums then cost no second pass over b. With many rows that pass costs less than the product without the ones,
    which need not be stored before it is rounded.
    """
    rows, depth = a.shape[-2:]
    is_plain = isinstance(rows, int) and isinstance(depth, int) and out_sharding((a, 0)) is None
    if not is_plain or not 1 < rows <= depth // 8:
        return zero_points.dot_and_reduced_columns(a, b, layout)
    with_ones = lax.pad(a, np.int8(1), [(0, int(axis == a.ndim - 2), 0) for axis in range(a.ndim)])
    total = int8.product_in_parts(with_ones, b, layout)
    return (
        lax.slice_in_dim(total, 0, rows, axis=a.ndim - 2),
        lax.slice_in_dim(total, rows, rows + 1, axis=a.ndim - 2),
    )


def conv(x: Array, filter: Filter, strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """The convolution of `lax`, on int8; a matrix product if its sums may not fit int32."""
    if math.prod(filter.shape[1:]) > int8.MOST_TERMS:
        return windows.matrix(x, filter, strides, dilations)
    values, group_count = _wide_groups(filter)
    return int32.convolution(x, values, group_count, strides, dilations)


def _wide_groups(filter: Filter) -> tuple[Array, int]:
    """The filter's values and their number of groups, merged to groups as wide as a matrix unit.

    Zeros stand where a merged group's outputs meet the inputs of others. Groups of one channel stay apart: XLA
    convolves them on vector units.
    """
    values, groups = filter.array(), filter.group_count
    outputs, channels, *kernel = values.shape
    width = min(WIDTH, int8.MOST_TERMS // math.prod(kernel))
    merged = max((m for m in range(1, groups + 1) if groups % m == 0 and m * channels <= width), default=1)
    if merged == 1 or channels == 1:
        return values, groups
    wide = lax.concatenate([values] * merged, 1)
    group_of_output = np.arange(outputs) // (outputs // groups) % merged
    own = group_of_output[:, None] == np.arange(merged * channels)[None] // channels
    mask = broadcast_like(own.reshape(*own.shape, *(1,) * len(kernel)), wide)
    return lax.select(mask, wide, lax.full_like(wide, 0)), groups // merged
