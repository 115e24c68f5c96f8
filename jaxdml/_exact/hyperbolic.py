"""sinh, cosh, asinh, acosh and atanh.

Near 0 the odd functions are x + x**3 * P(x**2). Elsewhere sinh and cosh are (e - 1 / e) / 2 and (e + 1 / e) / 2 with
the pair e = exp(|x|), and the inverse functions are logarithms of pairs: asinh(x) = log(x + sqrt(x**2 + 1)),
acosh(x) = log(1 + (t + sqrt(t * (x + 1)))) with t = x - 1, and atanh(x) = log((1 + x) / (1 - x)) / 2.
"""

import jax
import numpy as np
from jax import lax

from jaxdml._exact.arithmetic import quotient, root_of
from jaxdml._exact.exponentials import grown, one_more, reduced
from jaxdml._exact.logarithms import LARGEST, ONE, combined, split
from jaxdml._exact.pairs import (
    INFINITY,
    NAN,
    Pair,
    exact_product,
    exact_sum,
    fast_sum,
    horner,
    integers,
    power_of_two,
    scaled,
    times,
    where,
    with_sign,
)  # fmt: skip

Array = jax.Array
SINH = (2.782228648356977e-06, 0.0001984289410756901, 0.00833331048488617, 0.1666666716337204)
ASINH = (-0.013231032527983189, 0.028164956718683243, -0.04438357800245285, 0.07498643547296524, -0.1666664332151413)
ATANH = (
    0.1763785034418106, 0.05160436034202576, 0.11816386133432388, 0.1422378569841385, 0.2000245302915573,
    0.33333301544189453,
)  # fmt: skip
ZERO, HALF = np.float32(0), np.float32(0.5)
LAST = np.float32(89.415985)  # sinh and cosh are infinite above it
HUGE = np.float32(2.0**13)  # above it, asinh and acosh round to log(2 * x)


def odd(coefficients: tuple[float, ...], size: Array, edge: np.float32) -> Array:
    """size + size**3 * P(size**2), for size up to edge."""
    small = lax.min(size, edge)
    square = times(small, small)
    return small + times(times(horner(coefficients, square), square), small)


# Hyperbolic functions ------------------------------------------------------------------------------------------------


def grown_and_shrunk(size: Array) -> tuple[Array, Pair, Array]:
    """n, a pair and a float: 2**n times the pair is e**size, and 2**n times the float is e**-size."""
    n, r = reduced(size)
    e = one_more(grown(r))
    factor = power_of_two(integers(lax.min(n, np.float32(30))) * np.int32(-2))
    return n, e, quotient(ONE, e[0]) * factor


def halved(n: Array, sum_of_both: Pair, rest: Array, size: Array) -> Array:
    """The sum and the rest times 2**(n - 1); infinite for a size above LAST."""
    y = scaled(sum_of_both[0] + (sum_of_both[1] + rest), integers(n) - np.int32(1))
    return where(size > LAST, INFINITY, y)


def sinh(x: Array) -> Array:
    """The hyperbolic sine; odd."""
    size = lax.abs(x)
    n, e, inverse = grown_and_shrunk(lax.max(size, ONE))
    far = halved(n, fast_sum(e[0], -inverse), e[1], size)
    return where(x != x, NAN, with_sign(where(size < ONE, odd(SINH, size, ONE), far), x))


def cosh(x: Array) -> Array:
    """The hyperbolic cosine; even."""
    size = lax.abs(x)
    n, e, inverse = grown_and_shrunk(size)
    return where(x != x, NAN, halved(n, fast_sum(e[0], inverse), e[1], size))


# Inverse functions ---------------------------------------------------------------------------------------------------


def asinh(x: Array) -> Array:
    """The inverse of sinh; odd."""
    size = lax.abs(x)
    middle = lax.clamp(HALF, size, HUGE)
    square, rest = exact_product(middle, middle)
    total, lost = exact_sum(square, ONE)
    root, root_rest = root_of((total, lost + rest))
    total, rest = fast_sum(root, middle)
    is_huge = size > HUGE
    n, f = split(where(is_huge, size, total))
    more = where(is_huge, ZERO, quotient(rest + root_rest, total))
    y = combined(n + where(is_huge, ONE, ZERO), f, more)
    y = where(size < HALF, odd(ASINH, size, HALF), where(size > LARGEST, INFINITY, y))
    return where(x != x, NAN, with_sign(y, x))


def acosh(x: Array) -> Array:
    """The non-negative inverse of cosh; NaN below 1."""
    middle = lax.clamp(ONE, x, HUGE)
    t = middle - ONE  # exact
    total, lost = fast_sum(middle, ONE)
    square, rest = exact_product(t, total)
    root, root_rest = root_of((square, rest + times(t, lost)))
    near, near_rest = fast_sum(root, t)  # t <= sqrt(t * (t + 2))
    near_rest = near_rest + root_rest
    total, rest = exact_sum(ONE, near)
    is_huge = x > HUGE
    n, f = split(where(is_huge, x, total))
    is_near = n == 0
    more = quotient(where(is_near, near_rest, rest + near_rest), total)
    y = combined(n + where(is_huge, ONE, ZERO), where(is_near, near, f), where(is_huge, ZERO, more))
    return where(x >= ONE, where(x > LARGEST, INFINITY, y), NAN)


def atanh(x: Array) -> Array:
    """The inverse of tanh; odd; infinite at 1, NaN above."""
    size = lax.abs(x)
    middle = lax.clamp(HALF, size, np.float32(1 - 2.0**-24))
    divisor = ONE - middle  # exact
    total, lost = fast_sum(ONE, middle)
    ratio = quotient(total, divisor)
    product, rest = exact_product(ratio, divisor)
    rest = ((total - product) - rest) + lost
    far = combined(*split(ratio), quotient(rest, total)) * HALF
    y = where(size < HALF, odd(ATANH, size, HALF), where(size < ONE, far, INFINITY))
    return where(size <= ONE, with_sign(y, x), NAN)
