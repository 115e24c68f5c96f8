"""log and log1p: x = m * 2**n with m from sqrt(1/2) to sqrt(2), f = m - 1.

log x = n * ln 2 + f - f**2 / 2 + f**3 * LOG(f); n * LN2_UPPER, n * LN2_LOWER and halving are exact.
"""

import jax
import numpy as np
from jax import lax

from jaxdml._exact.arithmetic import quotient
from jaxdml._exact.exponentials import LN2_LOWER, LN2_UPPER
from jaxdml._exact.pairs import INFINITY, NAN, bits, exact_sum, floats, horner, times, where, with_sign

Array = jax.Array
LOG = (
    0.0674661248922348, -0.11675660312175751, 0.11888179928064346, -0.1240558922290802, 0.14219549298286438,
    -0.1666799634695053, 0.2000211924314499, -0.25000008940696716, 0.3333331346511841,
)  # fmt: skip
ROOT_OF_HALF = np.int32(0x3F3504F3)  # the bits of sqrt(1/2)
ONE, LARGEST = np.float32(1), np.float32(3.4028235e38)


def split(x: Array) -> tuple[Array, Array]:
    """n and f of a positive normal x."""
    exponent = lax.shift_right_arithmetic(bits(x) - ROOT_OF_HALF, np.int32(23))
    mantissa = floats(bits(x) - lax.shift_left(exponent, np.int32(23)))
    return lax.convert_element_type(exponent, np.float32), mantissa - ONE


def combined(n: Array, f: Array, more: Array) -> Array:
    """n * ln 2 + log(1 + f) + more, where more is small."""
    square = times(f, f)
    cubic = times(times(horner(LOG, f), f), square)
    return (f + (((cubic + n * LN2_LOWER) + more) - square * np.float32(0.5))) + n * LN2_UPPER


def log(x: Array) -> Array:
    """The natural logarithm; -inf for zeros, NaN for negative x."""
    n, f = split(where((x > 0) & (x <= LARGEST), x, ONE))
    y = combined(n, f, lax.full_like(f, 0))
    return where(x > 0, where(x > LARGEST, x, y), where(x == 0, -INFINITY, NAN))


def log1p(x: Array) -> Array:
    """log(1 + x), with 1 + x as a pair. Where n of the pair's first float is 0, f is x itself."""
    near = where((x > -1) & (x <= LARGEST), x, np.float32(0))
    total, rest = exact_sum(ONE, near)
    n, f = split(total)
    is_near = n == 0
    y = combined(n, where(is_near, near, f), where(is_near, np.float32(0), quotient(rest, total)))
    y = with_sign(lax.abs(y), x)
    return where(x > -1, where(x > LARGEST, x, y), where(x == -1, -INFINITY, NAN))
