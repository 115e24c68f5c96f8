"""sin, cos and tan of arguments of any size: |x| = (q + t) * pi / 2, with an integer q and t from -1/2 to 1/2.

From pi / 4 on, uint32 arithmetic multiplies x's 24 bits by 96 bits of 2 / pi, which gives q modulo 4 and 62 bits of t.
t's upper 36 bits, split into three parts of 12, are multiplied by the parts of pi / 2; this gives r = t * pi / 2 as a
pair. tan r = r + r**3 * TAN(r**2) is a pair, too; where q is odd, tan x is -1 divided by it.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._exact.arithmetic import quotient
from jaxdml._exact.pairs import (
    INFINITY,
    NAN,
    Pair,
    bits,
    exact_product,
    fast_sum,
    floats,
    horner,
    power_of_two,
    times,
    where,
)  # fmt: skip

Array = jax.Array
SIN = (2.71831163445313e-06, -0.0001983933470910415, 0.008333329111337662, -0.1666666716337204)
COS = (2.443845005473122e-05, -0.001388736767694354, 0.04166664555668831)
TAN = (
    0.004370050970464945, 0.00010345222108298913, 0.010823512449860573, 0.021287620067596436, 0.05405867472290993,
    0.13332676887512207, 0.33333349227905273,
)  # fmt: skip
TWO_OVER_PI = (  # 32 zeros, then the bits of the fraction
    0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB,
)  # fmt: skip
QUARTER = np.float32(0.7853981)
HALF_PI = np.float32(3216 * 2.0**-11), np.float32(4058 * 2.0**-23), np.float32(7.54979e-08)  # 12, 12 and 24 bits


def upper_product(x: Array, y: Array) -> Array:
    """The upper 32 bits of the product of x < 2**24 and y, both uint32."""
    (a, b), (c, d) = ((z >> np.uint32(16), z & np.uint32(0xFFFF)) for z in (x, y))
    middle = a * d + ((b * d) >> np.uint32(16))
    other = b * c + (middle & np.uint32(0xFFFF))
    return a * c + (middle >> np.uint32(16)) + (other >> np.uint32(16))


def window(size: Array) -> list[Array]:
    """96 bits of 2 / pi in three words. The first bit has the weight 2 / u, where u is the unit in the last place of
    `size`.
    """
    place = lax.shift_right_logical(bits(size), np.int32(23)) - np.int32(120)
    place = lax.clamp(np.int32(0), place, np.int32(134))
    first, shift = place >> np.int32(5), lax.convert_element_type(place & np.int32(31), jnp.uint32)

    def word(offset: int) -> Array:
        result = lax.full_like(shift, TWO_OVER_PI[offset])
        for start in range(1, 5):
            result = lax.select(first == start, lax.full_like(shift, TWO_OVER_PI[start + offset]), result)
        return result

    words = [word(offset) for offset in range(4)]
    back = np.uint32(32) - shift  # a shift by 32 gives 0
    return [lax.shift_left(x, shift) | lax.shift_right_logical(y, back) for x, y in itertools.pairwise(words)]


def reduced(size: Array) -> tuple[Array, Array, Pair]:
    """q modulo 4, whether t is negative, and |t| * pi / 2 as a pair."""
    mantissa = lax.bitcast_convert_type((bits(size) & np.int32(2**23 - 1)) | np.int32(2**23), jnp.uint32)
    high, middle, low = window(size)
    carried = upper_product(mantissa, low)
    lower = mantissa * middle + carried
    carry = lax.convert_element_type(lower < carried, jnp.uint32)
    upper = mantissa * high + upper_product(mantissa, middle) + carry
    quadrant = lax.shift_right_logical(upper + np.uint32(2**29), np.uint32(30))
    first, second = (upper << np.uint32(2)) | (lower >> np.uint32(30)), lower << np.uint32(2)
    is_negative = lax.bitcast_convert_type(first, jnp.int32) < 0
    borrowed = ~first + lax.convert_element_type(second == 0, jnp.uint32)
    first, second = lax.select(is_negative, borrowed, first), lax.select(is_negative, ~second + np.uint32(1), second)
    zeros = lax.min(lax.clz(first), np.uint32(31))
    top = lax.shift_left(first, zeros) | lax.shift_right_logical(second, np.uint32(32) - zeros)
    next_top = lax.shift_left(second, zeros)
    parts = top >> np.uint32(20), (top >> np.uint32(8)) & np.uint32(4095), ((top & np.uint32(255)) << np.uint32(4))
    a, b, c = (
        lax.convert_element_type(lax.convert_element_type(part, jnp.int32), jnp.float32)
        * np.float32(2.0**-12 / 4096**i)
        for i, part in enumerate((*parts[:2], parts[2] | (next_top >> np.uint32(28))))
    )
    (p, q, rest), scale = HALF_PI, power_of_two(-lax.convert_element_type(zeros, jnp.int32))
    r = fast_sum(a * p, (a * q + b * p) + ((c * p + b * q) + times(a, rest)))  # all products but the last are exact
    return lax.convert_element_type(quadrant, jnp.int32), is_negative, (r[0] * scale, r[1] * scale)


def quarters(x: Array) -> tuple[Pair, Array, Array]:
    """|r| as a pair, q modulo 4 and whether t is negative; infinities and NaN count as 1."""
    size = lax.abs(x)
    size = where(size < INFINITY, size, np.float32(1))
    is_small = size < QUARTER
    q, is_negative, pair = reduced(size)
    q, is_negative = lax.select(is_small, lax.full_like(q, 0), q), is_negative & ~is_small
    return (where(is_small, size, pair[0]), where(is_small, np.float32(0), pair[1])), q, is_negative


def kernels(x: Array) -> tuple[Array, Array, Array, Array]:
    """sin |r|, cos r, q modulo 4 and whether t is negative."""
    (r, rest), q, is_negative = quarters(x)
    square = times(r, r)
    sine = r + (times(times(horner(SIN, square), square), r) + rest)
    half = square * np.float32(0.5)
    total, lost = fast_sum(np.float32(1), -half)
    cosine = total + ((lost + times(times(horner(COS, square), square), square)) - times(r, rest))
    return sine, cosine, q, is_negative


def finish(y: Array, x: Array, is_flipped: Array) -> Array:
    """y, negated where is_flipped; NaN where x is infinite or NaN."""
    y = floats(bits(y) ^ lax.shift_left(lax.convert_element_type(is_flipped, jnp.int32), np.int32(31)))
    return where(lax.abs(x) < INFINITY, y, NAN)


def sin(x: Array) -> Array:
    """The sine, x in radians; an odd function."""
    sine, cosine, q, is_negative = kernels(x)
    is_cosine = (q & np.int32(1)) == 1
    is_flipped = ((q & np.int32(2)) == 2) ^ (bits(x) < 0) ^ (is_negative & ~is_cosine)
    return finish(lax.select(is_cosine, cosine, sine), x, is_flipped)


def cos(x: Array) -> Array:
    """The cosine, x in radians; an even function."""
    sine, cosine, q, is_negative = kernels(x)
    is_sine = (q & np.int32(1)) == 1
    is_flipped = (((q + np.int32(1)) & np.int32(2)) == 2) ^ (is_negative & is_sine)
    return finish(lax.select(is_sine, sine, cosine), x, is_flipped)


def tan(x: Array) -> Array:
    """The tangent, x in radians; an odd function."""
    (r, rest), q, is_negative = quarters(x)
    square = times(r, r)
    cubic = times(times(horner(TAN, square), square), r)
    near = r + cubic
    tangent, lost = fast_sum(r, cubic + times(rest, np.float32(1) + times(near, near)))  # the derivative is 1 + tan**2
    inverse = quotient(np.float32(1), tangent)
    product, more = exact_product(inverse, tangent)
    inverse = inverse + times(((np.float32(1) - product) - more) - times(inverse, lost), inverse)
    is_inverse = (q & np.int32(1)) == 1
    is_flipped = is_inverse ^ is_negative ^ (bits(x) < 0)
    return finish(lax.select(is_inverse, inverse, tangent), x, is_flipped)
