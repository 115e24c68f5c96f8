"""Products of many floats in one order: neighbors are multiplied until one product is left.

Ones in front make the number of factors a power of two. So each running product has the same bits as the product of
all elements up to its place.

Factors are moved as integers. XLA adds zeros to floats when it moves them between devices, and -0 + 0 is +0.
"""

from collections.abc import Sequence

import jax
from jax import lax

from jaxdml._arithmetic.sharding import replicated_along
from jaxdml._exact.arithmetic import multiplied
from jaxdml._exact.pairs import BITS_OF_ONE, bits, floats

Array = jax.Array


def total(x: Array, axes: Sequence[int]) -> Array:
    """The product over axes, along the last of them first; 1 for no factors."""
    factors = bits(x)
    for axis in sorted(axes, reverse=True):
        factors = replicated_along(factors, axis)
        if factors.shape[axis] == 0:
            factors = with_ones(factors, 1, axis)
        while factors.shape[axis] > 1:
            factors = with_ones(factors, factors.shape[axis] % 2, axis)
            pairs = (lax.slice_in_dim(factors, start, None, 2, axis) for start in (0, 1))
            factors = bits(multiplied(*map(floats, pairs)))
    return floats(lax.squeeze(factors, tuple(axes)))


def running(x: Array, axis: int, reverse: bool) -> Array:
    """The running products along an axis; from its end if `reverse`."""
    factors = lax.rev(bits(x), (axis,)) if reverse else bits(x)
    count, distance = x.shape[axis], 1
    while distance < count:  # each product has `distance` factors, or all up to its place
        before = with_ones(lax.slice_in_dim(factors, 0, count - distance, 1, axis), distance, axis)
        factors = bits(multiplied(floats(before), floats(factors)))
        distance *= 2
    return floats(lax.rev(factors, (axis,)) if reverse else factors)


def with_ones(factors: Array, count: int, axis: int) -> Array:
    """The bits of factors, with those of `count` ones in front along an axis."""
    return lax.pad(factors, BITS_OF_ONE, [(count if each == axis else 0, 0, 0) for each in range(factors.ndim)])
