"""The contractions as `lax` spells them, on int32 operands: right on every backend, fast on none."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from jaxdml._lowering.int8 import out_sharding, whole_in_space

Array = jax.Array


def centred(x: Array, zero_point: Array | None) -> Array:
    """x - zero_point in int32; 9 bits for 8-bit operands."""
    x = x.astype(jnp.int32)
    return x if zero_point is None else x - zero_point.astype(jnp.int32)


def dot(a: Array, a_zero_point: Array | None, b: Array, b_zero_point: Array | None) -> Array:
    """[..., M, K] times [..., K, N], batched over what leads."""
    batch = tuple(range(a.ndim - 2))
    contracting = ((a.ndim - 1,), (b.ndim - 2,))
    operands = centred(a, a_zero_point), centred(b, b_zero_point)
    return lax.dot_general(
        *operands,
        (contracting, (batch, batch)),
        preferred_element_type=jnp.int32,
        out_sharding=out_sharding(*((a, axis) for axis in range(a.ndim - 1)), (b, b.ndim - 1)),
    )


def conv(
    x: Array,
    x_zero_point: Array | None,
    filter: Array,
    filter_zero_point: Array | None,
    *,
    strides: Sequence[int],
    dilations: Sequence[int],
    padding: Sequence[tuple[int, int]],
    group_count: int,
) -> Array:
    """[N, C, *spatial] with [O, C / groups, *kernel]; zeros stand around the centred x."""
    space = range(2, x.ndim)
    total = lax.conv_general_dilated(
        whole_in_space(centred(x, x_zero_point), *space),
        centred(filter, filter_zero_point),
        window_strides=strides,
        padding=padding,
        rhs_dilation=dilations,
        feature_group_count=group_count,
        preferred_element_type=jnp.int32,
        out_sharding=out_sharding((x, 0), (filter, 0), *((x, axis) for axis in space)),
    )
    return whole_in_space(total, *space)
