"""The rules of sine and cosine in NumPy, from the formulas in docs/exact_rules.md."""

import numpy as np

from jaxdml.reference.float_parts import LARGEST, Array, _f, _ldexp, _polynomial, _rule, _sum

SIN = (2.71831163445313e-06, -0.0001983933470910415, 0.008333329111337662, -0.1666666716337204)
COS = (2.443845005473122e-05, -0.001388736767694354, 0.04166664555668831)
TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163AB  # the first 224 bits of the fraction


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


def _kernels(x: Array) -> tuple[Array, Array, Array, Array]:
    size = np.where(np.abs(x) <= LARGEST, np.abs(x), _f(1))
    is_small = size < _f(0.7853981)
    q, is_negative, r, rest = _quadrants(size)
    q, is_negative = np.where(is_small, 0, q), is_negative & ~is_small
    r, rest = np.where(is_small, size, r), np.where(is_small, _f(0), rest)
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
