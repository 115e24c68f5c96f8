"""The integer contractions of the operators: what they mean, and which lowering computes them.

Both return sums of (x - x_zero_point) * (y - y_zero_point) in int32, modulo 2**32. Every lowering gives those very
integers, so that the choice among them is a matter of speed alone.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxdml._lowering import canonical
from jaxdml._numerics import broadcast


def _centred(x: jax.Array, zero_point: jax.Array | None) -> jax.Array:
    """x - zero_point in int32: 9 bits for 8-bit operands."""
    x = x.astype(jnp.int32)
    return x if zero_point is None else x - broadcast(zero_point.astype(jnp.int32), x.shape)


def int_dot(a: jax.Array, a_zero_point: jax.Array | None, b: jax.Array, b_zero_point: jax.Array | None) -> jax.Array:
    """Matrix product of 8-bit [..., M, K] and [..., K, N]; zero points broadcast to their operand."""
    return canonical.dot(_centred(a, a_zero_point), _centred(b, b_zero_point))


def int_conv(
    x: jax.Array,
    x_zero_point: jax.Array | None,
    filter: jax.Array,
    filter_zero_point: jax.Array | None,
    *,
    strides: Sequence[int],
    dilations: Sequence[int],
    padding: Sequence[tuple[int, int]],
    group_count: int,
) -> jax.Array:
    """Convolution of 8-bit [N, C, *spatial] with [O, C / groups, *kernel]; padding is real zero, x_zero_point."""
    return canonical.conv(
        _centred(x, x_zero_point),
        _centred(filter, filter_zero_point),
        strides=strides,
        dilations=dilations,
        padding=padding,
        group_count=group_count,
    )
