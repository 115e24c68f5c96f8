"""The remainder of a division that rounds towards zero, by division of integers."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._exact.pairs import INFINITY, NAN, bits, power_of_two, where, with_sign

Array = jax.Array
STEP = np.int32(8)  # a remainder has at most 24 bits, and uint32 holds 8 more
FRACTION = np.int32(2**23 - 1)


def remainder(x: Array, y: Array) -> Array:
    """x - y * trunc(x / y), exact, with the sign of x; a zero where it is subnormal; NaN if x is infinite or y is 0."""
    exponent_x, exponent_y = (lax.shift_right_logical(bits(lax.abs(z)), np.int32(23)) for z in (x, y))
    whole_x, whole_y = (lax.convert_element_type((bits(z) & FRACTION) | np.int32(2**23), jnp.uint32) for z in (x, y))

    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        rest, places = state
        shift = lax.clamp(np.int32(0), places, STEP)
        return lax.rem(rest << lax.convert_element_type(shift, jnp.uint32), whole_y), places - shift

    start = lax.rem(whole_x, whole_y), exponent_x - exponent_y
    rest, _ = lax.while_loop(lambda state: jnp.any(state[1] > 0), step, start)
    size = lax.convert_element_type(rest, jnp.float32) * np.float32(2.0**-23)
    exponent = lax.clamp(np.int32(-126), exponent_y - np.int32(127), np.int32(127))
    size = where(size < power_of_two(lax.max(np.int32(-126) - exponent, np.int32(-126))), np.float32(0), size)
    size = where(lax.abs(x) < lax.abs(y), lax.abs(x), size * power_of_two(exponent))
    is_number = (lax.abs(x) < INFINITY) & (lax.abs(y) > 0)
    return where(is_number, with_sign(size, x), NAN)
