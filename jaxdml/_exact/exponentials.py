"""exp, exp2, expm1, logistic and tanh share a polynomial of degree 4; tanh has a second polynomial near 0.

x = n * ln 2 + r, with r from -0.347 to 0.347 as a pair. ln 2 is LN2_UPPER + LN2_LOWER, constants of 15 and 16 bits, so
their products with n are exact. e**r is 1 + p, where p = r + r**2 * EXP(r).
"""

import jax
import numpy as np
from jax import lax

from jaxdml._exact.arithmetic import quotient
from jaxdml._exact.pairs import (
    INFINITY,
    NAN,
    Pair,
    fast_sum,
    halves,
    horner,
    integers,
    nearest,
    power_of_two,
    scaled,
    times,
    where,
    with_sign,
)  # fmt: skip

Array = jax.Array
LOG2_E = np.float32(1.44269504)
LN2_UPPER, LN2_LOWER = np.float32(0.693145751953125), np.float32(1.4286197256296873e-06)
LN2 = np.float32(0.6931472)
LN2_12, LN2_REST = np.float32(0.693115234375), np.float32(3.1946183e-05)  # LN2_12 has 12 bits
EXP = (0.0013950539287179708, 0.008368918672204018, 0.04166620597243309, 0.166665181517601, 0.5)
TANH = (-0.006179809104651213, 0.021007457748055458, -0.053837429732084274, 0.1333245187997818, -0.3333331346511841)
LOWEST, HIGHEST = np.float32(-87.33654), np.float32(88.72283)  # exp is normal between them


def reduced(x: Array, near: Array | None = None) -> tuple[Array, Pair]:
    """n and the pair r, for |x| <= 126. If `near`, a number near x, is given, n is computed from it."""
    n = nearest((x if near is None else near) * LOG2_E)
    upper = x - n * LN2_UPPER
    r = upper - n * LN2_LOWER
    return n, (r, (upper - r) - n * LN2_LOWER)


def grown(r: Pair) -> Pair:
    """p = e**r - 1 as a pair, for a pair r."""
    return fast_sum(r[0], times(horner(EXP, r[0]), times(r[0], r[0])) + r[1])


def one_more(p: Pair) -> Pair:
    """1 + p, as a pair."""
    total, rest = fast_sum(np.float32(1), p[0])
    return total, rest + p[1]


def together(pair: Pair) -> Array:
    """The sum of a pair's parts."""
    return pair[0] + pair[1]


def exp(x: Array) -> Array:
    """e**x."""
    n, r = reduced(lax.clamp(LOWEST, where(x != x, np.float32(0), x), HIGHEST))
    return in_range(scaled(together(one_more(grown(r))), integers(n)), x, LOWEST, HIGHEST)


def exp2(x: Array) -> Array:
    """2**x with r = ln 2 * (x - n), a sum of products of which the first is exact."""
    lowest, highest = np.float32(-126), np.float32(127.99999)
    near = lax.clamp(lowest, where(x != x, np.float32(0), x), highest)
    n = nearest(near)
    return in_range(scaled(together(one_more(grown(times_ln2(near - n)))), integers(n)), x, lowest, highest)


def times_ln2(x: Array) -> Pair:
    """x * ln 2 as a pair, |x| <= 1/2."""
    upper, lower = halves(x)
    return fast_sum(upper * LN2_12, times(upper, LN2_REST) + times(lower, LN2))


def in_range(y: Array, x: Array, lowest: np.float32, highest: np.float32) -> Array:
    """y, or 0 where x < lowest, infinity where x > highest, and NaN where x is NaN."""
    y = where(x < lowest, np.float32(0), where(x > highest, INFINITY, y))
    return where(x != x, NAN, y)


def expm1(x: Array) -> Array:
    """e**x - 1 = 2**n * ((1 - 2**-n) + p)."""
    n, r = reduced(lax.clamp(np.float32(-18), where(x != x, np.float32(0), x), HIGHEST))
    p = grown(r)
    total, rest = fast_sum(np.float32(1) - power_of_two(-integers(lax.min(n, np.float32(126)))), p[0])
    y = scaled(total + (rest + p[1]), integers(n))
    y = where(x > HIGHEST, INFINITY, with_sign(lax.abs(y), x))
    return where(x != x, NAN, y)


def logistic(x: Array) -> Array:
    """1 / (1 + e) for x >= 0, e / (1 + e) for x < 0, where e = exp(-|x|) and 1 + e are pairs.

    A correction from the smaller parts is added to the quotient of the larger parts.
    """
    n, r = reduced(lax.clamp(LOWEST, -lax.abs(where(x != x, np.float32(0), x)), np.float32(0)))
    e = one_more(grown(r))
    factor = power_of_two(integers(lax.max(n, np.float32(-60))))
    denominator, rest = fast_sum(np.float32(1), e[0] * factor)
    rest = rest + e[1] * factor
    is_negative = x < 0
    near = quotient(where(is_negative, e[0], np.float32(1)), denominator)
    error = where(is_negative, e[1], np.float32(0)) - times(near, rest)
    correction = times(error, where(is_negative, quotient(np.float32(1), denominator), near))
    y = near + correction
    y = where(is_negative, scaled(y, integers(n)), y)
    y = where(x < LOWEST, np.float32(0), y)
    return where(x != x, NAN, y)


def tanh(x: Array) -> Array:
    """x + x**3 * TANH(x**2) below 0.5625, else 1 - 2 / (exp(2 |x|) + 1); the sum in the quotient is a pair."""
    size = lax.min(where(x != x, np.float32(0), lax.abs(x)), np.float32(9.5))
    small = lax.min(size, np.float32(0.5625))
    square = times(small, small)
    near = size + times(times(horner(TANH, square), square), small)
    n, r = reduced(size + size)
    e, factor = one_more(grown(r)), power_of_two(integers(n))
    denominator, rest = fast_sum(e[0] * factor, np.float32(1))
    t = quotient(np.float32(2), denominator)
    total, lost = fast_sum(np.float32(1), -t)
    half = t * np.float32(0.5)
    far = total + (lost + times(times(t, half), rest + e[1] * factor))
    return where(x != x, NAN, with_sign(where(size < np.float32(0.5625), near, far), x))
