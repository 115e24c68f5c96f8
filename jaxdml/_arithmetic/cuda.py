"""Convolutions for CUDA. XLA:GPU multiplies int8 matrices on tensor cores, but few integer convolutions have a kernel.

The choice between methods follows XLA's source. Tests only compile the methods; none has run on a GPU.
"""

import math
from collections.abc import Sequence

import jax
from jax import lax

from jaxdml._arithmetic import windows
from jaxdml._arithmetic.layouts import Filter


def conv(x: jax.Array, filter: Filter, strides: Sequence[int], dilations: Sequence[int]) -> jax.Array:
    """Shifted products for a depthwise filter, else a matrix product for each group."""
    if windows.suits_depthwise(filter):
        return windows.depthwise(x, filter, strides, dilations, has_vector_registers=False)
    if math.prod(filter.shape[2:]) == 1:
        # Without the barrier XLA:GPU fuses the conversion of x to int8 into the product. It compiles such products of
        # some sizes without tensor cores, and refuses others ("failed to translate module to LLVM IR").
        x = lax.optimization_barrier(x)
    return windows.matrix(x, filter, strides, dilations)
