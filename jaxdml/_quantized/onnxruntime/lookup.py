"""Look-up tables for functions of one quantized tensor, and the operators that use tables."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import native_bytes, rounding
from jaxdml._arithmetic.kernel_call import with_kernel
from jaxdml._arithmetic.sharding import out_sharding
from jaxdml._quantized.axes import axis_of
from jaxdml._quantized.onnxruntime.sigmoids import logistic
from jaxdml._quantized.onnxruntime.values import dequantized, int32, quantized

Array = jax.Array


@with_kernel(native_bytes.LOOK_UP)
def looked_up(x: Any, table: Any) -> Array:
    """Looks up each element of x in a table with an entry for each integer of x's type, the least integer first."""
    # Entries are int32, because XLA:CPU gathers bytes one at a time. The barrier keeps XLA from recomputing the table
    # per element.
    wide = lax.optimization_barrier(int32(table))
    return lax.convert_element_type(entries(wide, int32(x) - rounding.limits_of(x.dtype).min), table.dtype)


def entries(table: Any, places: Array) -> Array:
    """The entries of a table at int32 indices, which must be in bounds."""
    sharding = out_sharding(*((places, axis) for axis in range(places.ndim))) if places.ndim else None
    return jnp.asarray(table).at[places].get(mode="promise_in_bounds", out_sharding=sharding)


def table_of(
    function: Callable[..., Array], dtype: Any, x_scale: Any, x_zero_point: Any | None, y_scale: Any,
    y_zero_point: Any | None, *options: Any,
) -> Array:  # fmt: skip
    """The table of a function with quantized input and output; a constant if the arguments are not traced."""
    with jax.ensure_compile_time_eval():
        return _table(function, np.dtype(dtype), x_scale, x_zero_point, y_scale, y_zero_point, *options)


@partial(jax.jit, static_argnums=(0, 1))
def _table(
    function: Callable[..., Array], dtype: np.dtype, x_scale: Any, x_zero_point: Any | None, y_scale: Any,
    y_zero_point: Any | None, *options: Any,
) -> Array:  # fmt: skip
    limits = rounding.limits_of(dtype)
    every = dequantized(np.arange(limits.min, limits.max + 1, dtype=np.int32), x_scale, x_zero_point)
    return quantized(function(every, *options), y_scale, y_zero_point, dtype)


def rescaled(x: Any, x_scale: Any, x_zero_point: Any | None, y_scale: Any, y_zero_point: Any | None) -> Array:
    """x requantized to y_scale and y_zero_point; unchanged if the parameters are equal constants."""
    parameters = x_scale, x_zero_point, y_scale, y_zero_point
    if not any(isinstance(parameter, jax.core.Tracer) for parameter in parameters):
        numbers = [0 if parameter is None else np.asarray(parameter).item() for parameter in parameters]
        if numbers[:2] == numbers[2:]:
            return jnp.asarray(x)
    return looked_up(x, table_of(_same, x.dtype, *parameters))


def _same(x: Array) -> Array:
    return x


# Operators -----------------------------------------------------------------------------------------------------------


def qlinear_concat(output_scale: Any, output_zero_point: Any | None, *inputs: Any, axis: int) -> Array:
    """Requantizes tensors to the output's scale, and concatenates them.

    In `inputs`, each tensor is followed by its scale and its zero point.
    """
    triples = zip(inputs[::3], inputs[1::3], inputs[2::3], strict=True)
    parts = [rescaled(*triple, output_scale, output_zero_point) for triple in triples]
    return lax.concatenate(parts, axis_of(axis, parts[0].ndim))


def qlinear_where(
    condition: Any, x: Any, x_scale: Any, x_zero_point: Any | None, y: Any, y_scale: Any, y_zero_point: Any | None,
    output_scale: Any, output_zero_point: Any | None = None,
) -> Array:  # fmt: skip
    """x where condition holds, else y, requantized to output_scale; condition, x and y broadcast."""
    output = output_scale, output_zero_point
    parts = rescaled(x, x_scale, x_zero_point, *output), rescaled(y, y_scale, y_zero_point, *output)
    shape = jnp.broadcast_shapes(condition.shape, x.shape, y.shape)
    return lax.select(*(jnp.broadcast_to(part, shape) for part in (condition, *parts)))


def qlinear_leaky_relu(
    x: Any, x_scale: Any, x_zero_point: Any | None, y_scale: Any, y_zero_point: Any | None = None, *,
    alpha: float = 0.01,
) -> Array:  # fmt: skip
    """Quantized leaky ReLU of dequantized x: x if it is at least 0, else fl(alpha * x)."""
    return looked_up(x, table_of(_leaky, x.dtype, x_scale, x_zero_point, y_scale, y_zero_point, np.float32(alpha)))


def _leaky(x: Array, alpha: Array) -> Array:
    return lax.select(x >= 0, x, x * alpha)


def qlinear_sigmoid(
    x: Any, x_scale: Any, x_zero_point: Any | None, y_scale: Any, y_zero_point: Any | None = None
) -> Array:  # fmt: skip
    """Quantized logistic function of dequantized x: a quotient of polynomials, computed with fused multiply-adds."""
    return looked_up(x, table_of(logistic, x.dtype, x_scale, x_zero_point, y_scale, y_zero_point))
