"""Conversions between floats and integers. Rules compute in float32; a narrower result is rounded once more."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.rounding import flushed, limits_of, rounded_to

Array = jax.Array
FLOATS = tuple(np.dtype(each) for each in (jnp.float16, jnp.bfloat16, jnp.float32))
DOUBLE = np.dtype(np.float64)
LEAST_NORMAL = 2.0**-126 * (1 - 2.0**-24)  # the smallest float64 that rounds to a normal float32


def is_float(dtype: Any) -> bool:
    """Whether values of a type are floats of any size, or complex."""
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def widened(x: Array) -> Array:
    """x in float32 if it holds floats, else x. bfloat16 subnormals are subnormal in float32, too, and become zeros."""
    if not is_float(x.dtype) or x.dtype == jnp.float32:
        return x
    wide = lax.convert_element_type(x, jnp.float32)
    return flushed(wide) if x.dtype == jnp.bfloat16 else wide


def narrowed(x: Array, dtype: Any) -> Array:
    """float32 x rounded to a type of floats by `rounded_to`, so that XLA cannot drop the rounding; other types are
    unchanged.
    """
    return rounded_to(x, dtype) if x.dtype == jnp.float32 else x


def rounded_double(x: Array) -> Array:
    """float64 x rounded to float32, then flushed. Processors disagree on numbers that round up to 2**-126."""
    size = lax.abs(x)
    rounded = lax.convert_element_type(lax.max(size, lax.full_like(size, 2.0**-126)), jnp.float32)
    rounded = lax.select(x < 0, -rounded, rounded)
    is_small = size < LEAST_NORMAL
    small = lax.select(is_small, x, lax.full_like(x, 0))
    return lax.select(is_small, lax.convert_element_type(small * 0, jnp.float32), rounded)


def converted(x: Array, dtype: Any) -> Array:
    """x in another type. Conversion of floats to integers truncates toward zero and saturates; NaN becomes 0.

    float64 becomes float32 first, so that Python numbers have the same bits with and without jax_enable_x64.
    """
    if x.dtype == jnp.bool_:  # XLA rewrites a product with a converted bool as a select, which ignores NaN and signs
        return lax.select(x, lax.full_like(x, 1, dtype), lax.full_like(x, 0, dtype))
    if x.dtype == DOUBLE:
        x = rounded_double(x)
    if is_float(dtype):
        return narrowed(widened(x) if is_float(x.dtype) else lax.convert_element_type(x, jnp.float32), dtype)
    x = widened(x)
    if dtype == jnp.bool_:
        return x != 0
    limits = limits_of(dtype)
    is_above, is_below = x >= np.float32(limits.max + 1), x <= np.float32(limits.min - 1)
    inside = lax.select(is_above | is_below | (x != x), lax.full_like(x, 0), x)
    result = lax.convert_element_type(inside, dtype)
    result = lax.select(is_above, lax.full_like(result, limits.max), result)
    return lax.select(is_below, lax.full_like(result, limits.min), result)
