"""The element-wise operators as formulas on checked arrays, in operations of `rounding`."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxdml._arithmetic import rounding
from jaxdml._arithmetic.platforms import overridable

Array = jax.Array


@overridable
def dequantize(x: Array, scale: Array, zero_point: Array | None) -> Array:
    """fl(fl(x - zero_point) * scale), rounded once more if scale is FLOAT16; of scale's type."""
    return rounding.scaled(rounding.difference(x, zero_point), scale)


@overridable
def quantize(x: Array, scale: Array, zero_point: Array | None, *, output_dtype: Any) -> Array:
    """sat(rne(fl(x / scale)) + zero_point)."""
    x, scale = (rounding.flushed(lax.convert_element_type(value, jnp.float32)) for value in (x, scale))
    quotient = rounding.quotient(x, rounding.with_rank(scale, x.ndim))
    return rounding.saturate(quotient, zero_point, output_dtype)


@overridable
def quantized_sum(
    a: Array, a_scale: Array, a_zero_point: Array | None, b: Array, b_scale: Array, b_zero_point: Array | None,
    output_scale: Array, output_zero_point: Array | None, *, output_dtype: Any,
) -> Array:  # fmt: skip
    """sat(rne(fl(fl(A + B) / output_scale)) + output_zero_point) of the dequantized a and b."""
    a_value = rounding.scaled(rounding.difference(a, a_zero_point), a_scale)
    b_value = rounding.scaled(rounding.difference(b, b_zero_point), b_scale)
    output_scale = rounding.flushed(rounding.with_rank(output_scale, a.ndim))
    quotient = rounding.quotient(rounding.total(a_value, b_value), output_scale)
    return rounding.saturate(quotient, output_zero_point, output_dtype)
