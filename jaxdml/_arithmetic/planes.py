"""Integers split into planes of int8, so that products of int8 compute products of wider integers.

An integer is the sum of plane[i] * 128**(count - 1 - i). The first plane lies in [-127, 127], the others in [-64, 63].
The sums of products with each plane are combined in float32, in one order: two of them times 128 would not fit int32.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array
BITS, BASE = np.int32(7), np.float32(128)


def largest(count: int) -> int:
    """The largest integer of `count` planes, and the magnitude of the least."""
    return 127 * 128 ** (count - 1) + 63 * (128 ** (count - 1) - 1) // 127


def split(x: Array, count: int) -> list[Array]:
    """The planes of int32 x, each int8 and of x's shape, the highest first."""
    planes: list[Array] = []
    for _ in range(count - 1):
        lowest = lax.sub(lax.bitwise_and(lax.add(x, np.int32(64)), np.int32(127)), np.int32(64))
        planes.insert(0, lax.convert_element_type(lowest, jnp.int8))
        x = lax.shift_right_arithmetic(lax.sub(x, lowest), BITS)
    return [lax.convert_element_type(x, jnp.int8), *planes]


def combined(sums: Sequence[Array]) -> Array:
    """The float32 sum of int32 sums[i] * 128**(count - 1 - i): fl(fl(sums[0]) * 128 + fl(sums[1])), and so on.

    A product by 128 is exact, so a fused multiply-add has the same bits.
    """
    first, *rest = (lax.convert_element_type(each, jnp.float32) for each in sums)
    for each in rest:
        first = lax.add(lax.mul(first, BASE), each)
    return first
