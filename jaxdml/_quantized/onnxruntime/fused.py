"""Emulates fused multiply-adds, which ONNX Runtime's kernels use, by operations that each round once.

Products here are exact in float32, so the bits stay the same if a compiler fuses them into sums; the one product that
rounds is guarded. XLA does not reorder sums.

Source: S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd",
IEEE Transactions on Computers 57(4), 2008.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import rounding

Array = jax.Array


def multiply_add(x: Array, y: Array, addend: Array) -> Array:
    """fl(x * y + addend). The arguments are scalars or arrays of the same shape."""
    product = rounding.flushed(x * y)  # flushed keeps XLA from fusing the product
    (x, x_rest), (y, y_rest) = _halves(x, 12), _halves(y, 12)
    rest = ((x * y - product) + x * y_rest) + x_rest * y
    return _sum(product, rest + x_rest * y_rest, addend)


def steps_multiply_add(steps: Array, scale: Array, addend: Array) -> Array:
    """fl(steps * scale + addend), where steps are integers in [-255, 255] and scale is a scalar."""
    scale, rest = _halves(scale, 8)
    return _sum(steps * scale, steps * rest, addend)


def power_of_two(x: Array) -> Array:
    """The greatest power of two not above a positive x; infinity for NaN."""
    return _masked(x, 0x7F800000)


def _halves(x: Array, bits: int) -> tuple[Array, Array]:
    """x with its last `bits` bits set to 0, and the remainder."""
    upper = _masked(x, -(1 << bits))
    return upper, x - upper


def _sum(high: Array, low: Array, addend: Array) -> Array:
    """fl(high + low + addend), if |low| is below 2**-14 * |high|."""
    total, error = _two_sum(high, addend)
    return total + _odd_sum(error, low)


def _two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """fl(x + y), and its rounding error."""
    total = x + y
    of_y = total - x
    return total, (x - (total - of_y)) + (y - of_y)


def _odd_sum(x: Array, y: Array) -> Array:
    """x + y rounded to odd: if inexact, the neighbor whose last bit is 1, so that no later sum rounds it as a tie."""
    total, error = _two_sum(x, y)
    bits = _bits(total)
    is_above = lax.shift_right_arithmetic(bits ^ _bits(error), np.int32(31))  # -1 if |total| is too large, else 0
    odd = bits + is_above | np.int32(1)
    return _float(lax.select(error != 0, odd, bits))


def _masked(x: Array, mask: int) -> Array:
    return _float(_bits(x) & np.int32(mask))


def _bits(x: Any) -> Array:
    return lax.bitcast_convert_type(x, jnp.int32)


def _float(bits: Array) -> Array:
    return lax.bitcast_convert_type(bits, jnp.float32)
