"""x**y = 2**(y * log2 |x|), with log2 |x| as a pair, and powers with constant integer exponents.

|x| = 2**n * (1 + f) as for log; s = f / (2 + f) is a pair;
log2 |x| = n + 2 / ln 2 * (s + s**3 / 3 + s**5 * ATANH(s**2)).
"""

import jax
import numpy as np
from jax import lax

from jaxdml._exact.arithmetic import added, divided, multiplied, quotient
from jaxdml._exact.conversions import converted, is_float
from jaxdml._exact.exponentials import LN2, grown, one_more, times_ln2
from jaxdml._exact.logarithms import LARGEST, split
from jaxdml._exact.pairs import (
    INFINITY,
    NAN,
    Pair,
    exact_product,
    fast_sum,
    horner,
    integers,
    nearest,
    scaled,
    times,
    where,
)  # fmt: skip

Array = jax.Array
ATANH = (0.11709487438201904, 0.1427355855703354, 0.20000076293945312)
THIRD, THIRD_REST = np.float32(0.33333334), np.float32(-9.934108e-09)
FACTOR, FACTOR_REST = np.float32(2.88539), np.float32(3.851926e-08)
ZERO, ONE = np.float32(0), np.float32(1)


def log2(x: Array) -> Pair:
    """log2 of a positive normal number, as a pair."""
    n, f = split(x)
    divisor, lost = fast_sum(np.float32(2), f)
    s = quotient(f, divisor)
    product, rest = exact_product(s, divisor)
    s_rest = quotient(((f - product) - rest) - times(s, lost), divisor)
    square, square_rest = exact_product(s, s)
    square_rest = square_rest + times(s + s, s_rest)
    third, third_rest = exact_product(square, THIRD)
    third_rest = third_rest + (times(square, THIRD_REST) + times(square_rest, THIRD))
    third_rest = third_rest + times(times(square, square), horner(ATANH, square))
    more, more_rest = exact_product(s, third)
    more_rest = more_rest + (times(s, third_rest) + times(s_rest, third))
    total, total_rest = fast_sum(s, more)
    total_rest = total_rest + (s_rest + more_rest)
    product, rest = exact_product(total, FACTOR)
    rest = rest + (times(total, FACTOR_REST) + times(total_rest, FACTOR))
    total, lost = fast_sum(n, product)
    return fast_sum(total, lost + rest)


def of_positive(x: Array, y: Array) -> Array:
    """x**y for a positive normal x and 2**-33 <= |y| <= 2**34, or y = 0."""
    upper, lower = log2(x)
    product, rest = exact_product(y, upper)
    rest = rest + times(y, lower)
    product, lost = fast_sum(product, rest)
    is_far = lax.abs(product) > np.float32(200)
    product, lost = where(is_far, ZERO, product), where(is_far, ZERO, lost)
    n = nearest(product)
    r = times_ln2(product - n)
    p = one_more(grown(fast_sum(r[0], r[1] + times(lost, LN2))))
    value = p[0] + p[1]
    is_above = (n > 128) | ((n == 128) & (value >= 1))
    is_below = (n < -126) | ((n == -126) & (value < 1))
    result = scaled(value, integers(lax.clamp(np.float32(-126), n, np.float32(128))))
    result = where(is_above, INFINITY, where(is_below, ZERO, result))
    return where(is_far, where((upper > 0) == (y > 0), INFINITY, ZERO), result)


def power(x: Array, y: Array) -> Array:
    """x**y, with C's results for zeros, infinities, NaN and negative x. y holds floats or integers."""
    if not is_float(y.dtype):
        result = power(lax.abs(x), converted(y, np.float32))
        return where((y & 1) == 1, with_sign_of(x, result), result)  # float32 does not hold the parity of large y
    size, exponent = lax.abs(x), where(y != y, ZERO, lax.clamp(np.float32(-(2.0**34)), y, np.float32(2.0**34)))
    exponent = where(lax.abs(y) < np.float32(2.0**-33), ZERO, exponent)
    is_extreme = (size == 0) | (size > LARGEST)
    is_number = ~is_extreme & (x == x)
    result = of_positive(where(is_number, size, ONE), exponent)
    result = where(is_extreme, where((size > 1) == (y > 0), INFINITY, ZERO), result)
    is_whole = nearest(y) == y
    small = where(is_whole & (lax.abs(y) < np.float32(2.0**24)), y, ZERO)  # larger ones are even
    is_odd = (integers(small) & np.int32(1)) == 1
    is_negative = lax.bitcast_convert_type(x, np.int32) < 0
    result = where(is_negative & is_odd, -result, result)
    result = where((x < 0) & (size <= LARGEST) & ~is_whole, NAN, result)
    result = where((x != x) | (y != y), NAN, result)
    return where((y == 0) | (x == 1), ONE, result)


def with_sign_of(x: Array, magnitude: Array) -> Array:
    """The negative magnitude where x is negative or -0."""
    return where((lax.bitcast_convert_type(x, np.int32) < 0) & (x == x), -magnitude, magnitude)


def integer_power(x: Array, y: int) -> Array:
    """Products for y up to 3, a quotient for -1, `power` for others."""
    if y == 0:
        return lax.full_like(x, 1)
    if y == -1:
        return divided(lax.full_like(x, 1), x)
    if not 1 <= y <= 3:
        result = power(lax.abs(x), lax.full_like(x, y))
        return with_sign_of(x, result) if y % 2 else result
    result = x
    for _ in range(y - 1):
        result = multiplied(result, x)
    return result


def polynomial(x: Array, *coefficients: Array) -> Array:
    """The polynomial with these coefficients, the constant term first, by Horner's rule; each operation rounds."""
    result = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        result = added(multiplied(result, x), coefficient)
    return result
