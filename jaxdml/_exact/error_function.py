"""erf and erfc, which add up to 1: erf(x) = x + x * ERF(x**2) below 0.46875, else erfc(x) = exp(-x**2) * g(x).

x**2 is the sum of the exact square of x's upper 12 bits and a rest. g is a polynomial in the rounded quotient
u = 1 / (x + 2); g's derivative corrects for the rounding error of u. exp(-x**2), g and their product are pairs.
"""

import jax
import numpy as np
from jax import lax

from jaxdml._exact.arithmetic import quotient
from jaxdml._exact.exponentials import grown, one_more, reduced
from jaxdml._exact.pairs import (
    NAN,
    Pair,
    exact_product,
    exact_sum,
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

Array = jax.Array
ERF = (0.004777869209647179, -0.02678193897008896, 0.11283136904239655, -0.3761261999607086, 0.12837916612625122)
G = (
    -38.99070739746094, 26.01943016052246, 8.420798301696777, -9.22256851196289, -4.677236557006836, 2.862753391265869,
    4.560981750488281, 2.957573890686035,
)  # fmt: skip
CENTER, G_SLOPE, G_SLOPE_REST = np.float32(0.1875), np.float32(1.283203125), np.float32(4.285782324586762e-06)
G_LAST, G_LAST_REST = np.float32(0.16248996555805206), np.float32(-4.646069751146342e-09)
ONE, NEAR, LAST = np.float32(1), np.float32(0.46875), np.float32(9.194548606872559)  # erfc is subnormal above LAST


def far(size: Array) -> tuple[Array, Pair]:
    """n and a pair: erfc(size) is the pair times 2**n, for size from NEAR to LAST."""
    upper, lower = halves(size)
    square, more = upper * upper, times(lower, size + upper)  # the first is exact
    n, r = reduced(-square, -(square + more))
    e = one_more(grown(exact_sum(r[0], r[1] - more)))
    divisor, lost = exact_sum(size, np.float32(2))
    u = quotient(ONE, divisor)
    product, rest = exact_product(u, divisor)
    v, v_lost = exact_sum(u, -CENTER)
    error = (((ONE - product) - rest) - times(u, lost)) + times(v_lost, divisor)  # the relative error of v + CENTER
    v_upper, v_lower = halves(v)
    line, line_rest = exact_sum(G_LAST, v_upper * G_SLOPE)  # G_SLOPE has 12 bits, so its products are exact
    curve = times(times(horner(G, v), v) + G_SLOPE_REST, v) + v_lower * G_SLOPE
    g = exact_sum(line, curve)
    g = g[0], (g[1] + (line_rest + G_LAST_REST)) + times(times(g[0], ONE + times(u, np.float32(2.4))), error)
    product, rest = exact_product(e[0], g[0])
    return n, (product, rest + (times(e[0], g[1]) + times(e[1], g[0])))


def below(base: np.float32, n: Array, pair: Pair) -> Array:
    """base - pair * 2**n."""
    factor = power_of_two(integers(lax.max(n, np.float32(-60))))
    total, rest = fast_sum(base, -(pair[0] * factor))
    return total + (rest - pair[1] * factor)


def sizes(x: Array) -> tuple[Array, Array]:
    """|x| clamped to [0, NEAR], and |x| clamped to [NEAR, LAST]; NaN counts as 1."""
    size = where(x != x, ONE, lax.abs(x))
    return lax.min(size, NEAR), lax.clamp(NEAR, size, LAST)


def erf(x: Array) -> Array:
    """The error function; an odd one."""
    small, large = sizes(x)
    is_tiny = small < np.float32(2.0**-64)
    near = where(is_tiny, small * np.float32(2.0**64), small)  # so that no product is subnormal
    near = near + times(horner(ERF, times(small, small)), near)
    near = where(is_tiny, near * np.float32(2.0**-64), near)
    y = where(lax.abs(x) < NEAR, near, below(ONE, *far(large)))
    return where(x != x, NAN, with_sign(y, x))


def erfc(x: Array) -> Array:
    """The complement of erf; for x < 0, two less the complement at -x."""
    small, large = sizes(x)
    small = with_sign(small, x)
    total, rest = fast_sum(ONE, -small)
    near = total + (rest - times(horner(ERF, times(small, small)), small))
    n, pair = far(large)
    positive = where(x > LAST, np.float32(0), scaled(pair[0] + pair[1], integers(n)))
    y = where(lax.abs(x) < NEAR, near, where(x < 0, below(np.float32(2), n, pair), positive))
    return where(x != x, NAN, y)
