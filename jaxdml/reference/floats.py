"""The rules of `jaxdml.exact` in NumPy, from the formulas in docs/exact_rules.md.

Functions take and return float32 arrays. Subnormals become zeros of the same sign.
"""

from typing import Any

import numpy as np

from jaxdml.reference.float_angles import acos, asin, atan, atan2, cos, sin, tan
from jaxdml.reference.float_hyperbolics import acosh, asinh, atanh, cosh, sinh
from jaxdml.reference.float_parts import (
    EXP,
    LARGEST,
    SMALLEST,
    Array,
    _f,
    _grown,
    _ldexp,
    _logarithm,
    _one_more,
    _polynomial,
    _product,
    _reduced,
    _rule,
    _split,
    _sum,
    _upper,
    _whole,
    flushed,
    mul,
)  # fmt: skip
from jaxdml.reference.float_sums import (
    cumprod,
    cumsum,
    maximum,
    minimum,
    reduce_prod,
    reduce_sum,
    scatter_add,
    to_integers,
)  # fmt: skip

__all__ = [
    "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "cumprod", "cumsum", "div",
    "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "flushed", "log", "log1p", "logistic", "maximum", "minimum",
    "mul", "nextafter", "polynomial", "power", "reduce_prod", "reduce_sum", "remainder", "rsqrt", "scatter_add", "sin",
    "sinh", "sqrt", "sub", "tan", "tanh", "to_integers",
]  # fmt: skip

TANH = (-0.006179809104651213, 0.021007457748055458, -0.053837429732084274, 0.1333245187997818, -0.3333331346511841)
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
NEAR_ROOT = (
    -7.18739684089087e-05, 7.049034320516512e-05, 0.0005514313816092908, -1.6623180272290483e-05,
    -0.003882997902110219, 0.00048567503108642995, 0.030960818752646446, -0.062051668763160706, -0.13119199872016907,
)  # fmt: skip
FAR_ROOT = (
    -1.4251648281060625e-05, 5.6015898735495284e-05, -4.656264354707673e-05, -0.0002203206968260929,
    0.0011465606512501836, -0.0034453310072422028, 0.006843093317002058, 0.002662399783730507, -0.16719800233840942,
)  # fmt: skip
ATANH = (0.11709487438201904, 0.1427355855703354, 0.20000076293945312)


# Arithmetic ----------------------------------------------------------------------------------------------------------


@_rule
def add(x: Array, y: Array) -> Array:
    """fl(x + y); zeros and subnormals are +0."""
    return np.where(np.abs(x + y) < SMALLEST, _f(0), x + y)


@_rule
def sub(x: Array, y: Array) -> Array:
    """fl(x - y); zeros and subnormals are +0."""
    return np.where(np.abs(x - y) < SMALLEST, _f(0), x - y)


@_rule
def div(x: Array, y: Array) -> Array:
    """fl(x / y), or a zero of the same sign where |x / y| < 2**-126."""
    exact = x.astype(np.float64) / y
    return np.where(np.abs(exact) < SMALLEST, np.copysign(_f(0), x) * np.copysign(_f(1), y), x / y)


@_rule
def remainder(x: Array, y: Array) -> Array:
    """x - y * trunc(x / y), exact."""
    return np.fmod(x, y)


@_rule
def nextafter(x: Array, y: Array) -> Array:
    """The number next to x on the way to y, among numbers that are not subnormal; y if it equals x."""
    return np.where((x == 0) & (np.abs(y) > 0), np.copysign(SMALLEST, y), np.where(x == y, y, np.nextafter(x, y)))


@_rule
def sqrt(x: Array) -> Array:
    """fl(sqrt(x))."""
    return np.sqrt(x)


@_rule
def rsqrt(x: Array) -> Array:
    """fl(1 / fl(sqrt(x)))."""
    return _f(1) / np.sqrt(x)


# Exponentials --------------------------------------------------------------------------------------------------------


def _in_range(y: Array, x: Array, lowest: Any, highest: Any) -> Array:
    y = np.where(x < lowest, _f(0), np.where(x > highest, _f(np.inf), y))
    return np.where(np.isnan(x), _f(np.nan), y)


@_rule
def exp(x: Array) -> Array:
    """e**x."""
    lowest, highest = _f(-87.33654), _f(88.72283)
    n, r = _reduced(np.clip(_whole(x), lowest, highest))
    upper, lower = _one_more(_grown(r))
    return _in_range(_ldexp(upper + lower, n), x, lowest, highest)


def _times_ln2(x: Array) -> tuple[Array, Array]:
    upper = _upper(x)
    return _sum(upper * _f(0.693115234375), upper * _f(3.1946183e-05) + (x - upper) * _f(0.6931472))


@_rule
def exp2(x: Array) -> Array:
    """2**x."""
    lowest, highest = _f(-126), _f(127.99999)
    near = np.clip(_whole(x), lowest, highest)
    n = np.rint(near)
    upper, lower = _one_more(_grown(_times_ln2(near - n)))
    return _in_range(_ldexp(upper + lower, n), x, lowest, highest)


@_rule
def expm1(x: Array) -> Array:
    """e**x - 1."""
    n, r = _reduced(np.clip(_whole(x), _f(-18), _f(88.72283)))
    p = _grown(r)
    total, rest = _sum(_f(1) - np.ldexp(_f(1), -np.minimum(n, 126).astype(int)), p[0])
    y = _ldexp(total + (rest + p[1]), n)
    y = np.where(x > _f(88.72283), _f(np.inf), np.copysign(y, x))
    return np.where(np.isnan(x), _f(np.nan), y)


@_rule
def logistic(x: Array) -> Array:
    """1 / (1 + e**-x)."""
    n, r = _reduced(np.clip(-np.abs(_whole(x)), _f(-87.33654), _f(0)))
    e = _one_more(_grown(r))
    m = np.maximum(n, -60)
    denominator, rest = _sum(_f(1), _ldexp(e[0], m))
    rest = rest + _ldexp(e[1], m)
    near = np.where(x < 0, e[0], _f(1)) / denominator
    error = np.where(x < 0, e[1], _f(0)) - near * rest
    y = near + error * (_f(1) / denominator)
    y = np.where(x < 0, _ldexp(y, n), y)
    return np.where(np.isnan(x), x, np.where(x < _f(-87.33654), _f(0), y))


@_rule
def tanh(x: Array) -> Array:
    """The hyperbolic tangent."""
    size = np.minimum(np.abs(_whole(x)), _f(9.5))
    small = np.minimum(size, _f(0.5625))
    square = small * small
    near = size + _polynomial(TANH, square) * square * small
    n, r = _reduced(size + size)
    e = _one_more(_grown(r))
    denominator, rest = _sum(_ldexp(e[0], n), _f(1))
    t = _f(2) / denominator
    total, lost = _sum(_f(1), -t)
    far = total + (lost + (t * (t * _f(0.5))) * (rest + _ldexp(e[1], n)))
    return np.where(np.isnan(x), x, np.copysign(np.where(size < _f(0.5625), near, far), x))


# Logarithms ----------------------------------------------------------------------------------------------------------


@_rule
def log(x: Array) -> Array:
    """The natural logarithm."""
    y = _logarithm(*_split(np.where((x > 0) & (x <= LARGEST), x, _f(1))), _f(0))
    return np.where(x > 0, np.where(x > LARGEST, x, y), np.where(x == 0, -np.inf, np.nan))


@_rule
def log1p(x: Array) -> Array:
    """log(1 + x)."""
    near = np.where((x > -1) & (x <= LARGEST), x, _f(0))
    total, rest = _sum(_f(1), near)
    n, f = _split(total)
    y = _logarithm(n, np.where(n == 0, near, f), np.where(n == 0, _f(0), rest / total))
    y = np.copysign(y, x)
    return np.where(x > -1, np.where(x > LARGEST, x, y), np.where(x == -1, -np.inf, np.nan))


# Error function ------------------------------------------------------------------------------------------------------

NEAR, LAST = _f(0.46875), _f(9.194549)


def _rounded_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """fl(x + y) and fl(y - fl(fl(x + y) - x)), which is the rounding error only where |x| >= |y|."""
    total = x + y
    return total, y - (total - x)


def _far(size: Array) -> tuple[Array, tuple[Array, Array]]:
    upper = _upper(size)
    square, more = upper * upper, (size - upper) * (size + upper)
    n, r = _reduced(-square, -(square + more))
    e, e_rest = _one_more(_grown(_rounded_sum(r[0], r[1] - more)))
    divisor, lost = _sum(_f(2), size)
    u = _upper(_f(1) / divisor)
    d = _upper(divisor)
    left = ((_f(1) - u * d) - u * (divisor - d)) - u * lost
    w = (left * left + left) * u
    v = (u - _f(0.1875)) + w
    line, line_rest = _sum(_f(0.16248995), (u - _f(0.1875)) * _f(1.283203125))
    g, g_rest = _rounded_sum(line, (_polynomial(G, v) * v + _f(4.2857823e-06)) * v + w * _f(1.283203125))
    g_rest = (g - _upper(g)) + (g_rest + (line_rest + _f(1.0255091e-08)))
    product = _upper(e) * _upper(g)
    return n, (product, ((e - _upper(e)) * _upper(g) + e * g_rest) + e_rest * _upper(g))


def _below(base: Any, n: Array, pair: tuple[Array, Array]) -> Array:
    m = np.maximum(n, -60)
    total, rest = _sum(base, -_ldexp(pair[0], m))
    return total + (rest - _ldexp(pair[1], m))


def _size(x: Array) -> Array:
    return np.where(np.isnan(x), _f(1), np.abs(x))


@_rule
def erf(x: Array) -> Array:
    """The error function."""
    edge, size = _f(0.875), _size(x)
    factor = np.where(size < _f(2.0**-64), _f(2.0**64), _f(1))
    near = np.minimum(size, edge) * factor
    near = (near + _polynomial(ERF, np.minimum(size, edge) ** 2) * near) / factor
    n, (r, _) = _reduced(_polynomial(LOG_ERFC, np.clip(size, edge, _f(4))))
    far = (_f(1) - _ldexp(_f(1), n)) - _ldexp(_polynomial(EXP, r) * (r * r) + r, n)
    return np.where(np.isnan(x), x, np.copysign(np.where(size < edge, near, far), x))


@_rule
def erfc(x: Array) -> Array:
    """1 - erf(x)."""
    small = np.copysign(np.minimum(_size(x), NEAR), x)
    total, rest = _sum(_f(1), -small)
    near = total + (rest - _polynomial(ERF, small * small) * small)
    n, pair = _far(np.clip(_size(x), NEAR, LAST))
    positive = np.where(x > LAST, _f(0), _ldexp(pair[0] + pair[1], n))
    y = np.where(np.abs(x) < NEAR, near, np.where(x < 0, _below(_f(2), n, pair), positive))
    return np.where(np.isnan(x), x, y)


# Powers --------------------------------------------------------------------------------------------------------------


def _log2(x: Array) -> tuple[Array, Array]:
    n, f = _split(x)
    divisor, lost = _sum(_f(2), f)
    s = f / divisor
    product, rest = _product(s, divisor)
    s_rest = (((f - product) - rest) - s * lost) / divisor
    square, square_rest = _product(s, s)
    square_rest = square_rest + (s + s) * s_rest
    third, third_rest = _product(square, _f(0.33333334))
    third_rest = third_rest + (square * _f(-9.934108e-09) + square_rest * _f(0.33333334))
    third_rest = third_rest + square * square * _polynomial(ATANH, square)
    more, more_rest = _product(s, third)
    more_rest = more_rest + (s * third_rest + s_rest * third)
    total, total_rest = _sum(s, more)
    total_rest = total_rest + (s_rest + more_rest)
    product, rest = _product(total, _f(2.88539))
    rest = rest + (total * _f(3.851926e-08) + total_rest * _f(2.88539))
    total, lost = _sum(n, product)
    return _sum(total, lost + rest)


def power(x: Array, y: Array) -> Array:
    """x**y. Integers y are rounded to float32, but their own parity gives the sign."""
    if np.asarray(y).dtype.kind == "f":
        return _power(x, y)
    magnitude = _power(np.abs(x), np.asarray(y, _f))
    return np.where((np.asarray(y) % 2 == 1) & np.signbit(x) & ~np.isnan(x), -magnitude, magnitude)


@_rule
def _power(x: Array, y: Array) -> Array:
    size = np.where((np.abs(x) > 0) & (np.abs(x) <= LARGEST), np.abs(x), _f(1))
    exponent = np.where(np.abs(y) < _f(2.0**-33), _f(0), np.clip(_whole(y), _f(-(2.0**34)), _f(2.0**34)))
    upper, lower = _log2(size)
    product, rest = _product(exponent, upper)
    product, lost = _sum(product, rest + exponent * lower)
    is_far = np.abs(product) > 200
    near, lost = np.where(is_far, _f(0), product), np.where(is_far, _f(0), lost)
    n = np.rint(near)
    r = _times_ln2(near - n)
    value = np.add(*_one_more(_grown(_sum(r[0], r[1] + lost * _f(0.6931472)))))
    result = np.where(np.ldexp(value.astype(np.float64), n.astype(int)) < SMALLEST, 0, _ldexp(value, n))
    result = np.where(is_far, np.where(product > 0, np.inf, 0.0), result)
    special = np.power(x.astype(np.float64), y.astype(np.float64))  # C's results for zeros, infinities and NaN
    is_special = (x == 0) | (np.abs(x) > LARGEST) | np.isnan(x) | np.isnan(y) | np.isnan(special) | (y == 0) | (x == 1)
    return np.where(is_special, special, np.where(np.signbit(special), -result, result))


@_rule
def erf_inv(x: Array) -> Array:
    """The inverse of erf; its far part needs log2 as a pair."""
    size = np.where(np.abs(x) < 1, np.abs(x), _f(0.5))
    factor = np.where(size < _f(2.0**-40), _f(2.0**64), _f(1))
    small = np.minimum(size, _f(0.625))
    product, rest = _product(small * factor, _f(0.88622695))
    near = product + (
        rest + small * factor * (_polynomial(INVERSE, small * small) * (small * small) + _f(-2.66232e-08))
    )
    large = np.maximum(size, _f(0.625))
    total, lost = _sum(_f(1), large)
    product, rest = _product(_f(1) - large, total)
    rest = rest + (_f(1) - large) * lost
    upper, lower = _log2(product)
    square, more = _product(-upper, _f(0.6931472))
    more = more - ((upper * _f(-1.9046542e-09) + lower * _f(0.6931472)) + rest / product)
    square, more = _sum(square, more)
    s = np.sqrt(square)
    product, lost = _product(s, s)
    rest = (((square - product) - lost) + more) / (s + s)
    far = s + (rest + np.where(s < 2, _polynomial(NEAR_ROOT, s - _f(1.375)), _polynomial(FAR_ROOT, s - _f(3))))
    y = np.where(np.abs(x) <= _f(0.625), near.astype(np.float64) / factor, np.where(np.abs(x) < 1, far, np.inf))
    y = np.where(y < SMALLEST, 0, y)
    return np.where(np.abs(x) <= 1, np.copysign(y, x), np.nan)


def polynomial(x: Array, *coefficients: float) -> Array:
    """The coefficients, from the lowest power on, times powers of x, by Horner's scheme."""
    result = np.full_like(x, coefficients[-1])
    for each in coefficients[-2::-1]:
        result = add(mul(result, x), _f(each))
    return result
