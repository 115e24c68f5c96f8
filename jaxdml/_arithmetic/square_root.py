"""The correctly rounded float32 square root on every platform.

A CPU rounds square roots as IEEE 754 says. On NVIDIA GPUs, XLA allows LLVM to approximate them, and TPU rounding is not
documented. On both, int32 arithmetic corrects a root that is nearly right. docs/numerics_accelerators.md has the proof.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.division import INFINITY, MANTISSA, ONE

Array = jax.Array


@jax.custom_jvp
def square_root(x: Array) -> Array:
    """fl(sqrt(x)) of float32 without subnormals."""
    result: Array = lax.platform_dependent(x, cpu=lax.sqrt, default=square_root_by_integers)
    return result


@square_root.defjvp
def _derivative(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return square_root(*primals), jax.jvp(lax.sqrt, primals, tangents)[1]


@functools.partial(jax.jit, static_argnames="root")
def square_root_by_integers(x: Array, root: Callable[[Array], Array] = lax.sqrt) -> Array:
    """fl(sqrt(x)) of float32 without subnormals.

    Args:
      x: a float32 array.
      root: a square root of numbers from 2**24 to 2**26 that errs by at most 3 ulp.
    """
    bits = lax.bitcast_convert_type(x, jnp.int32)
    exponent = lax.sub(lax.bitwise_and(lax.shift_right_logical(bits, np.int32(23)), np.int32(255)), np.int32(127))
    mantissa = lax.bitwise_or(lax.bitwise_and(bits, MANTISSA), ONE)
    square = lax.shift_left(mantissa, lax.add(lax.bitwise_and(exponent, np.int32(1)), np.int32(1)))
    near = root(lax.convert_element_type(square, jnp.float32))
    # The candidate differs by at most 7 from the integer part of the root of square * 2**22. After the subtraction it
    # is 0 to 14 too small, so the remainder is less than 2**29, which int32 holds.
    whole = lax.sub(lax.convert_element_type(lax.mul(near, np.float32(2**11)), jnp.int32), np.int32(7))
    remainder = lax.sub(lax.shift_left(square, np.int32(22)), lax.mul(whole, whole))
    for step in (8, 4, 2, 1):
        more = lax.add(lax.mul(whole, np.int32(2 * step)), np.int32(step**2))  # (whole + step)**2 - whole**2
        fits = lax.ge(remainder, more)
        whole = lax.add(whole, lax.mul(lax.convert_element_type(fits, jnp.int32), np.int32(step)))
        remainder = lax.select(fits, lax.sub(remainder, more), remainder)
    rounded = lax.add(whole, lax.convert_element_type(lax.gt(remainder, whole), jnp.int32))  # no tie is possible
    half = lax.add(lax.shift_right_arithmetic(exponent, np.int32(1)), np.int32(127))
    result = lax.bitcast_convert_type(lax.add(lax.shift_left(half, np.int32(23)), lax.sub(rounded, ONE)), jnp.float32)
    result = lax.select(lax.gt(bits, lax.full_like(bits, 0)), result, lax.full_like(result, np.nan))
    result = lax.select(lax.ge(bits, lax.full_like(bits, INFINITY)), x, result)  # infinity and NaN
    return lax.select(lax.eq(exponent, np.int32(-127)), lax.mul(x, np.float32(0)), result)  # a zero of the same sign
