"""Sums of floats as sums of integers: the order of the addends changes nothing.

For n addends let k = min(22, 29 - floor(log2 n)), and let 2**e be above the largest magnitude. Each addend becomes two
integers: x * 2**(k - e), rounded, and the remainder times 2**k, rounded. int32 holds the sums of both. Adding
1.5 * 2**23 rounds a float to an integer and leaves the integer in the low bits.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.sharding import out_sharding, replicated_along
from jaxdml._arithmetic.windows import parts
from jaxdml._exact.arithmetic import added
from jaxdml._exact.pairs import INFINITY, NAN, bits, nearest, power_of_two, where

Array = jax.Array
MAGIC, MAGIC_BITS = np.float32(1.5 * 2**23), 0x4B400000
INFINITE = np.uint32(0x7F800000)
LARGEST_COUNT = 2**26


def digits(count: int | Array) -> int | Array:
    """k, the number of binary digits in each of an addend's two integers."""
    if isinstance(count, int):
        return min(22, 29 - (count.bit_length() - 1))
    return lax.min(np.int32(22), lax.clz(count) - np.int32(2))


def count_of(shape: Sequence[Any], axes: Sequence[int]) -> Any:
    """The number of addends of a sum over axes; symbolic if a size is."""
    return math.prod(shape[axis] for axis in axes)


def span_of_windows(params: Any) -> Any:
    """The number of elements from the first to the last under a window; symbolic if a size or dilation is."""
    windows = zip(params["window_dimensions"], params["window_dilation"], strict=True)
    return math.prod(1 + (size - 1) * dilation for size, dilation in windows)


def known_count(sizes: Sequence[Any]) -> int | Array:
    """The product of sizes; if one is symbolic, a scalar of the program, at most the largest int32."""
    if all(isinstance(size, int) for size in sizes):
        return math.prod(sizes)
    arrays = [jnp.asarray(size) for size in sizes]
    count = math.prod(lax.convert_element_type(x, jnp.int32) for x in arrays)
    rounded = math.prod(lax.convert_element_type(x, jnp.float32) for x in arrays)
    return lax.select(jnp.asarray(rounded < np.float32(2**30)), count, jnp.full_like(count, 2**31 - 1))


def nan_if_too_many(result: Array, count: int | Array) -> Array:
    """NaN in place of a sum whose count exceeds LARGEST_COUNT and was unknown when the program was checked."""
    if isinstance(count, int):
        return result
    return where(jnp.broadcast_to(count > LARGEST_COUNT, result.shape), NAN, result)


def integers_of(x: Array, k: int | Array) -> tuple[Array, Array]:
    """The bits of two floats that hold the two integers of x, |x| <= 2**k."""
    rest = (x - nearest(x)) * _power(k)  # XLA may simplify x + MAGIC - MAGIC to x
    return bits(x + MAGIC), bits(rest + MAGIC)


def _power(k: int | Array) -> Any:
    return power_of_two(k) if isinstance(k, jax.Array) else np.float32(2.0**k)


def without_magic(total: Array, count: int | Array) -> Array:
    """A sum of the bits of `count` floats, minus `count` times the bits of MAGIC, modulo 2**32."""
    if isinstance(count, int):
        return total - np.array(count * MAGIC_BITS % 2**32, np.uint32).view(np.int32)[()]
    return total - count * np.int32(MAGIC_BITS)


def exponent_of(magnitude: Array, k: int | Array) -> Array:
    """e from the bits of the largest magnitude; at least k - 126."""
    return jnp.maximum(lax.shift_right_logical(magnitude, np.int32(23)) - np.int32(126), k - np.int32(126))


def joined(first: Array, second: Array, k: int | Array, e: Array) -> Array:
    """(first + second * 2**-k) * 2**(e - k), in float32, within 0.75 ulp; +0 where it is zero or subnormal."""
    mask = (np.int32(1) << k) - np.int32(1)
    upper, lower = first + (second >> k), second & mask
    is_negative = upper < 0
    borrowed = -upper - lax.convert_element_type(lower != 0, jnp.int32)
    upper, lower = lax.select(is_negative, borrowed, upper), lax.select(is_negative, -lower & mask, lower)
    wide, narrow, rest = (
        lax.convert_element_type(part, jnp.float32) for part in (upper >> np.int32(8), upper & np.int32(255), lower)
    )
    size = wide * np.float32(256) + (narrow + rest * _power(-k))  # these products are exact
    result = where(size < power_of_two(lax.max(k - np.int32(126) - e, np.int32(-126))), np.float32(0), size)
    result = result * power_of_two(e - k)
    return lax.select(is_negative & (result > 0), -result, result)


def with_specials(total: Array, has_positive: Array, has_negative: Array) -> Array:
    """total, the sum of the finite addends; inf, -inf or NaN if inf, -inf or both are addends. NaN counts as both."""
    total = where(has_positive, INFINITY, where(has_negative, -INFINITY, total))
    return where(has_positive & has_negative, NAN, total)


def total(x: Array, axes: Sequence[int]) -> Array:
    """The sum over axes.

    The largest magnitude tells whether there is an infinity or NaN. If there is, the first integer of inf is 2**k, and
    that of -inf and of every finite addend is 4.
    """
    axes = tuple(axes)
    count = known_count([x.shape[axis] for axis in axes])
    if isinstance(count, int) and count == 0:
        return lax.full_like(jnp.sum(x, axes), 0)
    k = digits(count)
    as_unsigned = lax.bitcast_convert_type(x, jnp.uint32)
    rotated = (as_unsigned << np.uint32(1)) | (as_unsigned >> np.uint32(31))  # the magnitude, then the sign
    top = jnp.max(rotated, axes, keepdims=True, initial=0)
    magnitude = top >> np.uint32(1)
    is_finite = magnitude < INFINITE
    e = exponent_of(lax.bitcast_convert_type(magnitude, jnp.int32), k)
    scale = where(is_finite, power_of_two(k - e), np.float32(2.0**-126))
    largest = _power(k)
    lowest = where(is_finite, -largest, np.float32(4))
    near = jnp.minimum(jnp.maximum(x * scale, lowest), largest)
    first, second = (jnp.sum(part, axes, keepdims=True, dtype=jnp.int32) for part in integers_of(near, k))
    first, second = (without_magic(part, count) for part in (first, second))
    result = joined(first, second, k, e)
    has_positive, has_negative = first > 4 * count, (top & np.uint32(1)) == 1
    special = where(has_positive, where(has_negative, NAN, lax.full_like(e, INFINITY, jnp.float32)), -INFINITY)
    result = where(is_finite, result, where(magnitude > INFINITE, NAN, special))
    return lax.squeeze(nan_if_too_many(result, count), axes)


def running(x: Array, add: Callable[[Array], Array], axis: int) -> Array:
    """The running sums along an axis; `add` computes those of integers. The whole axis determines e."""
    count = known_count([x.shape[axis]])
    if isinstance(count, int) and count == 0:
        return x
    k = digits(count)
    is_finite = lax.abs(x) < INFINITY
    finite = where(is_finite, x, np.float32(0))
    e = exponent_of(jnp.max(bits(lax.abs(finite)), axis, keepdims=True, initial=0), k)
    first, second = integers_of(finite * power_of_two(k - e), k)
    first, second = (add(without_magic(part, 1)) for part in (first, second))
    has_positive, has_negative = (
        add(lax.convert_element_type((x != x) | (x == infinity), jnp.int32)) > 0 for infinity in (INFINITY, -INFINITY)
    )
    result = with_specials(joined(first, second, k, jnp.broadcast_to(e, x.shape)), has_positive, has_negative)
    return nan_if_too_many(result, count)


def windowed(x: Array, params: Any) -> Array:
    """Sums over windows, one addition at a time: along the first axis first, in order of increasing index."""
    sharding = out_sharding(*((x, axis) for axis in range(x.ndim)))
    for axis, size in enumerate(params["window_dimensions"]):
        x = replicated_along(x, axis) if size > 1 else x
    padding = [
        (low, high, gap - 1) for (low, high), gap in zip(params["padding"], params["base_dilation"], strict=True)
    ]
    x = lax.pad(x, np.float32(0), padding)
    windows = zip(params["window_dimensions"], params["window_strides"], params["window_dilation"], strict=True)
    for axis, (size, stride, dilation) in enumerate(windows):
        first, *rest = parts(x, axis, size, stride, dilation)
        x = functools.reduce(added, rest, first)
    return x if sharding is None else jax.sharding.reshard(x, sharding)
