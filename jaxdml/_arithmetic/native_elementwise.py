"""Native kernels for elementwise operators and reductions.

Each takes the arguments of the JAX function that it replaces, with `leading` vmap dimensions prepended to every array.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.kernel_call import Kernel
from jaxdml._arithmetic.native_call import Result, is_at_most_two_bytes, library_call, library_calls, operand

Array = jax.Array


def _sum(
    a: Array, a_scale: Array, a_zero_point: Array | None, b: Array, b_scale: Array, b_zero_point: Array | None,
    output_scale: Array, output_zero_point: Array | None, *, output_dtype: Any, leading: int,
) -> Array:  # fmt: skip
    def parameter(x: Array | None, dtype: Any) -> Array:
        return operand(x, leading, lambda shape: (), dtype)

    operands = (
        a,
        parameter(a_scale, None),
        parameter(a_zero_point, a.dtype),
        b,
        parameter(b_scale, None),
        parameter(b_zero_point, b.dtype),
        parameter(output_scale, None),
        parameter(output_zero_point, output_dtype),
    )
    return library_call("add", leading, (a.shape[leading:], output_dtype), operands, leading_count=np.int64(leading))


# Quantization --------------------------------------------------------------------------------------------------------


def _quantize(x: Array, scale: Array, zero_point: Array | None, *, output_dtype: Any, leading: int) -> Array:
    return _with_one_scale("quantized", x, scale, zero_point, output_dtype, output_dtype, leading)


def _dequantize(x: Array, scale: Array, zero_point: Array | None, *, leading: int) -> Array:
    return _with_one_scale("dequantized", x, scale, zero_point, x.dtype, jnp.float32, leading)


def _with_one_scale(
    name: str, x: Array, scale: Array, zero_point: Array | None, dtype: Any, output_dtype: Any, leading: int
) -> Array:
    operands = x, *(operand(each, leading, lambda shape: (), dtype) for each in (scale, zero_point))
    return library_call(name, leading, (x.shape[leading:], output_dtype), operands, leading_count=np.int64(leading))


def _quantize_rows(x: Array, *, leading: int) -> tuple[Array, ...]:
    return library_calls("quantized_rows", 0, _quantized_rows_result(x), (x,))


def _quantized_rows_result(x: Any) -> list[Result]:
    parameters = (*x.shape[:-1], 1)
    return [(x.shape, jnp.uint8), (parameters, jnp.float32), (parameters, jnp.uint8)]


def _takes_quantize_rows(x: Any) -> bool:
    return 0 not in x.shape


def _takes_quantize(x: Any, scale: Any, zero_point: Any, *, output_dtype: Any) -> bool:
    return bool(x.dtype == jnp.float32 and is_at_most_two_bytes(output_dtype) and _are_numbers(scale, zero_point))


def _takes_dequantize(x: Any, scale: Any, zero_point: Any) -> bool:
    return bool(is_at_most_two_bytes(x.dtype) and scale.dtype == jnp.float32 and _are_numbers(scale, zero_point))


def _dequantize_blocks(x: Array, scale: Array, zero_point: Array | None, *, leading: int) -> Array:
    shape = x.shape[leading:]
    blocks = math.prod(scale.shape[leading:])
    rows = lax.reshape(x, (*x.shape[:leading], blocks, math.prod(shape) // blocks))
    scale = lax.reshape(scale, (*scale.shape[:leading], blocks))
    if zero_point is None:
        zero_point = lax.full((1,) * leading + (0,), 0, x.dtype)
    else:
        zero_point = lax.reshape(zero_point, (*zero_point.shape[:leading], blocks))
    y = library_call("dequantize_blocks", leading, (rows.shape[leading:], jnp.float32), (rows, scale, zero_point))
    return lax.reshape(y, (*y.shape[:leading], *shape))


def _takes_dequantize_blocks(x: Any, scale: Any, zero_point: Any) -> bool:
    """Whether types fit, and each block is a run of consecutive elements with its own parameters."""
    if zero_point is not None and zero_point.shape != scale.shape:
        return False
    is_typed = x.dtype in (jnp.int4, jnp.uint4, jnp.int8, jnp.uint8) and scale.dtype == jnp.float32
    are_known = all(isinstance(size, int) and size > 0 for size in (*x.shape, *scale.shape))
    return is_typed and are_known and scale.ndim == x.ndim > 0 and scale.shape[:-1] == x.shape[:-1]


def _are_numbers(*parameters: Any) -> bool:
    return all(x is None or x.size == 1 for x in parameters)


def _extremes(x: Array, *, leading: int) -> Array:
    return library_call("extremes", leading, ((2,), jnp.float32), (x,), leading_count=np.int64(leading))


def _extremes_result(x: Any) -> Result:
    return (2,), jnp.float32


def _sums_of_images(x: Array, *, leading: int) -> Array:
    images, ones = x.shape[: leading + 2], (1,) * (x.ndim - leading - 2)
    rows = lax.reshape(x, (*images, math.prod(x.shape[leading + 2 :])))
    return lax.reshape(library_call("row_sums", leading, (images[leading:], jnp.int32), (rows,)), (*images, *ones))


def _sums_of_images_result(x: Any) -> Result:
    return (*x.shape[:2], *(1,) * (x.ndim - 2)), jnp.int32


def _output_result(x: Any, *_: Any, output_dtype: Any) -> Result:
    return x.shape, output_dtype


def _dequantize_result(x: Any, *_: Any) -> Result:
    return x.shape, jnp.float32


ADD = Kernel(_sum, _output_result)
QUANTIZE = Kernel(_quantize, _output_result, _takes_quantize)
DEQUANTIZE = Kernel(_dequantize, _dequantize_result, _takes_dequantize)
DEQUANTIZE_BLOCKS = Kernel(_dequantize_blocks, _dequantize_result, _takes_dequantize_blocks)
QUANTIZE_ROWS = Kernel(_quantize_rows, _quantized_rows_result, _takes_quantize_rows)
EXTREMES = Kernel(_extremes, _extremes_result)
IMAGE_SUMS = Kernel(_sums_of_images, _sums_of_images_result)
