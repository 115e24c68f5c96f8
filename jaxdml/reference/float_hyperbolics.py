"""The rules of hyperbolic functions and their inverses in NumPy, from the formulas in docs/exact_rules.md."""

import numpy as np

from jaxdml.reference.float_parts import (
    LARGEST,
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
    _whole,
)  # fmt: skip

SINH = (2.782228648356977e-06, 0.0001984289410756901, 0.00833331048488617, 0.1666666716337204)
ASINH = (-0.013231032527983189, 0.028164956718683243, -0.04438357800245285, 0.07498643547296524, -0.1666664332151413)
ATANH = (
    0.1763785034418106, 0.05160436034202576, 0.11816386133432388, 0.1422378569841385, 0.2000245302915573,
    0.33333301544189453,
)  # fmt: skip
LAST = _f(89.415985)


def _odd(coefficients: tuple[float, ...], size: Array) -> Array:
    square = size * size
    return size + _polynomial(coefficients, square) * square * size


def _exponentials(size: Array) -> tuple[Array, Array, Array, Array]:
    """n, two floats whose sum is e**size * 2**-n, and e**-size * 2**-n."""
    n, r = _reduced(np.minimum(size, LAST))
    upper, lower = _one_more(_grown(r))
    return n, upper, lower, _ldexp(_f(1) / upper, -2 * np.minimum(n, 30))


@_rule
def sinh(x: Array) -> Array:
    """The hyperbolic sine."""
    size = np.abs(_whole(x))
    n, upper, lower, inverse = _exponentials(np.maximum(size, _f(1)))
    total, lost = _sum(upper, -inverse)
    far = np.where(size > LAST, _f(np.inf), _ldexp(total + (lost + lower), n - 1))
    y = np.where(size < 1, _odd(SINH, np.minimum(size, _f(1))), far)
    return np.where(np.isnan(x), x, np.copysign(y, x))


@_rule
def cosh(x: Array) -> Array:
    """The hyperbolic cosine."""
    size = np.abs(_whole(x))
    n, upper, lower, inverse = _exponentials(size)
    total, lost = _sum(upper, inverse)
    y = np.where(size > LAST, _f(np.inf), _ldexp(total + (lost + lower), n - 1))
    return np.where(np.isnan(x), x, y)


def _root(square: Array, rest: Array) -> tuple[Array, Array]:
    """The square root of a pair, as a pair."""
    root = np.sqrt(square)
    product, more = _product(root, root)
    return root, np.where(root == 0, _f(0), (((square - product) - more) + rest) / (root + root))


@_rule
def asinh(x: Array) -> Array:
    """The inverse of sinh."""
    size = np.abs(_whole(x))
    middle = np.clip(size, _f(0.5), _f(8192))
    square, rest = _product(middle, middle)
    total, lost = _sum(square, _f(1))
    root, root_rest = _root(total, lost + rest)
    total, rest = _sum(root, middle)
    n, f = _split(total)
    far = _logarithm(n, f, (rest + root_rest) / total)
    n, f = _split(np.minimum(size, LARGEST))
    huge = np.where(size > LARGEST, _f(np.inf), _logarithm(n + 1, f, _f(0)))
    y = np.where(size < 0.5, _odd(ASINH, np.minimum(size, _f(0.5))), np.where(size > 8192, huge, far))
    return np.where(np.isnan(x), x, np.copysign(y, x))


@_rule
def acosh(x: Array) -> Array:
    """The inverse of cosh."""
    middle = np.clip(_whole(x), _f(1), _f(8192))
    t = middle - _f(1)
    total, lost = _sum(middle, _f(1))
    square, rest = _product(t, total)
    root, root_rest = _root(square, rest + t * lost)
    near, near_rest = _sum(root, t)
    near_rest = near_rest + root_rest
    total, rest = _sum(_f(1), near)
    n, f = _split(total)
    more = np.where(n == 0, near_rest, rest + near_rest) / total
    y = _logarithm(n, np.where(n == 0, near, f), more)
    n, f = _split(np.clip(_whole(x), _f(1), LARGEST))
    huge = np.where(x > LARGEST, _f(np.inf), _logarithm(n + 1, f, _f(0)))
    return np.where(x >= 1, np.where(x > 8192, huge, y), np.nan)


@_rule
def atanh(x: Array) -> Array:
    """The inverse of tanh."""
    size = np.abs(_whole(x))
    middle = np.clip(size, _f(0.5), _f(1 - 2.0**-24))
    divisor = _f(1) - middle
    total, lost = _sum(_f(1), middle)
    ratio = total / divisor
    product, rest = _product(ratio, divisor)
    n, f = _split(ratio)
    far = _logarithm(n, f, (((total - product) - rest) + lost) / total) / _f(2)
    y = np.where(size < 0.5, _odd(ATANH, np.minimum(size, _f(0.5))), np.where(size < 1, far, _f(np.inf)))
    return np.where(np.isnan(x) | (size > 1), np.nan, np.copysign(y, x))
