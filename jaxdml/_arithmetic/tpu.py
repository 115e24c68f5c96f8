"""The convolution for TPUs, whose matrix units multiply int8. Tests lower it; it has not run on a TPU."""

from collections.abc import Sequence

import jax

from jaxdml._arithmetic import int32
from jaxdml._arithmetic.prepared import PreparedFilter, signed_filter


def conv(x: jax.Array, filter: PreparedFilter, strides: Sequence[int], dilations: Sequence[int]) -> jax.Array:
    """The convolution of `lax`, on int8."""
    return int32.convolution(x, signed_filter(filter), filter, strides, dilations)
