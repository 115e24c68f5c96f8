"""Matrix products of two arrays of floats, with one answer. docs/numerics.md has both rules.

Rows of floats are rounded to integers with a scale for each row. Sums of products of integers are exact, and each is
rounded once, so neither the batch, nor the number of rows, nor a vector's width changes a bit. Here the integers are
split into planes of int8; the native kernel of attention computes the same sums in float64.
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
BITS = 8  # of a plane
HALF = np.float32(2.0**15)  # integers of `a` are upper * HALF + lower, and each of both sums is exact


class Integers(NamedTuple):
    """How rows are rounded.

    Attributes:
      planes: of an integer.
      most: the largest integer; rounding may pass it by 16, which the planes hold.
      terms: of a sum; longer sums are cut into parts, whose rounded sums are added in ascending order.
    """

    planes: int
    most: int
    terms: int

    @property
    def first(self) -> np.float32:
        """A factor that moves from sums to scales, of which fewer are subnormal then."""
        return np.float32(64 * self.most // 127)


# Sums of `terms` products are below 2**53 for a half of an integer of rows, and below 2**63 for weights and values.
# Planes' sums fit int32: three pairs of planes give 2**15 * 3 * 2**14 < 2**31.
OF_ROWS = Integers(4, 127 << 20, 2**12)
OF_VALUES = Integers(3, 127 << 16, 2**15)
OF_WEIGHTS = Integers(4, 127 << 18, 2**15)


def product_of_rows(a: Array, b: Array) -> Array:
    """float32 [..., M, K] times the rows of float32 [..., N, K]: [..., M, N].

    An element depends on its row of a and its row of b alone.
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

    An element depends on its row of weights, and on the rows of values whose weight is not 0. The scale of a row of
    values is a factor of its weight, so that rows without weight change no other row's rounding.
    """
    values_scale, of_values = _rounded(values, OF_VALUES)
    weights = rounding.flushed(weights)
    scaled = rounding.product(weights, _along(lax.mul(values_scale, OF_VALUES.first), weights.shape, -1))
    is_without = lax.eq(weights, np.float32(0))  # then the scale may be NaN
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
    """x [..., size], broadcast to `shape` so that its last axis is the given one of the last two."""
    rank = len(shape)
    return lax.broadcast_in_dim(x, shape, (*range(rank - 2), rank + axis))


def _in_parts(depth: int, terms: int, of_part: Callable[[int, int], Array]) -> Array:
    total, *rest = (of_part(start, min(start + terms, depth)) for start in range(0, max(depth, 1), terms))
    for part in rest:
        total = lax.add(total, part)
    return total


def _sums(of_a: Sequence[Array], of_b: Sequence[Array], start: int, end: int, layout: str) -> Array:
    """The float32 nearest to sums of products of integers.

    b's planes are [..., K, N] or, in layout "NK", [..., N, K].
    """
    axis_of_a, axis_of_b = of_a[0].ndim - 1, of_b[0].ndim - (1 if layout == "NK" else 2)
    size = end - start
    # With b's planes in reverse order, consecutive planes of a and of b make each sum of places one product.
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
