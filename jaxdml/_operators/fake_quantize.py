"""Quantize and dequantize in one step, with straight-through gradients for fine-tuning."""

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._arithmetic import elementwise, rounding
from jaxdml._arithmetic.one_operation import as_one_operation
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.messages import broken, raising_as
from jaxdml._operators.call import OPERATORS
from jaxdml._operators.element_wise_dequantize_linear import element_wise_dequantize_linear
from jaxdml._operators.element_wise_quantize_linear import element_wise_quantize_linear
from jaxdml.errors import api_boundary
from jaxdml.typing import Array, DType, Scale, ZeroPoint

NAME_IN_JAXPRS = "jaxdml_fake_quantize_"  # followed by the quantized type


@api_boundary
def fake_quantize(
    input: Array,
    scale: Scale,
    zero_point: ZeroPoint | None = None,
    *,
    output_dtype: DType | None = None,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> jax.Array:
    """Quantizes and dequantizes input, with straight-through gradients.

    The bits are those of `element_wise_quantize_linear` followed by `element_wise_dequantize_linear`. For gradients,
    rounding counts as the identity:

    - input: 1 where the quantized value lies in the range of output_dtype, 0 where it is clamped.
    - scale: ``quantized - zero_point``, minus ``input / scale`` where the value is not clamped. This is learned step
      size quantization (LSQ) without its gradient scale, which is left to the optimizer.
    - zero_point: no gradient.

    A learned scale may become 0 or negative; to prevent that, learn its logarithm.

    Args:
      input: float32 or float16 array of rank 1 to 8.
      scale: number, or array of input's type that broadcasts to input's shape.
      zero_point: integer, or array of the quantized type that broadcasts to input's shape; None means 0 (from feature
        level 6_2 on).
      output_dtype: the quantized type. Default: the type of a zero_point array, else uint8.
      feature_level: the feature level that validates the call; see `FeatureLevel`.

    Returns:
      Array of input's shape and type.

    Raises:
      DescError: if one of the two operators does not allow the call.

    Source: Esser et al., Learned Step Size Quantization, 2020, equations 1 to 3, https://arxiv.org/abs/1902.08153, for
    the gradients.
    """
    quantize = OPERATORS[element_wise_quantize_linear.__name__]
    is_array = isinstance(input, jax.Array | np.ndarray)
    # `quantize` itself accepts INT32.
    if is_array and (jnp.issubdtype(input.dtype, jnp.integer) or input.dtype == np.float64):
        fix = f"dequantize it first: {element_wise_dequantize_linear.__name__}(input, scale, zero_point)"
        if input.dtype == np.float64:
            fix = "write input.astype(jnp.float32)"
        text = f"has type {input.dtype}, expected FLOAT32 or FLOAT16; {fix}"
        facts = {"expected": jnp.floating, "received": input.dtype}
        raise broken(fake_quantize.__name__, "InputTensor", "data_type", text, **facts)
    options = {"output_dtype": output_dtype, "feature_level": feature_level}
    with raising_as(fake_quantize.__name__):
        tensors, statics = quantize.arguments((input, scale, zero_point), options)
    return _jitted(statics["output_dtype"])(*tensors)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _round_trip(dtype: np.dtype, input: Any, scale: Any, zero_point: Any) -> jax.Array:
    quantized = elementwise.quantized(input, scale, zero_point, output_dtype=dtype)
    return elementwise.dequantized(quantized, scale, zero_point)


@_round_trip.defjvp
def _(dtype: np.dtype, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    input, scale, zero_point = primals
    by_input, by_scale, _ = tangents
    quantized = elementwise.quantized(input, scale, zero_point, output_dtype=dtype)
    output = elementwise.dequantized(quantized, scale, zero_point)
    scale, by_scale = (rounding.with_rank(x, input.ndim).astype(np.float32) for x in (scale, by_scale))
    # Computed in float32, because float16 cannot hold all quantized values. The forward pass rounds the same quotient.
    ratio = rounding.quotient(rounding.flushed(input.astype(np.float32)), rounding.flushed(scale))
    steps = rounding.difference(quantized, zero_point)
    limits = np.iinfo(dtype)
    lowest, highest = (
        rounding.difference(jnp.full((1,) * input.ndim, end, dtype), zero_point) for end in (limits.min, limits.max)
    )
    inside = (jnp.round(ratio) >= lowest) & (jnp.round(ratio) <= highest)
    nothing = np.float32(0)
    tangent = jnp.where(inside, by_input.astype(np.float32), nothing)
    tangent += by_scale * (steps - jnp.where(inside, ratio, nothing))
    return output, tangent.astype(output.dtype)


@functools.cache
def _jitted(dtype: np.dtype) -> Callable[..., jax.Array]:
    """Quantizes and dequantizes in a single call, which `jaxdml.ptq` finds in jaxprs by its name."""

    def round_trip(input: Any, scale: Any, zero_point: Any) -> jax.Array:
        return _round_trip(dtype, input, scale, zero_point)

    round_trip.__name__ = f"{NAME_IN_JAXPRS}{dtype}"
    return as_one_operation(jax.jit(round_trip))
