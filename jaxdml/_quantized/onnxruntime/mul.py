"""com.microsoft's QLinearMul."""

from typing import Any

import jax

from jaxdml._arithmetic import rounding
from jaxdml._quantized.onnxruntime.values import float32, packed, scale_of, steps_of, together, zero_point_of

Array = jax.Array


def qlinear_mul(
    a: Any, a_scale: Any, a_zero_point: Any | None, b: Any, b_scale: Any, b_zero_point: Any | None,
    output_scale: Any, output_zero_point: Any | None = None,
) -> Array:  # fmt: skip
    """The product of quantized `a` and `b` of one type, which broadcast.

    sat(rne(fl(fl((a - a_zero_point) * (b - b_zero_point) * multiplier) + output_zero_point))), where multiplier is
    fl(fl(a_scale * b_scale) / output_scale). Scales, and their products and quotients, count as 0 if subnormal.
    """
    multiplier = rounding.quotient(rounding.product(scale_of(a_scale), scale_of(b_scale)), scale_of(output_scale))
    offset = float32(zero_point_of(output_zero_point))

    def multiply(a: Array, b: Array) -> Array:
        product = float32(steps_of(a, a_zero_point) * steps_of(b, b_zero_point))
        return packed(rounding.flushed(product * multiplier) + offset, a.dtype)

    return together(multiply, a, b)
