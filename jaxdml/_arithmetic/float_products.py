"""Matrix products of two float arrays with the same bits on every processor. docs/numerics_products.md has the rules.

Rows of floats are rounded to integers with a scale for each row. Sums of products of integers are exact, and each sum
is rounded once, so the bits depend neither on the batch, nor on the number of rows, nor on the width of vectors. Here
the integers are split into planes of int8; the native kernel of attention computes the same sums in float64.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import planes, rounding
from jaxdml._arithmetic.contractions import integer_dot
from jaxdml._arithmetic.platforms import int8_dot

Array = jax.Array
BITS = 8  # bits per plane
HALF = np.float32(2.0**15)  # an integer of `a` is upper * HALF + lower; the sums of each half are exact


class Integers(NamedTuple):
    """How rows are rounded.

    Attributes:
      planes: the number of planes of an integer.
      most: the largest integer; rounding may exceed it by up to 16, and the planes hold such integers, too.
      terms: the largest number of terms in an exact sum. Longer sums are split into parts, and the rounded sums of the
        parts are added from the first part to the last.
    """

    planes: int
    most: int
    terms: int

    @property
    def first(self) -> np.float32:
        """A factor that is moved from the sums to the scales, so that fewer scales are subnormal."""
        return np.float32(64 * self.most // 127)


# With OF_ROWS, sums of `terms` products are below 2**53 for each half (upper or lower, see HALF) of a's integers. Sums
# of `terms` products of weights and values are below 2**63. The sums of planes fit int32: three pairs of planes give
# 2**15 * 3 * 2**14 < 2**31.
OF_ROWS = Integers(4, 127 << 20, 2**12)
OF_VALUES = Integers(3, 127 << 16, 2**15)
OF_WEIGHTS = Integers(4, 127 << 18, 2**15)


def product_of_rows(a: Array, b: Array) -> Array:
    """float32 [..., M, K] times the rows of float32 [..., N, K]: [..., M, N].

    An element depends only on its row of a and its row of b.
    """
    a_scale, of_a = _rounded(a, OF_ROWS)
    b_scale, of_b = _rounded(b, OF_ROWS)
    upper = lax.round(lax.mul(of_a, np.float32(1 / HALF)), lax.RoundingMethod.TO_NEAREST_EVEN)
    halves = [_split(half, 2) for half in (upper, lax.sub(of_a, lax.mul(upper, HALF)))]
    planes_of_b = _split(of_b, OF_ROWS.planes)

    def of_part(start: int, end: int) -> Array:
        upper, lower = (_sums(half, planes_of_b, start, end, "NK") for half in halves)
        return lax.mul(lax.add(lax.mul(upper, HALF), lower), np.float32(1 / OF_ROWS.first))

    sums = _in_parts(a.shape[-1], OF_ROWS.terms, of_part)
    scale = rounding.product(_along(lax.mul(a_scale, OF_ROWS.first), sums.shape, -2), _along(b_scale, sums.shape, -1))
    return rounding.flushed(lax.mul(scale, sums))


def weighted_sums(weights: Array, values: Array) -> Array:
    """float32 [..., M, K] times float32 [..., K, N]: [..., M, N].

    An element depends on its row of weights, and on the rows of values whose weight is not 0. The scale of each row of
    values is multiplied into the row's weight, so a row of weight 0 does not affect how others are rounded.
    """
    values_scale, of_values = _rounded(values, OF_VALUES)
    weights = rounding.flushed(weights)
    scaled = rounding.product(weights, _along(lax.mul(values_scale, OF_VALUES.first), weights.shape, -1))
    is_without = lax.eq(weights, np.float32(0))  # the scale of a row of weight 0 may be NaN
    scale, of_weights = _rounded(lax.select(is_without, lax.full_like(weights, 0), scaled), OF_WEIGHTS)
    planes_of_weights, planes_of_values = _split(of_weights, OF_WEIGHTS.planes), _split(of_values, OF_VALUES.planes)

    def of_part(start: int, end: int) -> Array:
        sums = _sums(planes_of_weights, planes_of_values, start, end, "KN")
        return lax.mul(sums, np.float32(1 / OF_VALUES.first))

    sums = _in_parts(weights.shape[-1], OF_VALUES.terms, of_part)
    return rounding.flushed(lax.mul(_along(scale, sums.shape, -2), sums))


def _rounded(x: Array, kind: Integers) -> tuple[Array, Array]:
    return planes.rounded_rows(x, kind.most)


def _split(x: Array, count: int) -> list[Array]:
    return planes.split(lax.convert_element_type(x, jnp.int32), count, BITS)


def _along(x: Array, shape: tuple[int, ...], axis: int) -> Array:
    """x [..., size], broadcast to `shape` so that x's last axis becomes `axis`, -2 or -1."""
    rank = len(shape)
    return lax.broadcast_in_dim(x, shape, (*range(rank - 2), rank + axis))


def _in_parts(depth: int, terms: int, of_part: Callable[[int, int], Array]) -> Array:
    total, *rest = (of_part(start, min(start + terms, depth)) for start in range(0, max(depth, 1), terms))
    for part in rest:
        total = lax.add(total, part)
    return total


def _sums(of_a: Sequence[Array], of_b: Sequence[Array], start: int, end: int, layout: str) -> Array:
    """The float32 nearest to each sum of products of integers that are given as planes.

    b's planes are [..., K, N] or, in layout "NK", [..., N, K].
    """
    axis_of_a, axis_of_b = of_a[0].ndim - 1, of_b[0].ndim - (1 if layout == "NK" else 2)
    size = end - start
    # With b's planes in reverse order, the pairs of planes with one place value are consecutive in both operands, so a
    # single product adds them all.
    left, right = (
        lax.concatenate([lax.slice_in_dim(plane, start, end, axis=axis) for plane in of_x], axis)
        for of_x, axis in ((of_a, axis_of_a), (of_b[::-1], axis_of_b))
    )
    sums = []
    for place in range(len(of_a) + len(of_b) - 1):
        first, last = max(place - len(of_b) + 1, 0), min(place, len(of_a) - 1)  # planes of a
        start_of_b = len(of_b) - 1 - place + first
        a, b = (
            lax.slice_in_dim(x, begin * size, (begin + last - first + 1) * size, axis=axis)
            for x, begin, axis in ((left, first, axis_of_a), (right, start_of_b, axis_of_b))
        )
        sums.append(_dot(a, b, layout))
    return planes.exactly_combined(sums)


def _dot(a: Array, b: Array, layout: str) -> Array:
    """The int8 product in int32."""
    return int8_dot(a, b, layout) if layout == "NK" else integer_dot(a, None, b, None)
