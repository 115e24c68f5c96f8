"""Every rounding and saturation rule, once, with the guards that keep XLA from changing them.

`fl` rounds once to float32, ties to even. All float arithmetic of the operators is written here.

XLA and the compilers behind it keep integer results, but rewrite float expressions, depending on what is compiled
together: x / s becomes x * (1 / s) where s is a constant or a broadcast, (a / b) / c becomes a / (b * c), a product and
a sum become one fused multiply-add. Each changes bits. An `optimization_barrier` is no cure: it is gone before the
multiply-add is fused, and costs a pass over memory. What holds is data flow: a value that goes through a select whose
predicate is never true, but which no compiler can prove to be so.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._shapes import aligned

Array = jax.Array


def with_rank(x: Any, rank: int) -> Any:
    """x with leading ones added or taken away, so that it broadcasts; None stays None.

    Broadcasting itself is left to the operations, which know how their other operands are sharded.
    """
    return None if x is None else lax.reshape(x, aligned(x.shape, rank))


def sealed(x: Array) -> Array:
    """x itself, in a form that no float rewrite sees through.

    |x| + |x| < |x| holds for no float: rounding is monotonic, infinities are equal, NaN compares false. The other arm
    is NaN because adding it is no identity that a compiler could move the select across.
    """
    magnitude = jnp.abs(x)
    return jnp.where(magnitude + magnitude < magnitude, _nan(x), x)


def _nan(x: Array) -> Array:
    return jnp.asarray(np.nan, x.dtype)


def quotient(x: Array, y: Array) -> Array:
    """fl(x / y) for equal ranks: never x * fl(1 / y), and never merged with a division that made x or y.

    The predicate depends on both, so that the divisor is no broadcast and no constant unless the dividend is one too.
    """
    magnitude = jnp.abs(y)
    never = jnp.abs(x) + magnitude < magnitude
    return jnp.where(never, _nan(x), x) / jnp.where(never, _nan(y), y)


def difference(x: Array, zero_point: Array | None) -> Array:
    """fl(x - zero_point), the difference being exact: 32-bit types need 33 bits, which one rounding then sees whole."""
    if zero_point is None:
        return x.astype(jnp.float32)
    zero_point = with_rank(zero_point, x.ndim)
    if x.dtype.itemsize < 4:
        return (x.astype(jnp.int32) - zero_point.astype(jnp.int32)).astype(jnp.float32)
    # |x - zero_point| < 2**32, so the wrapped difference taken in the right order is the magnitude.
    wide_x, wide_zero_point = x.astype(jnp.uint32), zero_point.astype(jnp.uint32)
    positive = x >= zero_point
    magnitude = jnp.where(positive, wide_x - wide_zero_point, wide_zero_point - wide_x).astype(jnp.float32)
    return jnp.where(positive, magnitude, -magnitude)


def dequantize(x: Array, scale: Array, zero_point: Array | None) -> Array:
    """fl(fl(x - zero_point) * scale), rounded once more if scale is FLOAT16; of scale's type.

    Sealed, so that no sum it goes into, here or in the caller's code, takes the product in unrounded.
    """
    wide_scale = with_rank(scale.astype(jnp.float32), x.ndim)
    return sealed((difference(x, zero_point) * wide_scale).astype(scale.dtype))


def saturate(x: Array, zero_point: Array | None, dtype: np.dtype) -> Array:
    """sat(rne(x) + zero_point) of a float32 x: round, add, clamp. Infinities saturate, NaN gives the minimum."""
    limits = np.iinfo(dtype)
    offset = jnp.zeros((), jnp.int32) if zero_point is None else zero_point.astype(jnp.int32)
    offset = with_rank(offset, x.ndim)
    lowest = (limits.min - offset).astype(jnp.float32)
    highest = (limits.max - offset).astype(jnp.float32)
    rounded = lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)
    # The bounds are integers, so clamping before the zero point is added clamps the same values, and all of it fits
    # int32. Comparisons, not min and max: NaN must lose.
    rounded = jnp.where(rounded > lowest, rounded, lowest)
    rounded = jnp.where(rounded < highest, rounded, highest)
    return (rounded.astype(jnp.int32) + offset).astype(dtype)


def requantize(
    accumulator: Array, a_scale: Array, b_scale: Array, output_scale: Array, zero_point: Array | None, dtype: np.dtype
) -> Array:
    """sat(rne(fl(fl(accumulator) * fl(fl(a_scale * b_scale) / output_scale))) + zero_point).

    The scales broadcast to accumulator's shape.
    """
    a_scale, b_scale, output_scale = (with_rank(scale, accumulator.ndim) for scale in (a_scale, b_scale, output_scale))
    multiplier = quotient(a_scale * b_scale, output_scale)
    return saturate(accumulator.astype(jnp.float32) * multiplier, zero_point, dtype)
