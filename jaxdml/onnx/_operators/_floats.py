"""Float arithmetic with one rounding for each operation, as ONNX Runtime computes it, on XLA, which would save some.

XLA and the compilers behind it make one multiply-add of a product and a sum, a product by the reciprocal of a division
by a constant or a broadcast, and leave out the rounding of 16-bit types between two operations. What holds is data
flow: a value that goes through `sealed`. Unlike in `jaxdml._arithmetic.rounding` nothing is flushed here.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxdml._arithmetic import rounding
from jaxdml.onnx._arrays import broadcast

Array = jax.Array


def is_float(x: Any) -> bool:
    """Whether elements are floats, those of 16 bits among them."""
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def is_narrow(x: Any) -> bool:
    """Whether elements are floats of 16 bits."""
    return is_float(x) and x.dtype.itemsize == 2


def sealed(x: Array) -> Array:
    """x, rounded before anything else is done with it, if it is of floats."""
    return rounding.sealed(x) if is_float(x) else x


def rounded(x: Array) -> Array:
    """A sum, difference or root x, sealed if its type has 16 bits; XLA merges wider ones with nothing."""
    return sealed(x) if is_narrow(x) else x


def product(x: Array, y: Array | float) -> Array:
    """x * y, rounded; a number y is of x's type."""
    return sealed(lax.mul(*_alike(x, y)))


def divided(x: Array | float, y: Array | float) -> Array:
    """x / y, rounded once: never x * (1 / y), nor merged with another division. One of the two may be a number.

    The divisor is NaN where x + y is, as the quotient is: so it is neither constant nor broadcast, unless x is.
    """
    x, y = _alike(x, y)
    either = lax.add(x, y)
    return sealed(lax.div(x, lax.select(lax.ne(either, either), either, y)))


def wide(x: Array) -> Array:
    """x as float32, if its type has 16 bits."""
    return lax.convert_element_type(x, jnp.float32) if is_narrow(x) else x


def _alike(x: Any, y: Any) -> list[Array]:
    """Two arrays in their common shape; a number becomes an array like the other."""
    if isinstance(x, float | int):
        return [jnp.full_like(y, x), y]
    if isinstance(y, float | int):
        return [x, jnp.full_like(x, y)]
    return broadcast(x, y)
