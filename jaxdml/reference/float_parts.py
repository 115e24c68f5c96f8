"""Helpers of the rules of floats: NumPy's float32 and float64, and exact rounding errors.

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
    """The upper 12 of a float's 24 bits."""
    return (np.asarray(x, _f).view(np.int32) & -(2**12)).view(_f)


def _ldexp(x: Array, n: Array) -> Array:
    return np.ldexp(np.asarray(x, np.float64), np.asarray(n).astype(int)).astype(_f)
