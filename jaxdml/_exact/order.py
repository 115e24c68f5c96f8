"""The maximum, the minimum and the next float, found by comparing integers. -0 < +0, and NaN wins.

A float's key is its bits as int32, with all but the sign inverted for negative floats. Keys are ordered like floats.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.sharding import broadcast_like
from jaxdml._exact.pairs import NAN, bits, floats, where

Array = jax.Array
LEAST, GREATEST = np.int32(-(2**31)), np.int32(2**31 - 1)
KEY_OF_INFINITY = np.int32(0x7F800000)
# The bits of the smallest positive number that `next_after` returns. Only in float16 does it return subnormal numbers.
BITS_OF_SMALLEST = {np.dtype(jnp.float16): 1, np.dtype(jnp.bfloat16): 2**7, np.dtype(jnp.float32): 2**23}


def turned(key: Array) -> Array:
    """Maps the bits of a float to its key, and a key to the bits of its float."""
    return key ^ ((key >> np.int32(31)) & GREATEST)


def keys(x: Array, nan: np.int32) -> Array:
    """The keys of floats; all NaN have the key `nan`."""
    return lax.select(x != x, lax.full_like(bits(x), nan), turned(bits(x)))


def larger(x: Array, y: Array) -> Array:
    """The larger of x and y; NaN if either is NaN."""
    return where((x != x) | (y != y), NAN, floats(turned(lax.max(turned(bits(x)), turned(bits(y))))))


def smaller(x: Array, y: Array) -> Array:
    """The smaller of x and y; NaN if either is NaN."""
    return where((x != x) | (y != y), NAN, floats(turned(lax.min(turned(bits(x)), turned(bits(y))))))


def clamped(low: Array, x: Array, high: Array) -> Array:
    """The smaller of high and the larger of low and x; NaN if one of the three is NaN."""
    return smaller(larger(x, low), high)


def largest(x: Array, reduce: Callable[[Array], Array]) -> Array:
    """Reduces x by `reduce`, a maximum of integers, on its keys; the maximum of no elements is -inf."""
    found = reduce(keys(x, GREATEST))
    return floats(turned(lax.max(found, lax.full_like(found, ~KEY_OF_INFINITY))))


def smallest(x: Array, reduce: Callable[[Array], Array]) -> Array:
    """Reduces x by `reduce`, a minimum of integers, on its keys; the minimum of no elements is inf."""
    found = reduce(keys(x, LEAST))
    return floats(turned(lax.min(found, lax.full_like(found, KEY_OF_INFINITY))))


def place(x: Array, reduce: Callable[[Array], Array], nan: np.int32) -> Array:
    """The first index of the largest or smallest element; zeros are equal."""
    return reduce(keys(where(x == 0, np.float32(0), x), nan))


def top(x: Array, count: int, axis: int, nan: np.int32) -> tuple[Array, Array]:
    """The `count` largest elements and their indices; equal elements keep their order. All NaN have the key `nan`."""
    axis = axis % x.ndim
    places = lax.expand_dims(lax.iota(jnp.int32, x.shape[axis]), [each for each in range(x.ndim) if each != axis])
    index = broadcast_like(places, x)
    _, index, sorted_x = lax.sort((~keys(x, nan), index, x), dimension=axis, is_stable=True, num_keys=1)
    return (
        lax.slice_in_dim(sorted_x, 0, count, axis=axis),
        lax.slice_in_dim(index, 0, count, axis=axis),
    )


def stable(primitive: Any, params: dict[str, Any], *operands: Array) -> Any:
    """A stable sort: -0 and +0 count as equal, and NaN comes last."""
    return primitive.bind(*operands, **{**params, "is_stable": True})


def next_after(x: Array, y: Array) -> Array:
    """The number next to x on the way to y, both of one type; y where they are equal; NaN if either is NaN.

    A float's place is 0 for zeros, 1 for the smallest positive number, 2 for the next, and so on.
    """
    integer = jnp.int32 if x.dtype == jnp.float32 else jnp.int16
    sign, below = np.int32(np.iinfo(integer).min), np.int32(BITS_OF_SMALLEST[x.dtype] - 1)
    of_x, of_y = (lax.convert_element_type(lax.bitcast_convert_type(z, integer), jnp.int32) for z in (x, y))

    def place(of: Array) -> Array:
        size = lax.max((of & ~sign) - below, lax.full_like(of, 0))
        return lax.select(of < 0, -size, size)

    at = place(of_x)
    found = lax.clamp(at - np.int32(1), place(of_y), at + np.int32(1))
    size = lax.select(found == 0, found, lax.abs(found) + below)
    of_next = size | (lax.select(at == 0, of_y, of_x) & sign)
    result = lax.bitcast_convert_type(lax.convert_element_type(of_next, integer), x.dtype)
    return lax.select((x != x) | (y != y), lax.full_like(x, np.nan), result)
