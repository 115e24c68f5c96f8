"""com.microsoft's QLinearSoftmax."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import rounding
from jaxdml._quantized.axes import axis_of
from jaxdml._quantized.onnxruntime.lookup import entries
from jaxdml._quantized.onnxruntime.values import int32, scale_of, zero_point_of

Array = jax.Array


def qlinear_softmax(
    x: Any, x_scale: Any, x_zero_point: Any | None, y_scale: Any, y_zero_point: Any | None = None, *,
    axis: int = -1, of_rest: bool = False,
) -> Array:  # fmt: skip
    """Softmax of 8-bit x to a quantized result, along an axis; with of_rest, along this axis and all axes after it.

    x_zero_point has no effect. x_scale must be a constant while JAX traces, because `exponentials` computes in NumPy.
    """
    table = exponentials(x_scale, math.prod(x.shape[axis:]) if of_rest else x.shape[axis])
    return softmax(x, table, y_scale, y_zero_point, axis=axis, of_rest=of_rest)


def exponentials(scale: Any, depth: int) -> np.ndarray:
    """float32 exp(scale * (k - 255)) for k from 0 to 255, times a factor that keeps sums of `depth` entries finite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.float64(np.asarray(scale, np.float32).item())
        room = np.float64(np.log(np.finfo(np.float32).max / np.float32(depth))) - 5
        exponents = (np.arange(-255, 1) + np.maximum(room, 0) / scale) * scale
    # math.exp is the C library's exponential function; NumPy's gives other bits.
    return np.asarray([math.exp(each) if each < 100 else np.inf for each in exponents]).astype(np.float32)


def softmax(x: Any, table: Any, y_scale: Any, y_zero_point: Any | None, *, axis: int, of_rest: bool) -> Array:
    """`qlinear_softmax` with a table of `exponentials`.

    sat(rne(fl(fl(e * floor(fl(1 / y_scale))) / sum)) + y_zero_point), where e is the table's entry for the difference
    between an element and the greatest element, and sum is the sum of all e, added one by one.
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

    # A loop, because a reduction of XLA adds in another order.
    total = lax.fori_loop(1, depth, lambda i, total: total + element(i), element(0), unroll=min(8, depth))
    inverse = lax.floor(rounding.quotient(jnp.float32(1), scale_of(y_scale)))
    share = rounding.quotient(values * inverse, total)
    # On x64, ONNX Runtime converts 2**31 and more to 64 bits for uint8, and keeps 32 of them; to 32 bits for int8.
    lost = np.int32(0 if x.dtype == jnp.uint8 else -(2**31))
    steps = int32(lax.round(share, lax.RoundingMethod.TO_NEAREST_EVEN))
    steps = lax.select(share < np.float32(2**31), steps, lax.full_like(steps, lost)) + zero_point_of(y_zero_point)
    limits = rounding.limits_of(x.dtype)
    return lax.convert_element_type(lax.clamp(np.int32(limits.min), steps, np.int32(limits.max)), x.dtype)
