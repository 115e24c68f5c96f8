"""The convolution for TPUs, whose matrix units multiply int8. Tests lower it; it has not run on a TPU."""

import math
from collections.abc import Sequence

import jax

from jaxdml._arithmetic import int8, int32, windows
from jaxdml._arithmetic.layouts import Filter


def conv(x: jax.Array, filter: Filter, strides: Sequence[int], dilations: Sequence[int]) -> jax.Array:
    """The convolution of `lax`, on int8; a matrix product if its sums may not fit int32."""
    if math.prod(filter.shape[1:]) > int8.MOST_TERMS:
        return windows.matrix(x, filter, strides, dilations)
    return int32.convolution(x, filter.array(), filter, strides, dilations)
