"""com.microsoft's QLinearAdd."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import rounding
from jaxdml._quantized.onnxruntime.fused import power_of_two, steps_multiply_add
from jaxdml._quantized.onnxruntime.values import float32, packed, scale_of, together, zero_point_of

Array = jax.Array


def qlinear_add(
    a: Any, a_scale: Any, a_zero_point: Any | None, b: Any, b_scale: Any, b_zero_point: Any | None,
    output_scale: Any, output_zero_point: Any | None = None,
) -> Array:  # fmt: skip
    """The sum of quantized `a` and `b` of one type, which broadcast: sat(rne(fma(a, p, fma(b, q, r)))).

    p and q are fl(a_scale / output_scale) and fl(b_scale / output_scale), and r is fl(output_zero_point -
    fma(a_zero_point, p, fl(b_zero_point * q))). Take the last axis along which `a` or `b` is larger than 1: if `a` has
    size 1 there, `a` and `b` are swapped first. Subnormal scales count as 0.
    """
    of_a, of_b = (a, a_scale, a_zero_point), (b, b_scale, b_zero_point)
    if _spreads(a.shape, b.shape):
        of_a, of_b = of_b, of_a
    (a, a_scale, a_zero_point), (b, b_scale, b_zero_point) = of_a, of_b
    p, q = (rounding.quotient(scale_of(scale), scale_of(output_scale)) for scale in (a_scale, b_scale))
    a_zero_point, b_zero_point, output_zero_point = (
        float32(zero_point_of(zero_point)) for zero_point in (a_zero_point, b_zero_point, output_zero_point)
    )
    offset = steps_multiply_add(a_zero_point, p, rounding.flushed(b_zero_point * q))
    scalars = p, q, output_zero_point - offset

    def add(a: Array, b: Array) -> Array:
        return lax.cond(_is_on_one_grid(*scalars), _on_grid, _fused, a, b, *scalars)

    return together(add, a, b)


def _spreads(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether ONNX Runtime's inner loop adds one element of `a` to many elements of `b`."""
    if not a or not b:
        return not a or a[-1] == 1
    pairs = list(zip(reversed(a), reversed(b), strict=False))
    return bool(next((x == 1 for x, y in pairs if not x == y == 1), True))


def _fused(a: Array, b: Array, p: Array, q: Array, r: Array) -> Array:
    """The formula of `qlinear_add`, for all scales."""
    return packed(steps_multiply_add(float32(a), p, steps_multiply_add(float32(b), q, r)), b.dtype)


# A faster computation for common scales -------------------------------------------------------------------------------
# Each of p, q and r is split into a multiple of a step and a remainder of at most half a step. A large step makes sums
# of multiples exact in float32, and a small step makes sums of remainders exact. If both sums are exact, only their
# addition rounds.


def _grid(p: Array, q: Array, r: Array) -> tuple[Array, Array]:
    """Powers of two, most and unit: sums of `_on_grid` are below 2 * most; p, q, r are multiples of 2**-23 * unit."""
    most = (p + q) * np.float32(256) + abs(r)
    return power_of_two(most), power_of_two(jnp.minimum(jnp.minimum(p, q), np.float32(1)))


def _is_on_one_grid(p: Array, q: Array, r: Array) -> Array:
    """Whether the faster computation is exact; it is for p and q between 2**-7 and 2**7.

    The step is 2**-21 * most, so sums are below 2**22 steps. Sums of remainders are at most 128 steps. All remainders
    are multiples of u = 2**-23 * unit, so float32 holds their sums exactly if 128 steps are at most 2**24 * u.
    """
    most, unit = _grid(p, q, r)
    return (most <= unit * np.float32(2**15)) & (unit > np.float32(2**-64))  # keeps the inverse of the step finite


def _on_grid(a: Array, b: Array, p: Array, q: Array, r: Array) -> Array:
    step = _grid(p, q, r)[0] * np.float32(2**-21)

    def split(x: Array) -> tuple[Array, Array]:
        multiple = lax.round(x * (1 / step), lax.RoundingMethod.TO_NEAREST_EVEN) * step
        return multiple, x - multiple

    (p, p_rest), (q, q_rest), (r, r_rest) = split(p), split(q), split(r)
    of_a, of_b = float32(a), float32(b)
    total, rest = split((of_b * q + r) + (of_b * q_rest + r_rest))
    return packed((of_a * p + total) + (of_a * p_rest + rest), b.dtype)
