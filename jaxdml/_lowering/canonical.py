"""The contractions as `lax` spells them, on int32 operands: right on every backend, fast on none."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """int32 [..., M, K] times int32 [..., K, N], batched over what leads: int32 [..., M, N], modulo 2**32."""
    batch = tuple(range(a.ndim - 2))
    contracting = ((a.ndim - 1,), (b.ndim - 2,))
    return lax.dot_general(a, b, (contracting, (batch, batch)), preferred_element_type=jnp.int32)


def conv(
    x: jax.Array,
    filter: jax.Array,
    *,
    strides: Sequence[int],
    dilations: Sequence[int],
    padding: Sequence[tuple[int, int]],
    group_count: int,
) -> jax.Array:
    """int32 [N, C, *spatial] with int32 [O, C / groups, *kernel]: int32 [N, O, *out], modulo 2**32, zeros around x."""
    return lax.conv_general_dilated(
        x,
        filter,
        window_strides=strides,
        padding=padding,
        rhs_dilation=dilations,
        feature_group_count=group_count,
        preferred_element_type=jnp.int32,
    )
