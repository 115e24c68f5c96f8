"""com.microsoft's QGemm."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxdml._arithmetic import contractions, rounding
from jaxdml._arithmetic.prepared import PreparedMatrix
from jaxdml._quantized.onnxruntime.values import int32
from jaxdml.errors import ModelError

Array = jax.Array


def qgemm(
    a: Any, a_scale: Any, a_zero_point: Any | None, b: Any, b_scale: Any, b_zero_point: Any | None,
    bias: Any | None = None, y_scale: Any | None = None, y_zero_point: Any | None = None, *,
    alpha: float = 1.0, trans_a: int = 0, trans_b: int = 0,
) -> Array:  # fmt: skip
    """The quantized or float product of quantized [..., K] and [K, N], plus an int32 bias that broadcasts.

    sat(rne(fl(sum * fl(fl(fl(alpha * a_scale) * b_scale) / y_scale))) + y_zero_point), or, without y_scale, fl(sum *
    fl(fl(alpha * a_scale) * b_scale)). Parameters of `b` have one element, or one for each column. trans_a and trans_b
    mark a transposed matrix; a `PreparedMatrix` is never transposed. Subnormal numbers count as 0. On processors
    without VNNI, ONNX Runtime's own sums saturate if `a` is uint8 and `b` is int8.
    """
    a = jnp.asarray(a).T if trans_a else jnp.asarray(a)
    if not isinstance(b, PreparedMatrix):
        b = jnp.asarray(b).T if trans_b else jnp.asarray(b)
    if a.ndim < 1 or (trans_a and a.ndim > 2) or b.ndim != 2 or a.shape[-1] != b.shape[0]:
        raise ModelError(f"a {a.shape} and b {b.shape} are not matrices that can be multiplied")
    shape = (*a.shape[:-1], b.shape[1])
    a = a.reshape(math.prod(shape[:-1]), a.shape[-1])
    a_scale, b_scale = _number_or_row(a_scale), _number_or_row(b_scale)
    if alpha != 1:
        a_scale = rounding.product(jnp.float32(alpha), rounding.flushed(a_scale))
    of_a, of_b = (a, a_scale, _number_or_row(a_zero_point)), (b, b_scale, _number_or_row(b_zero_point))
    of_y = _number_or_row(y_scale), _number_or_row(y_zero_point)
    dtype = a.dtype if y_zero_point is None else y_zero_point.dtype
    if y_scale is not None and (bias is None or bias.size == 1 or bias.shape[-1] == bias.size == shape[-1]):
        of_columns = None if bias is None else jnp.broadcast_to(int32(bias).reshape(-1), shape[-1:])
        return contractions.requantized_dot(*of_a, *of_b, of_columns, *of_y, output_dtype=dtype).reshape(shape)
    if y_scale is None and bias is None:
        return contractions.float_dot(*of_a, *of_b, None).reshape(shape)
    total = contractions.integer_dot(a, of_a[2], b, of_b[2])
    if bias is not None:
        total = total + jnp.broadcast_to(bias, total.shape)
    if y_scale is None:
        return rounding.multiplied(total, a_scale, b_scale, None).reshape(shape)
    return rounding.requantize(total, a_scale, b_scale, *of_y, dtype).reshape(shape)


def _number_or_row(parameter: Any | None) -> Any:
    """Reshapes a parameter with one element to a scalar, and any other parameter to one row."""
    if parameter is None:
        return None
    parameter = jnp.asarray(parameter)
    return parameter.reshape(() if parameter.size == 1 else (1, -1))
