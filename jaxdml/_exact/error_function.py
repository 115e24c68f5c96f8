"""erf and erfc, which add up to 1, and the inverse of erf.

erf(x) = x + x * ERF(x**2) below 0.875, else 1 - exp(LOG_ERFC(x)), where erfc is so small that its errors hardly count.
erfc(x) = 1 - erf(x) below 0.46875, else exp(-x**2) * g(x). x**2 is the sum of the exact square of x's upper 12 bits and
a rest. g is a polynomial in 1 / (x + 2) = u + w; u has 12 bits and G_SLOPE has 10, so (u - CENTER) * G_SLOPE is exact.
exp(-x**2), g and their product are pairs.
erf_inv(x) = sqrt(pi) / 2 * x + x**3 * INVERSE(x**2) up to 0.625, else s + (NEAR_ROOT or FAR_ROOT)(s), where the pair s
is the square root of -log((1 - x) * (1 + x)). erf_inv is almost linear in s.
"""

import jax
import numpy as np
from jax import lax

from jaxdml._exact.arithmetic import quotient, root_of
from jaxdml._exact.exponentials import EXP, LN2, grown, one_more, reduced
from jaxdml._exact.pairs import (
    INFINITY,
    NAN,
    Pair,
    exact_product,
    fast_sum,
    halves,
    horner,
    integers,
    power_of_two,
    scaled,
    times,
    where,
    with_sign,
)  # fmt: skip
from jaxdml._exact.powers import log2

Array = jax.Array
ERF = (
    -0.000602048123255372, 0.004998927470296621, -0.026770485565066338, 0.11281921714544296, -0.3761250376701355,
    0.12837915122509003,
)  # fmt: skip
LOG_ERFC = (
    0.00020099460380151868, -0.003092276630923152, 0.022420158609747887, -0.10432738810777664, -0.6367373466491699,
    -1.1279361248016357, -0.00013353305985219777,
)  # fmt: skip
G = (
    -38.99070739746094, 26.01943016052246, 8.420798301696777, -9.22256851196289, -4.677236557006836, 2.862753391265869,
    4.560981750488281, 2.957573890686035,
)  # fmt: skip
INVERSE = (
    0.18132512271404266, -0.07687807828187943, 0.09651487320661545, 0.05621667206287384, 0.08744203299283981,
    0.1275138258934021, 0.23201434314250946,
)  # fmt: skip
NEAR_ROOT = (  # of s - 1.375
    -7.18739684089087e-05, 7.049034320516512e-05, 0.0005514313816092908, -1.6623180272290483e-05,
    -0.003882997902110219, 0.00048567503108642995, 0.030960818752646446, -0.062051668763160706, -0.13119199872016907,
)  # fmt: skip
FAR_ROOT = (  # of s - 3
    -1.4251648281060625e-05, 5.6015898735495284e-05, -4.656264354707673e-05, -0.0002203206968260929,
    0.0011465606512501836, -0.0034453310072422028, 0.006843093317002058, 0.002662399783730507, -0.16719800233840942,
)  # fmt: skip
HALF_ROOT_PI, HALF_ROOT_PI_REST = np.float32(0.88622695), np.float32(-2.66232e-08)
LN2_ERROR = np.float32(-1.9046542e-09)  # ln 2 - LN2
CENTER, G_SLOPE, G_SLOPE_REST = np.float32(0.1875), np.float32(1.283203125), np.float32(4.285782324586762e-06)
G_LAST, G_LAST_REST = np.float32(0.16248995065689087), np.float32(1.0255090998612104e-08)
ONE = np.float32(1)
NEAR, LAST = np.float32(0.46875), np.float32(9.194548606872559)  # erfc is subnormal above LAST
INVERSE_NEAR, BELOW_ONE = np.float32(0.625), np.float32(1 - 2.0**-24)
ERF_NEAR, ERF_LAST = np.float32(0.875), np.float32(4)  # erf rounds to 1 above ERF_LAST


def far(size: Array) -> tuple[Array, Pair]:
    """n and a pair: erfc(size) is the pair times 2**n, for size from NEAR to LAST."""
    upper, lower = halves(size)
    square, more = upper * upper, times(lower, size + upper)  # the first is exact
    n, r = reduced(-square, -(square + more))
    e = one_more(grown(fast_sum(r[0], r[1] - more)))  # `more` is small, so an inexact sum loses little
    divisor, lost = fast_sum(np.float32(2), size)  # exact for every size: 2 is a multiple of the sum's last bit
    u, _ = halves(quotient(ONE, divisor))
    upper, lower = halves(divisor)
    rest = ((ONE - u * upper) - u * lower) - times(u, lost)  # both products of halves are exact
    w = times(times(rest, rest) + rest, u)  # u + w = 1 / (size + 2)
    v = (u - CENTER) + w
    line, line_rest = fast_sum(G_LAST, (u - CENTER) * G_SLOPE)  # an exact product
    g, rest = fast_sum(line, times(times(horner(G, v), v) + G_SLOPE_REST, v) + times(w, G_SLOPE))
    g_upper, g_lower = halves(g)
    g_lower = g_lower + (rest + (line_rest + G_LAST_REST))
    upper, lower = halves(e[0])
    return n, (upper * g_upper, (lower * g_upper + times(e[0], g_lower)) + times(e[1], g_upper))


def below(base: np.float32, n: Array, pair: Pair) -> Array:
    """base - pair * 2**n."""
    factor = power_of_two(integers(lax.max(n, np.float32(-60))))
    total, rest = fast_sum(base, -(pair[0] * factor))
    return total + (rest - pair[1] * factor)


def sizes(x: Array, near: np.float32, last: np.float32) -> tuple[Array, Array]:
    """|x| clamped to [0, near], and |x| clamped to [near, last]; NaN counts as 1."""
    size = where(x != x, ONE, lax.abs(x))
    return lax.min(size, near), lax.clamp(near, size, last)


def erf(x: Array) -> Array:
    """The error function, which is odd."""
    small, large = sizes(x, ERF_NEAR, ERF_LAST)
    is_tiny = small < np.float32(2.0**-64)
    near = where(is_tiny, small * np.float32(2.0**64), small)  # so that no product of it is subnormal
    near = near + times(horner(ERF, times(small, small)), near)
    near = where(is_tiny, near * np.float32(2.0**-64), near)
    q = horner(LOG_ERFC, large)
    n, (r, _) = reduced(q, q)
    factor = power_of_two(integers(n))
    grown_by = times(horner(EXP, r), times(r, r)) + r  # exp(r) - 1
    y = where(lax.abs(x) < ERF_NEAR, near, (ONE - factor) - grown_by * factor)
    return where(x != x, NAN, with_sign(y, x))


def erfc(x: Array) -> Array:
    """The complement of erf; where x < 0, 2 minus the complement at -x."""
    small, large = sizes(x, NEAR, LAST)
    small = with_sign(small, x)
    total, rest = fast_sum(ONE, -small)
    near = total + (rest - times(horner(ERF, times(small, small)), small))
    n, pair = far(large)
    positive = where(x > LAST, np.float32(0), scaled(pair[0] + pair[1], integers(n)))
    y = where(lax.abs(x) < NEAR, near, where(x < 0, below(np.float32(2), n, pair), positive))
    return where(x != x, NAN, y)


def erf_inv(x: Array) -> Array:
    """The inverse of erf, which is odd; infinite at 1, NaN above."""
    small, large = sizes(x, INVERSE_NEAR, BELOW_ONE)
    is_tiny = small < np.float32(2.0**-40)
    near = where(is_tiny, small * np.float32(2.0**64), small)  # so that no product of it is subnormal
    square = times(small, small)
    product, rest = exact_product(near, HALF_ROOT_PI)
    near = product + (rest + times(near, times(horner(INVERSE, square), square) + HALF_ROOT_PI_REST))
    near = where(is_tiny, where(near < np.float32(2.0**-62), np.float32(0), near * np.float32(2.0**-64)), near)
    y = where(lax.abs(x) <= INVERSE_NEAR, near, where(lax.abs(x) < ONE, inverse_far(large), INFINITY))
    return where(lax.abs(x) <= ONE, with_sign(y, x), NAN)


def inverse_far(size: Array) -> Array:
    """The inverse of erf, for size from INVERSE_NEAR to BELOW_ONE."""
    total, lost = fast_sum(ONE, size)
    product, rest = exact_product(ONE - size, total)  # the difference is exact
    rest = rest + times(ONE - size, lost)
    upper, lower = log2(product)
    square, more = exact_product(-upper, LN2)
    more = more - ((times(upper, LN2_ERROR) + times(lower, LN2)) + quotient(rest, product))
    s, rest = root_of(fast_sum(square, more))
    is_near = s < np.float32(2)
    place = s - where(is_near, np.float32(1.375), np.float32(3))
    return s + (rest + lax.select(is_near, horner(NEAR_ROOT, place), horner(FAR_ROOT, place)))
