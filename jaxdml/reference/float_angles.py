"""The rules of sines, tangents and their inverses in NumPy, from the formulas in docs/exact_rules.md."""

import numpy as np

from jaxdml.reference.float_parts import LARGEST, SMALLEST, Array, _f, _ldexp, _polynomial, _product, _rule, _sum

SIN = (2.71831163445313e-06, -0.0001983933470910415, 0.008333329111337662, -0.1666666716337204)
COS = (2.443845005473122e-05, -0.001388736767694354, 0.04166664555668831)
TAN = (
    0.004370050970464945, 0.00010345222108298913, 0.010823512449860573, 0.021287620067596436, 0.05405867472290993,
    0.13332676887512207, 0.33333349227905273,
)  # fmt: skip
ATAN = (
    -0.001791223301552236, 0.010903414338827133, -0.031155923381447792, 0.057934246957302094, -0.08401985466480255,
    0.10951638221740723, -0.14264124631881714, 0.1999853551387787, -0.33333298563957214,
)  # fmt: skip
ASIN = (0.04215701296925545, 0.024185502901673317, 0.045469019562006, 0.0749531015753746, 0.16666752099990845)
TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163AB  # the first 224 bits of the fraction


# Sine, cosine and tangent --------------------------------------------------------------------------------------------


def _quadrants(size: Array) -> tuple[Array, Array, Array, Array]:
    """q modulo 4, whether t is negative, and |t| * pi / 2 as a pair, where |x| = (q + t) * pi / 2."""
    place = np.clip((size.view(np.int32) >> 23) - 120, 0, 134)
    bits = [((TWO_OVER_PI << 224) >> (2 * 224 + 32 - 96 - i)) % 2**96 for i in range(135)]  # 32 zeros come first
    high, middle, low = (np.array([(b >> s) % 2**32 for b in bits], np.uint64)[place] for s in (64, 32, 0))
    mantissa = ((size.view(np.int32) & (2**23 - 1)) | 2**23).astype(np.uint64)
    word, half = np.uint64(32), np.uint64(2**32 - 1)
    second = mantissa * middle + ((mantissa * low) >> word)
    product = ((mantissa * high + (second >> word)) << word) | (second & half)  # modulo 2**64
    q = (product + np.uint64(2**61)) >> np.uint64(62)
    t = (product << np.uint64(2)).view(np.int64)
    rest, zeros = np.abs(t).view(np.uint64), np.zeros(t.shape, int)
    for step in (16, 8, 4, 2, 1):
        has = rest < np.uint64(2 ** (64 - step))
        rest, zeros = np.where(has, rest << np.uint64(step), rest), zeros + has * step
    parts = [(rest >> np.uint64(52 - 12 * i)) & np.uint64(4095) for i in range(3)]
    a, b, c = (_ldexp(part.astype(_f), np.full(t.shape, -12 * (i + 1))) for i, part in enumerate(parts))
    p, s, last = _f(3216 * 2.0**-11), _f(4058 * 2.0**-23), _f(7.54979e-08)
    r = _sum(a * p, (a * s + b * p) + ((c * p + b * s) + a * last))
    return q.astype(int), t < 0, _ldexp(r[0], -zeros), _ldexp(r[1], -zeros)


def _reduced(x: Array) -> tuple[Array, Array, Array, Array]:
    size = np.where(np.abs(x) <= LARGEST, np.abs(x), _f(1))
    is_small = size < _f(0.7853981)
    q, is_negative, r, rest = _quadrants(size)
    q, is_negative = np.where(is_small, 0, q), is_negative & ~is_small
    return q, is_negative, np.where(is_small, size, r), np.where(is_small, _f(0), rest)


def _kernels(x: Array) -> tuple[Array, Array, Array, Array]:
    q, is_negative, r, rest = _reduced(x)
    square = r * r
    sine = r + (_polynomial(SIN, square) * square * r + rest)
    total, lost = _sum(_f(1), -square * _f(0.5))
    cosine = total + ((lost + _polynomial(COS, square) * square * square) - r * rest)
    return sine, cosine, q, is_negative


@_rule
def sin(x: Array) -> Array:
    """The sine."""
    sine, cosine, q, is_negative = _kernels(x)
    y = np.choose(q, [np.where(is_negative, -sine, sine), cosine, np.where(is_negative, sine, -sine), -cosine])
    return np.where(np.abs(x) <= LARGEST, np.where(np.signbit(x), -y, y), np.nan)


@_rule
def cos(x: Array) -> Array:
    """The cosine."""
    sine, cosine, q, is_negative = _kernels(x)
    sine = np.where(is_negative, -sine, sine)
    return np.where(np.abs(x) <= LARGEST, np.choose(q, [cosine, -sine, -cosine, sine]), np.nan)


@_rule
def tan(x: Array) -> Array:
    """The tangent."""
    q, is_negative, r, rest = _reduced(x)
    square = r * r
    cubic = _polynomial(TAN, square) * square * r
    tangent, lost = _sum(r, cubic + rest * (_f(1) + (r + cubic) ** 2))
    near = _f(1) / tangent
    product, more = _product(near, tangent)
    inverse = near + (((_f(1) - product) - more) - near * lost) * near
    y = np.where(q % 2 == 1, -inverse, tangent)
    return np.where(np.abs(x) <= LARGEST, np.where(is_negative ^ np.signbit(x), -y, y), np.nan)


# Inverse functions ---------------------------------------------------------------------------------------------------

PI, PI_REST = _f(3.1415927), _f(-8.742278e-08)


def _turned(quarters: Array, angle: Array, rest: Array) -> Array:
    """A multiple of pi / 2 plus an angle, in float32; the angle itself for 0 quarters."""
    base, base_rest = (_f(0.5) * quarters.astype(_f) * each for each in (PI, PI_REST))
    total, lost = _sum(base, angle)
    return total + (lost + (base_rest + rest))


@_rule
def atan2(y: Array, x: Array) -> Array:
    """The angle of the point (x, y)."""
    y, x = np.broadcast_arrays(y, x)
    height, width = np.abs(y), np.abs(x)
    is_steep, is_left = height > width, np.signbit(x)
    larger, smaller = np.where(is_steep, height, width), np.where(is_steep, width, height)
    both = (smaller > LARGEST) & (larger > LARGEST)
    larger, smaller = np.where(both, _f(1), larger), np.where(both, _f(1), smaller)
    is_whole = (larger > 0) & (larger <= LARGEST)
    fraction, exponent = np.frexp(np.where(is_whole, larger, _f(1)))
    is_far = ~is_whole | (smaller == 0) | (exponent - np.frexp(smaller)[1] > 30)
    d, n = _f(2) * fraction, np.where(is_far, _f(0), _ldexp(smaller, 1 - exponent))
    t = n / d
    product, rest = _product(t, d)
    square = t * t
    rest = t * (_polynomial(ATAN, square) * square) + ((n - product) - rest) / (d * (_f(1) + square))
    sign = np.where(is_steep ^ is_left, _f(-1), _f(1))
    angle = _turned(np.where(is_steep, 1, np.where(is_left, 2, 0)), sign * t, sign * rest)
    exact = np.where(height == 0, 0, height.astype(np.float64) / width)
    flat = np.where(exact < SMALLEST, _f(0), exact.astype(_f))
    angle = np.where(is_far & ~is_steep & ~is_left, flat, angle)
    return np.where(np.isnan(x) | np.isnan(y), np.nan, np.copysign(angle, y))


def atan(x: Array) -> Array:
    """The angle whose tangent is x."""
    result: Array = atan2(x, np.ones_like(x, _f))
    return result


def _arc(x: Array) -> tuple[Array, Array, Array]:
    """Whether |x| <= 1/2, and asin(|x|) there, or half of acos(|x|) elsewhere, as a pair."""
    size = np.where(np.abs(x) <= 1, np.abs(x), _f(1))
    is_near = size <= 0.5
    square = np.where(is_near, size * size, (_f(1) - size) / 2)
    s = np.where(is_near, size, np.sqrt(square))
    product, rest = _product(s, s)
    rest = np.where(is_near | (s == 0), _f(0), ((square - product) - rest) / (s + s))
    return is_near, s, s * (_polynomial(ASIN, square) * square) + rest


@_rule
def asin(x: Array) -> Array:
    """The angle whose sine is x."""
    is_near, s, rest = _arc(x)
    factor = np.where(is_near, _f(1), _f(-2))
    y = _turned(np.where(is_near, 0, 1), factor * s, factor * rest)
    return np.where(np.abs(x) <= 1, np.copysign(y, x), np.nan)


@_rule
def acos(x: Array) -> Array:
    """The angle whose cosine is x."""
    is_near, s, rest = _arc(x)
    factor = np.where(is_near, _f(-1), _f(2)) * np.where(np.signbit(x), _f(-1), _f(1))
    y = _turned(np.where(is_near, 1, np.where(np.signbit(x), 2, 0)), factor * s, factor * rest)
    return np.where(np.abs(x) <= 1, y, np.nan)
