"""Converts parameters to the types of the formulas, and float32 results to 8-bit integers."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import rounding
from jaxdml._shapes import is_surely_a_size
from jaxdml.errors import ModelError

Array = jax.Array
ROUNDER = np.float32(1.5 * 2**23)  # the bits of x + ROUNDER are the bits of ROUNDER, plus x rounded to an integer


def scale_of(parameter: Any) -> Array:
    """A scale with one element as a float32 scalar; subnormal scales become 0."""
    return rounding.flushed(one_number(parameter))


def zero_point_of(parameter: Any | None) -> Array:
    """A zero point with one element as an int32 scalar; None means 0."""
    return jnp.int32(0) if parameter is None else int32(one_number(parameter))


def one_number(parameter: Any) -> Array:
    """A parameter with one element as a scalar."""
    if parameter.size != 1:
        raise ModelError(f"a scale or zero point has the shape {parameter.shape}, expected one number")
    return lax.reshape(parameter, ())


def steps_of(x: Any, zero_point: Any | None) -> Array:
    """x - zero_point in int32."""
    return int32(x) if zero_point is None else int32(x) - zero_point_of(zero_point)


def dequantized(x: Any, scale: Any, zero_point: Any | None) -> Array:
    """fl(scale * (x - zero_point)), guarded against fusion into a later sum."""
    return rounding.scaled(float32(steps_of(x, zero_point)), scale_of(scale))


def quantized(x: Array, scale: Any, zero_point: Any | None, dtype: Any) -> Array:
    """sat(rne(fl(x / scale)) + zero_point)."""
    return rounding.saturate(rounding.quotient(x, scale_of(scale)), zero_point_of(zero_point), dtype)


def packed(x: Array, dtype: Any) -> Array:
    """sat(rne(x)) as x64 processors convert: NaN, and numbers of 2**31 and above, become the type's least number."""
    limits = rounding.limits_of(dtype)
    lowest, highest = (np.float32(end) for end in (limits.min, limits.max))
    x = lax.select(x < np.float32(2**31), x, lax.full_like(x, lowest))
    bits = lax.bitcast_convert_type(lax.clamp(lowest, x, highest) + ROUNDER, jnp.int32)
    return lax.convert_element_type(bits - ROUNDER.view(np.int32), dtype)


def together(function: Callable[[Array, Array], Array], x: Array, y: Array) -> Array:
    """An elementwise function of two arrays that broadcast.

    Arrays of equal shapes are flattened to rows, because XLA:CPU is slow on short rows. The barriers keep XLA from
    moving the reshapes.
    """
    shape = jnp.broadcast_shapes(x.shape, y.shape)
    rows = (*shape[:1], math.prod(shape[1:]))
    if x.shape != y.shape or len(shape) <= 2 or not is_surely_a_size(rows[-1]):
        return function(jnp.broadcast_to(x, shape), jnp.broadcast_to(y, shape))
    x, y = lax.optimization_barrier((lax.reshape(x, rows), lax.reshape(y, rows)))
    return lax.reshape(lax.optimization_barrier(function(x, y)), shape)


def int32(x: Any) -> Array:
    return lax.convert_element_type(x, jnp.int32)


def float32(x: Any) -> Array:
    return lax.convert_element_type(x, jnp.float32)
