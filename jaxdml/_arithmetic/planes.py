"""Rounds floats to integers, and splits integers into int8 planes, whose products combine into those of the integers.

An integer is the sum of plane[i] * base**(count - 1 - i). With 7 bits per plane, the base is 128, the first plane lies
in [-127, 127], and the others in [-64, 63]; with 8 bits, the base is 256, and all planes lie in [-128, 127].

A sum of products of planes fits int32, but may overflow when multiplied by a power of the base. Such sums are combined
either in float32 in a fixed order, or exactly and rounded once.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import rounding

Array = jax.Array
BASE = np.float32(128)
INFINITY = np.int32(255 << 23)  # the bits of float32 infinity; those of NaN are above


def largest(count: int) -> int:
    """The largest integer of `count` planes of 7 bits; the smallest in use is its negative."""
    return 127 * 128 ** (count - 1) + 63 * (128 ** (count - 1) - 1) // 127


def split(x: Array, count: int, bits: int = 7) -> list[Array]:
    """The planes of int32 x, each int8 and of x's shape, the highest first."""
    planes: list[Array] = []
    middle, mask = np.int32(2 ** (bits - 1)), np.int32(2**bits - 1)
    for _ in range(count - 1):
        lowest = lax.sub(lax.bitwise_and(lax.add(x, middle), mask), middle)
        planes.insert(0, lax.convert_element_type(lowest, jnp.int8))
        x = lax.shift_right_arithmetic(lax.sub(x, lowest), np.int32(bits))
    return [lax.convert_element_type(x, jnp.int8), *planes]


def combined(sums: Sequence[Array]) -> Array:
    """The float32 sum of int32 sums[i] * 128**(count - 1 - i): fl(fl(sums[0]) * 128 + fl(sums[1])), and so on.

    Multiplication by 128 is exact, so a fused multiply-add has the same bits.
    """
    first, *rest = (lax.convert_element_type(each, jnp.float32) for each in sums)
    for each in rest:
        first = lax.add(lax.mul(first, BASE), each)
    return first


def exactly_combined(sums: Sequence[Array]) -> Array:
    """The float32 nearest to the sum of int32 sums[i] * 256**(count - 1 - i), of five to seven sums.

    The magnitude of the sum must be below 2**63.
    """
    # If an array is added to a product, a GPU's compiler starts the product's sums from the array, and they may
    # saturate. Therefore, digits of the products are added here, never the products themselves.
    words = [lax.full_like(sums[0], 0)] * 2
    carry = words[0]
    for place, each in enumerate(reversed(sums)):
        low = lax.add(lax.bitwise_and(each, np.int32(255)), carry)
        carry = lax.add(lax.shift_right_arithmetic(each, np.int32(8)), lax.shift_right_arithmetic(low, np.int32(8)))
        digit = lax.shift_left(lax.bitwise_and(low, np.int32(255)), np.int32(8 * (place % 4)))
        words[place // 4] = lax.bitwise_or(words[place // 4], digit)
    low, high = words
    return nearest_float(lax.bitwise_or(high, lax.shift_left(carry, np.int32(8 * len(sums) - 32))), low)


def nearest_float(high: Array, low: Array) -> Array:
    """The float32 nearest to int32 high * 2**32 + low, ties to even; the bits of int32 low are those of a uint32."""
    is_negative, zero = lax.lt(high, np.int32(0)), lax.full_like(high, 0)
    borrow = lax.convert_element_type(lax.eq(low, zero), jnp.int32)
    high = lax.select(is_negative, lax.add(lax.bitwise_not(high), borrow), high)
    low = lax.select(is_negative, lax.neg(low), low)
    has_two = lax.ne(high, zero)
    upper, lower = lax.select(has_two, high, low), lax.select(has_two, low, zero)
    shift = lax.min(lax.clz(upper), np.int32(31))  # clz is 32 if upper is 0
    behind = lax.shift_right_logical(lax.shift_right_logical(lower, np.int32(1)), lax.sub(np.int32(31), shift))
    word, lost = lax.bitwise_or(lax.shift_left(upper, shift), behind), lax.shift_left(lower, shift)
    # `kept | is_inexact` has 31 bits; its lowest bit is set if any discarded bit was set. float32 has only 24 bits, so
    # the conversion rounds correctly.
    is_inexact = lax.convert_element_type(lax.ne(lost, zero), jnp.int32)
    kept = lax.bitwise_or(lax.shift_right_logical(word, np.int32(1)), lax.bitwise_and(word, np.int32(1)))
    size = lax.convert_element_type(lax.bitwise_or(kept, is_inexact), jnp.float32)
    exponent = lax.sub(lax.select(has_two, lax.full_like(high, 33), lax.full_like(high, 1)), shift)
    power = lax.shift_left(lax.add(exponent, np.int32(127)), np.int32(23))
    size = lax.mul(size, lax.bitcast_convert_type(power, jnp.float32))
    return lax.select(is_negative, lax.neg(size), size)


def rounded_rows(x: Array, most: int) -> tuple[Array, Array]:
    """The scales [...] of the rows of float32 x [..., size], and the rounded integers as float32 [..., size].

    The greatest magnitude of a row becomes the integer `most`, which float32 holds. A row that is not finite has scale
    NaN; its integers are arbitrary or NaN. A row whose scale would be subnormal has the scale 0.
    """
    greatest = np.float32(most)
    x = rounding.flushed(x)
    # The maximum of the bits as integers propagates NaN, whose bits are above those of infinity.
    magnitudes = lax.bitcast_convert_type(lax.abs(x), jnp.int32)
    most_bits = lax.reduce(magnitudes, np.int32(0), lax.max, (x.ndim - 1,))
    is_finite, high = lax.lt(most_bits, INFINITY), lax.bitcast_convert_type(most_bits, jnp.float32)
    is_live = lax.bitwise_and(is_finite, lax.ge(high, greatest * rounding.SMALLEST_NORMAL))
    zero, one = lax.full_like(high, 0), lax.full_like(high, 1)
    divisor, most_of_each = lax.select(is_live, high, one), lax.full_like(high, greatest)
    scale = lax.select(is_live, rounding.quotient(high, most_of_each), zero)
    scale = lax.select(is_finite, scale, lax.full_like(high, np.nan))
    inverse = lax.select(is_live, rounding.quotient(most_of_each, divisor), zero)
    inverse_of_each = jnp.broadcast_to(inverse[..., None], x.shape)
    return scale, lax.round(lax.mul(x, inverse_of_each), lax.RoundingMethod.TO_NEAREST_EVEN)
