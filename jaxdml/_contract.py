"""The integer contractions of the operators: what they mean, and which lowering computes them.

Both return sums of (x - x_zero_point) * (y - y_zero_point) in int32, modulo 2**32. Every lowering gives those very
integers, so that the choice among them is a matter of speed alone.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
from jax import lax

from jaxdml._lowering import canonical, cpu


def int_dot(a: jax.Array, a_zero_point: jax.Array | None, b: jax.Array, b_zero_point: jax.Array | None) -> jax.Array:
    """Matrix product of 8-bit [..., M, K] and [..., K, N]; zero points have the rank of what they broadcast to."""
    return lax.platform_dependent(a, a_zero_point, b, b_zero_point, cpu=cpu.dot, default=canonical.dot)


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
    """Convolution of 8-bit [N, C, *spatial] with [O, C / groups, *kernel]; padding is real zero, x_zero_point.

    Zero points have their operand's rank: one element, or one for each O of the filter.
    """
    options: dict[str, Any] = {
        "strides": strides,
        "dilations": dilations,
        "padding": padding,
        "group_count": group_count,
    }
    return lax.platform_dependent(
        x,
        x_zero_point,
        filter,
        filter_zero_point,
        cpu=partial(cpu.conv, **options),
        default=partial(canonical.conv, **options),
    )
