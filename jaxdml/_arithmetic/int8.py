"""Conversion to int8, and the int8 matrix product, which every platform of XLA compiles."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.matrix_product import matrix_product
from jaxdml._arithmetic.sharding import replicated_along

Array = jax.Array
MOST_TERMS = 2**17 - 1  # the sum of this many products of int8 numbers fits int32


def signed(x: Any) -> Any:
    """x as int8; 128 is subtracted from uint8 by flipping the top bit. NumPy arrays stay NumPy arrays."""
    if isinstance(x, np.ndarray):
        return x if x.dtype == np.int8 else (x ^ np.uint8(128)).view(np.int8)
    return x if x.dtype == jnp.int8 else lax.bitcast_convert_type(lax.bitwise_xor(x, np.uint8(128)), jnp.int8)


def unsigned(x: Array, dtype: np.dtype) -> Array:
    """The inverse of `signed`, for an array that had `dtype`."""
    return x if dtype == jnp.int8 else lax.bitwise_xor(lax.bitcast_convert_type(x, jnp.uint8), np.uint8(128))


def signed_zero_point(zero_point: Array | None, dtype: np.dtype) -> Any:
    """The int32 zero point of signed(x), if x has type `dtype` and the given zero point; None means 0."""
    if zero_point is None:
        return None if dtype == jnp.int8 else np.int32(-128)
    zero_point = lax.convert_element_type(zero_point, jnp.int32)
    return zero_point if dtype == jnp.int8 else lax.sub(zero_point, np.int32(128))


def product(a: Array, b: Array, layout: str = "KN") -> Array:
    """int8 [..., M, K] times int8 [..., K, *N] or, with layout "NK", [..., N, K], in int32: [..., M, *N]."""
    # Given an algorithm, JAX does not widen the operands to int32 before XLA sees them.
    return matrix_product(a, b, layout, lax.DotAlgorithmPreset.DEFAULT, jnp.int32)


def product_in_parts(a: Array, b: Array, layout: str = "KN") -> Array:
    """`product` with sums modulo 2**32, computed in parts whose sums fit int32.

    Accelerators may saturate larger sums instead of wrapping them, as NVIDIA's matrix instructions do.
    """
    return in_parts(functools.partial(product, layout=layout), a, b, layout, MOST_TERMS)


def in_parts(multiply: Callable[[Array, Array], Array], a: Array, b: Array, layout: str, most_terms: int) -> Array:
    """The int32 product as a sum of products of at most `most_terms` terms. A symbolic depth is not split."""
    depth = a.shape[-1]
    if not isinstance(depth, int) or depth <= most_terms:
        return multiply(a, b)
    b_axis = a.ndim - 2 if layout == "KN" else a.ndim - 1
    a, b = replicated_along(a, a.ndim - 1), replicated_along(b, b_axis)

    def part(start: int, end: int) -> Array:
        return multiply(lax.slice_in_dim(a, start, end, axis=a.ndim - 1), lax.slice_in_dim(b, start, end, axis=b_axis))

    ends = (*range(0, depth, most_terms), depth)
    return functools.reduce(lax.add, itertools.starmap(part, itertools.pairwise(ends)))
