"""The matrix product in the layouts of weights."""

from typing import Any

import jax
from jax import lax

from jaxdml._arithmetic.sharding import out_sharding

Array = jax.Array


def matrix_product(a: Array, b: Array, layout: str, precision: Any, dtype: Any) -> Array:
    """[..., M, K] times [..., K, *N] or, with layout "NK", [..., N, K], in `dtype`: [..., M, *N]."""
    rank, batch = a.ndim, tuple(range(a.ndim - 2))
    depth = rank - 2 if layout == "KN" else rank - 1
    columns = tuple(axis for axis in range(rank - 2, b.ndim) if axis != depth)
    return lax.dot_general(
        a,
        b,
        (((rank - 1,), (depth,)), (batch, batch)),
        precision=precision,
        preferred_element_type=dtype,
        out_sharding=out_sharding(*((a, axis) for axis in (*batch, rank - 2)), *((b, axis) for axis in columns)),
    )
