"""Helpers for all rules: products that are not contracted, exact sums and products of two floats, bits as integers.

A pair is a float32 and a second, much smaller one that holds the rounding error of the first. The functions of this
file take zeros, and magnitudes for which nothing overflows and no result that matters is subnormal.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array
Pair = tuple[Array, Array]
FAR = np.float32(2.0**100)
SIGN, BITS_OF_ONE = np.int32(-(2**31)), np.int32(0x3F800000)
UPPER_HALF = np.int32(-(2**12))  # clears the lower 12 of the 24 bits of a significand
INFINITY, NAN = np.float32(np.inf), np.float32(np.nan)


def times(x: Any, y: Any) -> Array:
    """fl(x * y), for results below 2**100. No compiler contracts it with a sum.

    The minimum never changes the value, but compilers do not know that unless they know that the product is never
    positive; `horner` avoids such products. (A maximum with -2**100 would not do: LLVM knows that a square is not
    negative.)
    """
    return lax.min(x * y, FAR)


def horner(coefficients: Sequence[float], x: Array) -> Array:
    """fl(... fl(fl(c0 * x) + c1) * x ... + cn)."""
    if coefficients[0] < 0:  # LLVM drops the minimum of a product that is never positive, such as c0 times a square
        return -horner([-coefficient for coefficient in coefficients], x)
    result = lax.full_like(x, np.float32(coefficients[0]))
    for coefficient in coefficients[1:]:
        result = times(result, x) + np.float32(coefficient)
    return result


def plus(x: Any, y: Any) -> Array:
    """fl(x + y), for finite sums. Some versions of XLA simplify (x + 1) - 1 to x; the minimum prevents it."""
    return lax.min(x + y, np.finfo(np.float32).max)


def fast_sum(x: Any, y: Any) -> Pair:
    """fl(x + y) and the rest, exact where |x| >= |y| or x is 0."""
    total = plus(x, y)
    return total, y - (total - x)


def exact_sum(x: Any, y: Any) -> Pair:
    """fl(x + y) and the rest, which is exact."""
    total = plus(x, y)
    back = total - x
    return total, (x - (total - back)) + (y - back)


def halves(x: Any) -> Pair:
    """x as the sum of two floats of 12 bits, whose products are exact: contracting them changes nothing."""
    upper = floats(bits(x) & UPPER_HALF)
    return upper, x - upper


def exact_product(x: Any, y: Any) -> Pair:
    """fl(x * y) and the rest, which is exact."""
    product = times(x, y)
    (a, b), (c, d) = halves(x), halves(y)
    return product, (((a * c - product) + a * d) + b * c) + b * d


def bits(x: Any) -> Array:
    """The bits of a float32 as int32."""
    return lax.bitcast_convert_type(x, jnp.int32)


def floats(x: Any) -> Array:
    """The float32 with the bits of an int32."""
    return lax.bitcast_convert_type(x, jnp.float32)


def with_sign(magnitude: Array, x: Array) -> Array:
    """The non-negative `magnitude` with the sign of x."""
    return floats(bits(magnitude) | (bits(x) & SIGN))


def power_of_two(exponent: Array) -> Array:
    """2.0**exponent, for int32 exponents from -126 to 127."""
    return floats(lax.shift_left(exponent + np.int32(127), np.int32(23)))


def scaled(x: Array, exponent: Array) -> Array:
    """x * 2**exponent, x not 0, where the result is a normal number."""
    return floats(bits(x) + lax.shift_left(exponent, np.int32(23)))


def nearest(x: Array) -> Array:
    """x rounded to an integer, ties to even, as a float."""
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


def integers(x: Array) -> Array:
    """Whole float32 numbers as int32."""
    return lax.convert_element_type(x, jnp.int32)


def where(predicate: Array, x: Any, y: Any) -> Array:
    """x where the predicate holds, else y; one of them may be a number."""
    x, y = (lax.full_like(predicate, z, jnp.float32) if np.ndim(z) == 0 else z for z in (x, y))
    return lax.select(predicate, x, y)
