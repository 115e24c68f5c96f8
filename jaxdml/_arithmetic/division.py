"""The correctly rounded float32 quotient on every platform.

A CPU rounds quotients as IEEE 754 says. On NVIDIA GPUs, XLA allows LLVM an error of 2 ulp in quotients, and TPU
rounding is not documented. On both, int32 arithmetic corrects a quotient that is nearly right;
docs/numerics_accelerators.md has the proof.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array
MANTISSA, ONE, INFINITY = np.int32(2**23 - 1), np.int32(2**23), np.int32(255 << 23)
FAR = 600  # the exponent of infinities; -FAR is that of zeros, so that quotients overflow and underflow


@jax.custom_jvp
def divided(x: Array, y: Array) -> Array:
    """fl(x / y) of float32 without subnormals. A subnormal quotient may become a zero of the same sign."""
    result: Array = lax.platform_dependent(x, y, cpu=lax.div, default=divided_by_integers)
    return result


@divided.defjvp
def _derivative(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return divided(*primals), jax.jvp(lax.div, primals, tangents)[1]


@functools.partial(jax.jit, static_argnames="divide")
def divided_by_integers(x: Array, y: Array, divide: Callable[[Array, Array], Array] = lax.div) -> Array:
    """fl(x / y) of float32 without subnormals, with zeros in place of subnormal quotients.

    Args:
      x, y: float32 arrays of the same shape.
      divide: a division of numbers from 2**23 to 2**24 that errs by at most 3 ulp.
    """
    x_bits, y_bits = (lax.bitcast_convert_type(z, jnp.int32) for z in (x, y))
    x_mantissa, y_mantissa = (lax.bitwise_or(lax.bitwise_and(bits, MANTISSA), ONE) for bits in (x_bits, y_bits))
    is_less = lax.lt(x_mantissa, y_mantissa)
    shift = lax.add(np.int32(23), _int32(is_less))
    near = divide(lax.convert_element_type(x_mantissa, jnp.float32), lax.convert_element_type(y_mantissa, jnp.float32))
    scaled = lax.mul(near, _either(is_less, np.float32(2.0**24), np.float32(2.0**23)))
    # The candidate differs by at most 7 from the integer part of x_mantissa * 2**shift / y_mantissa. After the
    # subtraction it is 0 to 14 too small, so the remainder is from 0 to 15 * y_mantissa, which int32 holds.
    whole = lax.sub(_int32(scaled), np.int32(7))
    remainder = lax.sub(lax.shift_left(x_mantissa, shift), lax.mul(whole, y_mantissa))
    for step in (8, 4, 2, 1):
        multiple = lax.mul(y_mantissa, np.int32(step))
        fits = lax.ge(remainder, multiple)
        whole = lax.add(whole, lax.mul(_int32(fits), np.int32(step)))
        remainder = lax.select(fits, lax.sub(remainder, multiple), remainder)
    rounded = lax.add(whole, _int32(lax.gt(lax.add(remainder, remainder), y_mantissa)))  # no tie is possible
    x_exponent, y_exponent = _exponent(x_bits), _exponent(y_bits)
    exponent = lax.sub(lax.add(lax.sub(x_exponent, y_exponent), np.int32(127)), _int32(is_less))
    bits = lax.add(lax.shift_left(exponent, np.int32(23)), lax.sub(rounded, ONE))
    bits = lax.select(lax.lt(exponent, np.int32(1)), lax.full_like(bits, 0), bits)
    bits = lax.select(lax.gt(exponent, np.int32(254)), lax.full_like(bits, INFINITY), bits)
    sign = lax.bitwise_and(lax.bitwise_xor(x_bits, y_bits), np.int32(-(2**31)))
    result = lax.bitcast_convert_type(lax.bitwise_or(bits, sign), jnp.float32)
    # 0 / 0, inf / inf, and NaN in either operand.
    is_special = lax.bitwise_and(lax.eq(x_exponent, y_exponent), lax.eq(lax.abs(x_exponent), np.int32(FAR)))
    is_nan = lax.bitwise_or(is_special, lax.bitwise_or(lax.ne(x, x), lax.ne(y, y)))
    return lax.select(is_nan, lax.full_like(result, np.nan), result)


def _exponent(bits: Array) -> Array:
    """The biased exponent; that of zeros is far below all others, that of infinities far above."""
    exponent = lax.bitwise_and(lax.shift_right_logical(bits, np.int32(23)), np.int32(255))
    exponent = lax.select(lax.eq(exponent, np.int32(0)), lax.full_like(exponent, -FAR), exponent)
    return lax.select(lax.eq(exponent, np.int32(255)), lax.full_like(exponent, FAR), exponent)


def _either(predicate: Array, x: Any, y: Any) -> Array:
    return lax.select(predicate, lax.full_like(predicate, x, x.dtype), lax.full_like(predicate, y, y.dtype))


def _int32(x: Array) -> Array:
    return lax.convert_element_type(x, jnp.int32)
