"""The operators in `lax`, as people write them, in one type of operands.

Every peer gets its weights in the type that it computes in, before the clock runs.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

LAX, FLOAT, BFLOAT = "lax int8", "lax float32", "lax bfloat16"
# Where peers run, and the types of their operands. On a CPU, "lax int8" widens int8 to int32, as comes to mind first.
# XLA compiles no int32 convolution for a GPU, so there it multiplies int8, and corrects for the zero point.
TYPES: dict[str, dict[str, Any]] = {
    "cpu": {LAX: jnp.int32, FLOAT: jnp.float32},
    "gpu": {LAX: jnp.int8, FLOAT: jnp.float32, BFLOAT: jnp.bfloat16},
    "": {},
}


def held(dtype: Any, weights: np.ndarray, summed: tuple[int, ...]) -> Any:
    """Weights as a peer holds them; int8 ones with their sums over some axes, which correct for the zero point."""
    if dtype == jnp.int8:
        return jnp.asarray(weights), jnp.asarray(weights.sum(summed, dtype=np.float32))
    return jnp.asarray(weights, jnp.int8 if dtype == jnp.int32 else dtype)


def dot(dtype: Any, a: jax.Array, zero_point: int, b: Any) -> jax.Array:
    if dtype == jnp.int8:
        b, sums = b
        return lax.dot(_signed(a), b, preferred_element_type=jnp.int32).astype(jnp.float32) + (128 - zero_point) * sums
    return lax.dot(a.astype(dtype) - zero_point, b.astype(dtype), preferred_element_type=_sums(dtype))


def conv(
    dtype: Any, x: jax.Array, zero_point: int, f: Any, *, stride: int, padding: int, group_count: int
) -> jax.Array:
    options: dict[str, Any] = {"window_strides": (stride, stride), "feature_group_count": group_count}
    if dtype == jnp.int8:
        f, sums = f
        sides = (padding, padding, 0)
        x = lax.pad(_signed(x), np.int8(zero_point - 128), [(0, 0, 0), (0, 0, 0), sides, sides])
        # XLA compiles an int8 convolution for a GPU if its sums become float32 at once, and refuses others.
        total = lax.conv_general_dilated(x, f, padding="VALID", preferred_element_type=jnp.int32, **options)
        return total.astype(jnp.float32) + (128 - zero_point) * sums[:, None, None]
    around = [(padding, padding)] * 2
    x, f = x.astype(dtype) - zero_point, f.astype(dtype)
    return lax.conv_general_dilated(x, f, padding=around, preferred_element_type=_sums(dtype), **options)


def requantized(total: jax.Array, multiplier: Any, zero_point: int) -> jax.Array:
    return rounded(total.astype(jnp.float32) * multiplier, zero_point, jnp.uint8)


def rounded(value: jax.Array, zero_point: int, dtype: Any) -> jax.Array:
    limits = np.iinfo(dtype)
    return jnp.clip(jnp.round(value) + zero_point, limits.min, limits.max).astype(dtype)


def _signed(x: jax.Array) -> jax.Array:
    return (x.astype(jnp.int16) - 128).astype(jnp.int8)


def _sums(dtype: Any) -> Any:
    return jnp.int32 if dtype == jnp.int32 else jnp.float32
