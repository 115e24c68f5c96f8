"""The remainder of a division that rounds towards zero, by division of integers."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._exact.pairs import INFINITY, NAN, bits, power_of_two, where, with_sign

Array = jax.Array
STEP = np.int32(8)  # a remainder has at most 24 bits, and uint32 holds 8 more
FRACTION, IMPLICIT = np.int32(2**23 - 1), np.int32(2**23)


def remainder(x: Array, y: Array) -> Array:
    """x - y * trunc(x / y), exact, with the sign of x; a zero where it is subnormal; NaN if x is infinite or y is 0."""
    exponent_x, exponent_y = (lax.shift_right_logical(bits(lax.abs(z)), np.int32(23)) for z in (x, y))
    whole_x, whole_y = (lax.convert_element_type(bits(z) & FRACTION | IMPLICIT, jnp.uint32) for z in (x, y))

    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        rest, places = state
        shift = lax.min(places, STEP)
        return lax.rem(rest << lax.convert_element_type(shift, jnp.uint32), whole_y), places - shift

    start = lax.rem(whole_x, whole_y), exponent_x - exponent_y
    rest, _ = lax.while_loop(lambda state: jnp.any(state[1] > 0), step, start)
    size = lax.convert_element_type(rest, jnp.float32) * np.float32(2.0**-23) * power_of_two(exponent_y - np.int32(127))
    least = lax.shift_right_logical(IMPLICIT, exponent_y - np.int32(1))  # the least `rest` of a normal result
    size = where(lax.convert_element_type(rest, jnp.int32) < least, np.float32(0), size)
    size = where(lax.abs(x) < lax.abs(y), lax.abs(x), size)
    is_number = (lax.abs(x) < INFINITY) & (lax.abs(y) > 0)
    return where(is_number, with_sign(size, x), NAN)
