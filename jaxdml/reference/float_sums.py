"""Sums and products of floats, the larger and the smaller of two, and conversions to integers, in NumPy."""

from typing import Any

import numpy as np

from jaxdml.reference.float_parts import SMALLEST, Array, _f, _rule, mul


def _planes(x: Array, axis: int) -> tuple[int, Array, Array, Array]:
    """k, e and the two integers of each finite addend, as docs/exact_sums.md defines them."""
    k = min(22, 29 - (x.shape[axis].bit_length() - 1))
    x = np.where(np.isfinite(x), x, _f(0))
    e = np.maximum(np.frexp(np.abs(x).max(axis, keepdims=True))[1], k - 126)
    e = np.where(np.abs(x).max(axis, keepdims=True) == 0, k - 126, e).astype(np.int32)
    scaled = np.ldexp(x.astype(np.float64), k - e)
    first = np.rint(scaled)
    second = np.rint(np.ldexp(scaled - first, k))
    return k, e, first.astype(np.int64), second.astype(np.int64)


def _joined(first: Array, second: Array, k: int, e: Array) -> Array:
    total = first * 2**k + second  # int64 holds it
    size = np.abs(total)
    upper, lower = size >> (k + 8), size & (2 ** (k + 8) - 1)
    joined = (upper * 256.0).astype(_f) + (lower * 2.0**-k).astype(_f)
    return np.where(total < 0, -1.0, 1.0) * np.ldexp(joined.astype(np.float64), e - k)


def _with_specials(y: Array, has_positive: Array, has_negative: Array) -> Array:
    y = np.where(np.abs(y) < SMALLEST, 0.0, y)
    y = np.where(has_positive, np.inf, np.where(has_negative, -np.inf, y))
    return np.where(has_positive & has_negative, np.nan, y)


@_rule
def reduce_sum(x: Array) -> Array:
    """The sum over the last axis."""
    k, e, first, second = _planes(x, -1)
    y = _joined(first.sum(-1, keepdims=True), second.sum(-1, keepdims=True), k, e)
    has = ((np.isnan(x) | (x == infinity)).any(-1, keepdims=True) for infinity in (np.inf, -np.inf))
    return _with_specials(y, *has)[..., 0]


@_rule
def cumsum(x: Array) -> Array:
    """The running sums along the last axis."""
    k, e, first, second = _planes(x, -1)
    y = _joined(first.cumsum(-1), second.cumsum(-1), k, e)
    has = ((np.isnan(x) | (x == infinity)).cumsum(-1) > 0 for infinity in (np.inf, -np.inf))
    return _with_specials(y, *has)


@_rule
def scatter_add(x: Array, places: Array, updates: Array) -> Array:
    """x plus, along the last axis, the sum of the updates of each place; updates outside of x are dropped."""
    result = x.copy()
    for place in range(x.shape[-1]):
        if place in places:
            total = x[..., place] + reduce_sum(updates[..., np.asarray(places) == place])
            result[..., place] = np.where(np.abs(total) < SMALLEST, _f(0), total)
    return result


@_rule
def reduce_prod(x: Array) -> Array:
    """The product over the last axis: ones in front, then products of neighbors until one is left."""
    count = x.shape[-1]
    ones = np.ones((*x.shape[:-1], 2 ** max(count - 1, 0).bit_length() - count), _f)
    x = np.concatenate([ones, x], -1)
    while x.shape[-1] > 1:
        x = mul(x[..., ::2], x[..., 1::2])
    return x[..., 0]


@_rule
def cumprod(x: Array) -> Array:
    """The running products along the last axis: each is the product of the elements up to it."""
    result = x.copy()
    for place in range(x.shape[-1]):
        result[..., place] = reduce_prod(x[..., : place + 1])
    return result


# Order and conversions -----------------------------------------------------------------------------------------------


def _greater(x: Array, y: Array) -> Array:
    """Whether x > y, with -0 < +0."""
    return (x > y) | ((x == y) & ~np.signbit(x) & np.signbit(y))


@_rule
def maximum(x: Array, y: Array) -> Array:
    """The larger of x and y, where -0 < +0; NaN if either is NaN."""
    return np.where(np.isnan(x) | np.isnan(y), np.nan, np.where(_greater(x, y), x, y))


@_rule
def minimum(x: Array, y: Array) -> Array:
    """The smaller of x and y, where -0 < +0; NaN if either is NaN."""
    return np.where(np.isnan(x) | np.isnan(y), np.nan, np.where(_greater(x, y), y, x))


def to_integers(x: Array, dtype: Any) -> Array:
    """x rounded towards zero, and saturated; NaN becomes 0."""
    limits = np.iinfo(dtype)
    low, high = np.asarray(limits.min, dtype), np.asarray(limits.max, dtype)
    with np.errstate(all="ignore"):
        whole = np.trunc(np.where(np.isnan(x), 0, x).astype(np.float64))
        is_high, is_low = whole >= limits.max, whole <= limits.min  # float64 rounds the highest 64-bit integer up
        return np.where(is_high, high, np.where(is_low, low, whole.astype(dtype)))
