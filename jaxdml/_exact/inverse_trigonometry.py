"""atan2, atan, asin and acos.

The quotient of the smaller and the larger of |y| and |x| is a pair t; atan(t) = t + t**3 * ATAN(t**2), and an angle of
another octant is a multiple of pi / 2 plus or minus that.
asin(s) = s + s**3 * ASIN(s**2) up to 1/2; above, asin(x) = pi / 2 - 2 * asin(s) with the pair s = sqrt((1 - x) / 2).
"""

import jax
import numpy as np
from jax import lax

from jaxdml._exact.arithmetic import divided, quotient, root_of
from jaxdml._exact.pairs import (
    BITS_OF_ONE,
    INFINITY,
    NAN,
    Pair,
    bits,
    exact_product,
    fast_sum,
    floats,
    horner,
    times,
    where,
    with_sign,
)

Array = jax.Array
ATAN = (
    -0.001791223301552236, 0.010903414338827133, -0.031155923381447792, 0.057934246957302094, -0.08401985466480255,
    0.10951638221740723, -0.14264124631881714, 0.1999853551387787, -0.33333298563957214,
)  # fmt: skip
ASIN = (0.04215701296925545, 0.024185502901673317, 0.045469019562006, 0.0749531015753746, 0.16666752099990845)
HALF_PI, HALF_PI_REST = np.float32(1.5707964), np.float32(-4.371139e-08)
PI, PI_REST = np.float32(3.1415927), np.float32(-8.742278e-08)
ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)
MANTISSA = np.int32(2**23 - 1)
FAR = np.int32(30)  # where the exponents differ by more, atan(t) rounds to t


def turned(base: Array, base_rest: Array, angle: Pair) -> Array:
    """base + base_rest + angle, for a base that is 0 or larger than the angle."""
    total, lost = fast_sum(base, angle[0])
    return total + (lost + (base_rest + angle[1]))


def signed(pair: Pair, is_negative: Array) -> Pair:
    """The pair, negated where is_negative."""
    return where(is_negative, -pair[0], pair[0]), where(is_negative, -pair[1], pair[1])


def atan2(y: Array, x: Array) -> Array:
    """The angle of the point (x, y), from -pi to pi; C's results for zeros and infinities."""
    height, width = lax.abs(y), lax.abs(x)
    is_steep, is_left = height > width, bits(x) < 0
    larger, smaller = where(is_steep, height, width), where(is_steep, width, height)
    exponent = lax.shift_right_logical(bits(larger), np.int32(23))
    is_far = (exponent - lax.shift_right_logical(bits(smaller), np.int32(23)) > FAR) | (smaller == 0)
    is_far = is_far | ((larger == INFINITY) & (smaller < INFINITY))
    divisor = floats((bits(larger) & MANTISSA) | BITS_OF_ONE)  # from 1 to 2; 1 for 0 and infinity
    dividend = floats(bits(smaller) - lax.shift_left(exponent - np.int32(127), np.int32(23)))
    dividend = where(is_far, ZERO, dividend)
    t = quotient(dividend, divisor)
    product, rest = exact_product(t, divisor)
    square = times(t, t)
    cubic = times(t, times(horner(ATAN, square), square))
    rest = quotient((dividend - product) - rest, times(divisor, ONE + square))  # the derivative is 1 / (1 + t**2)
    angle = signed((t, cubic + rest), is_steep ^ is_left)
    base, base_rest = (
        where(is_steep, half, where(is_left, whole, ZERO)) for half, whole in ((HALF_PI, PI), (HALF_PI_REST, PI_REST))
    )
    result = turned(base, base_rest, angle)
    flat = where(height == 0, ZERO, divided(height, width))
    result = where(is_far & ~is_steep & ~is_left, flat, result)
    return where((x != x) | (y != y), NAN, with_sign(result, y))


def atan(x: Array) -> Array:
    """The angle whose tangent is x, from -pi / 2 to pi / 2."""
    return atan2(x, lax.full_like(x, 1))


def arc(x: Array) -> tuple[Array, Pair]:
    """Whether |x| is at most 1/2, and asin(s) as a pair: s is |x| there, and sqrt((1 - |x|) / 2) elsewhere."""
    size = lax.abs(x)
    is_near = size <= HALF
    square = where(is_near, times(size, size), (ONE - size) * HALF)  # exact above 1/2
    root, rest = root_of((square, lax.full_like(square, 0)))
    s, rest = where(is_near, size, root), where(is_near, ZERO, rest)
    return is_near, (s, times(s, times(horner(ASIN, square), square)) + rest)


def inside(y: Array, x: Array) -> Array:
    """y, or NaN where |x| > 1 or x is NaN."""
    return where(lax.abs(x) <= 1, y, NAN)


def asin(x: Array) -> Array:
    """The angle whose sine is x, from -pi / 2 to pi / 2; odd."""
    is_near, (s, rest) = arc(x)
    s, rest = where(is_near, s, -(s + s)), where(is_near, rest, -(rest + rest))
    base, base_rest = where(is_near, ZERO, HALF_PI), where(is_near, ZERO, HALF_PI_REST)
    return inside(with_sign(turned(base, base_rest, (s, rest)), x), x)


def acos(x: Array) -> Array:
    """The angle whose cosine is x, from 0 to pi."""
    is_near, (s, rest) = arc(x)
    is_left = bits(x) < 0
    angle = signed((where(is_near, s, s + s), where(is_near, rest, rest + rest)), is_near ^ is_left)
    base, base_rest = (
        where(is_near, half, where(is_left, whole, ZERO)) for half, whole in ((HALF_PI, PI), (HALF_PI_REST, PI_REST))
    )
    return inside(turned(base, base_rest, angle), x)
