"""com.microsoft's QLinearMul."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxdml._arithmetic import native_bytes, rounding
from jaxdml._arithmetic.kernel_call import with_kernel
from jaxdml._quantized.onnxruntime.values import (
    float32,
    one_number,
    packed,
    scale_of,
    steps_of,
    together,
    zero_point_of,
)

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
    of_a, of_b = (a, _number(a_zero_point)), (b, _number(b_zero_point))
    if a.shape != jnp.broadcast_shapes(a.shape, b.shape):
        of_a, of_b = of_b, of_a
    return _products(*of_a, *of_b, multiplier, _number(output_zero_point))


def _number(parameter: Any | None) -> Array | None:
    return None if parameter is None else one_number(parameter)


@with_kernel(native_bytes.PRODUCTS)
def _products(
    a: Array, a_zero_point: Array | None, b: Array, b_zero_point: Array | None, multiplier: Array,
    output_zero_point: Array | None,
) -> Array:  # fmt: skip
    """(a - a_zero_point) * (b - b_zero_point), which is exact, times a multiplier; parameters are scalars."""
    offset = float32(zero_point_of(output_zero_point))

    def multiply(a: Array, b: Array) -> Array:
        product = float32(steps_of(a, a_zero_point) * steps_of(b, b_zero_point))
        return packed(rounding.flushed(product * multiplier) + offset, a.dtype)

    return together(multiply, a, b)
