"""Products of many floats in one order: neighbours are multiplied until one product is left.

Ones in front make the number of factors a power of two. So the last running product of an axis is its product, and each
running product is the product of the elements up to it.
"""

from collections.abc import Sequence

import jax
import numpy as np
from jax import lax

from jaxdml._arithmetic.sharding import replicated_along
from jaxdml._exact.arithmetic import multiplied

Array = jax.Array


def total(x: Array, axes: Sequence[int]) -> Array:
    """The product over axes, along the last of them first; 1 for no factors."""
    for axis in sorted(axes, reverse=True):
        x = replicated_along(x, axis)
        if x.shape[axis] == 0:
            x = with_ones(x, 1, axis)
        while x.shape[axis] > 1:
            x = with_ones(x, x.shape[axis] % 2, axis)
            x = multiplied(*(lax.slice_in_dim(x, start, None, 2, axis) for start in (0, 1)))
    return lax.squeeze(x, tuple(axes))


def running(x: Array, axis: int, reverse: bool) -> Array:
    """The running products along an axis; from its end if `reverse`."""
    x = lax.rev(x, (axis,)) if reverse else x
    count, distance = x.shape[axis], 1
    while distance < count:  # each product has `distance` factors, or all up to its place
        x = multiplied(with_ones(lax.slice_in_dim(x, 0, count - distance, 1, axis), distance, axis), x)
        distance *= 2
    return lax.rev(x, (axis,)) if reverse else x


def with_ones(x: Array, count: int, axis: int) -> Array:
    """x with `count` ones in front along an axis."""
    return lax.pad(x, np.float32(1), [(count if each == axis else 0, 0, 0) for each in range(x.ndim)])
