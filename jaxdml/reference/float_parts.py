"""Helpers of the rules of floats: NumPy's float32 and float64, exact rounding errors, exponentials and logarithms.

`_f` rounds to float32. Values called exact are computed in float64, which holds products of two float32 numbers and,
for the numbers that occur in the rules, the rounding errors of float32 sums.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = Any
_f = np.float32
SMALLEST, LARGEST = np.finfo(_f).smallest_normal, np.finfo(_f).max
EXP = (0.0013950539287179708, 0.008368918672204018, 0.04166620597243309, 0.166665181517601, 0.5)
LOG = (
    0.0674661248922348, -0.11675660312175751, 0.11888179928064346, -0.1240558922290802, 0.14219549298286438,
    -0.1666799634695053, 0.2000211924314499, -0.25000008940696716, 0.3333331346511841,
)  # fmt: skip


def _rule(function: Callable[..., Array]) -> Callable[..., Array]:
    """Flushes arguments and result, and silences NumPy's warnings."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Array:
        arguments = tuple(flushed(np.asarray(x, _f)) if isinstance(x, np.ndarray | _f) else x for x in arguments)
        with np.errstate(all="ignore"):
            return flushed(np.asarray(function(*arguments, **options), _f))

    return call


def flushed(x: Array) -> Array:
    """x with subnormals replaced by zeros of the same sign."""
    return np.where(np.abs(x) < SMALLEST, np.copysign(_f(0), x), x)


@_rule
def mul(x: Array, y: Array) -> Array:
    """fl(x * y); a zero if the product, rounded to 24 bits with an unbounded exponent, is below 2**-126."""
    fraction, exponent = np.frexp(x.astype(np.float64) * y)
    rounded = np.ldexp(fraction.astype(_f).astype(np.float64), exponent)
    return np.where(np.abs(rounded) < SMALLEST, np.copysign(0.0, rounded), rounded)


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    """Horner's scheme: each product and each sum rounds."""
    result = np.full_like(x, coefficients[0])
    for each in coefficients[1:]:
        result = result * x + _f(each)
    return result


def _sum(x: Array, y: Array) -> tuple[Array, Array]:
    """fl(x + y), and x + y - fl(x + y), which is exact."""
    x, y = np.broadcast_arrays(np.asarray(x, _f), np.asarray(y, _f))
    big, small = np.where(np.abs(x) >= np.abs(y), x, y), np.where(np.abs(x) >= np.abs(y), y, x)
    total = big + small
    return total, ((big.astype(np.float64) - total) + small).astype(_f)


def _product(x: Array, y: Array) -> tuple[Array, Array]:
    """fl(x * y), and x * y - fl(x * y), which is exact."""
    exact = np.asarray(x, np.float64) * np.asarray(y, np.float64)
    return exact.astype(_f), (exact - exact.astype(_f)).astype(_f)


def _upper(x: Array) -> Array:
    """x without the lower 12 of the 24 bits of its significand."""
    return (np.asarray(x, _f).view(np.int32) & -(2**12)).view(_f)


def _ldexp(x: Array, n: Array) -> Array:
    return np.ldexp(np.asarray(x, np.float64), np.asarray(n).astype(int)).astype(_f)


def _whole(x: Array) -> Array:
    """x, or 0 for NaN."""
    return np.where(np.isnan(x), _f(0), x)


# Exponentials and logarithms -----------------------------------------------------------------------------------------


def _reduced(x: Array, near: Array | None = None) -> tuple[Array, tuple[Array, Array]]:
    n = np.rint((x if near is None else near) * _f(1.44269504))
    upper = x - n * _f(0.693145751953125)
    lower = n * _f(1.4286197256296873e-06)
    r = upper - lower
    return n, (r, (upper - r) - lower)


def _grown(r: tuple[Array, Array]) -> tuple[Array, Array]:
    return _sum(r[0], _polynomial(EXP, r[0]) * (r[0] * r[0]) + r[1])


def _one_more(p: tuple[Array, Array]) -> tuple[Array, Array]:
    total, rest = _sum(_f(1), p[0])
    return total, rest + p[1]


def _split(x: Array) -> tuple[Array, Array]:
    m, n = np.frexp(x)  # m from 1/2 to 1
    is_low = m < np.array(0x3F3504F3, np.int32).view(_f)
    return (n - is_low).astype(_f), np.where(is_low, m + m, m) - _f(1)


def _logarithm(n: Array, f: Array, more: Any) -> Array:
    square = f * f
    lower = ((_polynomial(LOG, f) * f) * square + n * _f(1.4286197256296873e-06)) + more
    return (f + (lower - square * _f(0.5))) + n * _f(0.693145751953125)
