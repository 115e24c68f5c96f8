"""com.microsoft's QLinearSoftmax."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import rounding
from jaxdml._arithmetic.sharding import broadcast_like
from jaxdml._quantized.axes import axis_of
from jaxdml._quantized.onnxruntime.fused import multiply_add
from jaxdml._quantized.onnxruntime.lookup import entries
from jaxdml._quantized.onnxruntime.values import int32, scale_of, zero_point_of
from jaxdml.errors import ModelError

Array = jax.Array
SMALLER = np.float32(2.0**-60)
MANY = np.float32(1024)  # a quotient of this many steps saturates with any zero point


def qlinear_softmax(
    x: Any, x_scale: Any, x_zero_point: Any | None, y_scale: Any, y_zero_point: Any | None = None, *,
    axis: int = -1, of_rest: bool = False,
) -> Array:  # fmt: skip
    """Softmax of 8-bit x along an axis, or, with of_rest, along it and all axes after it; the result is quantized.

    x_zero_point has no effect. x_scale must be known at trace time, because `exponentials` computes in Python.
    """
    table = exponentials(x_scale, math.prod(x.shape[axis:]) if of_rest else x.shape[axis])
    return softmax(x, table, y_scale, y_zero_point, axis=axis, of_rest=of_rest)


def exponentials(scale: Any, depth: int) -> np.ndarray:
    """float32 exp(scale * (k - 255)) for k from 0 to 255, times a factor that keeps sums of `depth` entries finite.

    Raises:
      ModelError: if the scale is not positive. ONNX Runtime rejects it when the operator runs.
    """
    scale = np.asarray(scale, np.float32).item()
    if not scale > 0:
        raise ModelError(f"the scale of x is {scale:g}, QLinearSoftmax takes a positive scale")
    # Python's math calls the C library, as ONNX Runtime does; NumPy gives different bits on some processors. float32 of
    # math.log equals the C library's logf, except at some depths above 60,000.
    room = np.float32(math.log(np.finfo(np.float32).max / np.float32(depth))).item() - 5
    shift = max(room, 0) / scale
    return np.asarray([math.exp((k - 255 + shift) * scale) for k in range(256)]).astype(np.float32)


def softmax(x: Any, table: Any, y_scale: Any, y_zero_point: Any | None, *, axis: int, of_rest: bool) -> Array:
    """`qlinear_softmax` with a table of `exponentials`.

    sat(rne(e * floor(fl(1 / y_scale)) / sum) + y_zero_point), where e is the table's entry for the difference between
    an element and the greatest element, and sum is the sum of all e, added one by one in float32. ONNX Runtime
    multiplies and divides in float64. A NaN quotient gives 0, whatever the zero point.
    """
    axis = axis_of(axis, x.ndim)
    if of_rest:
        rows = x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
        return _along(1, rows, table, y_scale, y_zero_point).reshape(x.shape)
    return _along(axis, x, table, y_scale, y_zero_point)


def _along(axis: int, x: Array, table: Any, y_scale: Any, y_zero_point: Any | None) -> Array:
    wide, depth = int32(x), x.shape[axis]
    places = wide - jnp.max(wide, axis, keepdims=True) + 255
    values = lax.optimization_barrier(entries(table, places))

    def element(i: Any) -> Array:
        return lax.dynamic_index_in_dim(values, i, axis)

    # This is a loop, because XLA's reductions add in a different order.
    total = lax.fori_loop(1, depth, lambda i, total: total + element(i), element(0), unroll=min(8, depth))
    inverse = lax.floor(rounding.quotient(jnp.float32(1), scale_of(y_scale)))
    steps, is_number = _rounded_shares(values, lax.abs(inverse), broadcast_like(total, values))
    limits = rounding.limits_of(x.dtype)
    shares = lax.select(inverse < 0, -steps, steps) + zero_point_of(y_zero_point)
    shares = lax.clamp(np.int32(limits.min), shares, np.int32(limits.max))
    return lax.convert_element_type(lax.select(is_number, shares, lax.full_like(shares, 0)), x.dtype)


def _rounded_shares(values: Array, factor: Array, total: Array) -> tuple[Array, Array]:
    """rne(values * factor / total) in int32 where it is below MANY, else at least MANY; and a mask, false for NaN.

    float64 would round to the same integers: it holds every product, and no product of two float32
    numbers, divided by a third, is so near a tie that rounding to 53 bits makes it a tie.
    """
    # Totals of `exponentials` lie between 2**89 and 2**121. Dividing both operands by 2**60 keeps products finite where
    # the share is below MANY.
    factor, total = factor * SMALLER, total * SMALLER
    share = rounding.quotient(values * factor, total)  # to within 3 roundings
    floor = lax.floor(lax.select(share < MANY, share, lax.full_like(share, MANY)))
    # Differences of exact products from `near` decide exactly on which side of floor + 1/2 the share lies. Where
    # |above| is at most |middle|, float32 holds both differences, so neither was rounded.
    near = rounding.flushed((floor + np.float32(0.5)) * total)
    above = multiply_add(values, factor, -near)
    middle = multiply_add(floor + np.float32(0.5), total, -near)
    steps = int32(floor)
    rounded_up = (above > middle) | ((above == middle) & (steps & 1 == 1))
    return steps + int32(rounded_up), share == share
