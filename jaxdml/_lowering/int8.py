"""int8 operands and their product, the one contraction that every backend of XLA has a kernel for."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array


def signed(x: Array) -> Array:
    """x as int8: uint8 loses 128, by flipping its top bit."""
    return x if x.dtype == jnp.int8 else lax.bitcast_convert_type(x ^ np.uint8(128), jnp.int8)


def unsigned(x: Array, dtype: np.dtype) -> Array:
    return x if dtype == jnp.int8 else lax.bitcast_convert_type(x, jnp.uint8) ^ np.uint8(128)


def signed_zero_point(zero_point: Array | None, dtype: np.dtype, rank: int) -> Array | None:
    """The int32 zero point that goes with what `signed` makes of a tensor of dtype."""
    if dtype == jnp.int8:
        return None if zero_point is None else zero_point.astype(jnp.int32)
    zero_point = jnp.zeros((1,) * rank, jnp.int32) if zero_point is None else zero_point.astype(jnp.int32)
    return zero_point - np.int32(128)


def product(a: Array, b: Array, layout: str = "KN") -> Array:
    """int8 [..., M, K] times int8 [..., K, N], or [..., N, K], in int32.

    One row or column is computed as two: there is no kernel for one.
    """
    batch, rank = tuple(range(a.ndim - 2)), a.ndim
    depth_axis, column_axis = (rank - 2, rank - 1) if layout == "KN" else (rank - 1, rank - 2)
    rows, columns = a.shape[-2], b.shape[column_axis]
    a = lax.pad(a, np.int8(0), [(0, int(axis == rank - 2 and rows == 1), 0) for axis in range(rank)])
    b = lax.pad(b, np.int8(0), [(0, int(axis == column_axis and columns == 1), 0) for axis in range(rank)])
    # The algorithm keeps JAX from widening the operands to int32 before XLA sees them.
    product = lax.dot_general(
        a,
        b,
        (((rank - 1,), (depth_axis,)), (batch, batch)),
        precision=lax.DotAlgorithmPreset.DEFAULT,
        preferred_element_type=jnp.int32,
    )
    return product[..., :rows, :columns]


def sums_of_columns(b: Array, layout: str = "KN") -> Array:
    """int8 [..., K, N], or [..., N, K], to int32 [..., 1, N].

    As a product with ones: XLA:CPU writes the operand of a reduction out in int32 first. 4096 x 4096: 3 ms against 30.
    Four rows of ones, because there is no kernel for 2 x 2.
    """
    depth = b.shape[-2 if layout == "KN" else -1]
    return product(jnp.ones((*b.shape[:-2], 4, depth), jnp.int8), b, layout)[..., :1, :]


def sums_of_rows(a: Array) -> Array:
    """int8 [..., M, K] to int32 [..., M, 1]."""
    return jnp.swapaxes(sums_of_columns(a, "NK"), -1, -2)
