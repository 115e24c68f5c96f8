"""Products and convolutions for CUDA, as products of bfloat16.

XLA:GPU multiplies matrices of int8 and of bfloat16 on tensor cores, but few integer convolutions have a kernel.
Some of XLA's kernels for int8 double the sums: they load 16 terms for an instruction that multiplies 32, which then
gets each term twice. docs/numerics_accelerators.md says where this was observed, and proves that bfloat16 is exact.
"""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import int8, windows
from jaxdml._arithmetic.layouts import Filter
from jaxdml._arithmetic.matrix_product import matrix_product

Array = jax.Array
MOST_TERMS = 2**10  # the sum of this many products of int8 numbers is exact in float32
FEW_ROWS = 4  # up to this many rows take less time without tensor cores, if the terms of a sum are next to each other


def dot(a: Array, b: Array, layout: str = "KN") -> Array:
    """int8 [..., M, K] times int8 [..., K, *N] or, with layout "NK", [..., N, K], in int32: [..., M, *N]."""
    if layout == "NK" and isinstance(a.shape[-2], int) and a.shape[-2] <= FEW_ROWS:
        return _sums_of_few_rows(a, b)
    if isinstance(a.shape[-1], int):
        return int8.in_parts(functools.partial(_product_of_floats, layout=layout), a, b, layout, MOST_TERMS)
    # A symbolic depth is not split, so it needs products of int32, which use neither tensor cores nor the kernels that
    # double sums.
    wide, values = (lax.convert_element_type(operand, jnp.int32) for operand in (a, b))
    return matrix_product(wide, values, layout, lax.Precision.DEFAULT, jnp.int32)


def _sums_of_few_rows(a: Array, b: Array) -> Array:
    """The int8 product [..., M, K] times [..., N, K] as sums of int32 numbers. XLA:GPU reads b once for each row."""
    a, b = (lax.convert_element_type(operand, jnp.int32) for operand in (a, b))
    terms = a[..., :, None, :] * b[..., None, :, :]
    return lax.reduce(terms, np.int32(0), lax.add, (terms.ndim - 1,))


def _product_of_floats(a: Array, b: Array, layout: str) -> Array:
    """The int8 product, computed from bfloat16. Products and sums are integers that float32 holds."""
    a, b = (lax.convert_element_type(operand, jnp.bfloat16) for operand in (a, b))
    return lax.convert_element_type(matrix_product(a, b, layout, lax.Precision.DEFAULT, jnp.float32), jnp.int32)


def conv(x: Array, filter: Filter, strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """Shifted products for a depthwise filter, else a matrix product for each group."""
    if windows.suits_depthwise(filter):
        return windows.depthwise(x, filter, strides, dilations, has_vector_registers=False)
    if math.prod(filter.shape[2:]) == 1:
        # Without the barrier XLA:GPU fuses the conversion of x to int8 into the product. Depending on its sizes, such a
        # product may compile without tensor cores, or fail ("No supported config found").
        x = lax.optimization_barrier(x)
    return windows.matrix(x, filter, strides, dilations, dot)
