"""Code that people write with `lax` instead of jaxdml: int8 contractions and the rest of the formula; float networks.

Every peer gets its weights in the type that it computes in, before timing starts.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

LAX, FLOAT, BFLOAT = "lax int8", "lax float32", "lax bfloat16"
# The peers in floats, which do not quantize, by platform.
FLOATS: dict[str, dict[str, Any]] = {
    "cpu": {FLOAT: jnp.float32},
    "gpu": {FLOAT: jnp.float32, BFLOAT: jnp.bfloat16},
    "": {},
}


def held(weights: np.ndarray, summed: tuple[int, ...]) -> Any:
    """int8 weights with their sums over some axes, which correct for the input's zero point."""
    return jnp.asarray(weights), jnp.asarray(weights.sum(summed, dtype=np.int32))


def dot(a: jax.Array, zero_point: int, b: Any) -> jax.Array:
    b, sums = b
    return lax.dot(_signed(a), b, preferred_element_type=jnp.int32) + (128 - zero_point) * sums


def conv(x: jax.Array, zero_point: int, f: Any, *, stride: int, padding: int, group_count: int) -> jax.Array:
    f, sums = f
    sides = (padding, padding, 0)
    x = lax.pad(_signed(x), np.int8(zero_point - 128), [(0, 0, 0), (0, 0, 0), sides, sides])
    options: dict[str, Any] = {"window_strides": (stride, stride), "feature_group_count": group_count}
    total = lax.conv_general_dilated(x, f, padding="VALID", preferred_element_type=jnp.int32, **options)
    if jax.default_backend() == "gpu":
        # XLA compiles an int8 convolution for a GPU only if its sums are immediately converted to float32.
        total = total.astype(jnp.float32)
    return total + (128 - zero_point) * sums[:, None, None].astype(total.dtype)


# Float networks have channels last: XLA:CPU takes twice as long for NCHW.
def nhwc(x: np.ndarray, dtype: Any) -> jax.Array:
    return jnp.asarray(x.transpose(0, 2, 3, 1), dtype)


def hwio(f: np.ndarray, dtype: Any) -> jax.Array:
    return jnp.asarray(f.transpose(2, 3, 1, 0), dtype)


def float_conv(x: jax.Array, f: jax.Array, bias: Any, *, stride: int, padding: int, group_count: int) -> jax.Array:
    total = lax.conv_general_dilated(
        x, f, (stride, stride), [(padding, padding)] * 2, feature_group_count=group_count,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip
    return total + bias.astype(total.dtype)


def requantized(total: jax.Array, multiplier: Any, zero_point: int) -> jax.Array:
    return rounded(total.astype(jnp.float32) * multiplier, zero_point, jnp.uint8)


def rounded(value: jax.Array, zero_point: int, dtype: Any) -> jax.Array:
    limits = np.iinfo(dtype)
    return jnp.clip(jnp.round(value) + zero_point, limits.min, limits.max).astype(dtype)


def _signed(x: jax.Array) -> jax.Array:
    return (x.astype(jnp.int16) - 128).astype(jnp.int8)
