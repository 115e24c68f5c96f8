"""Quantize then dequantize, with the gradients that fine-tuning needs."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml import _numerics
from jaxdml._arguments import Arguments
from jaxdml._ops.element_wise_dequantize_linear import element_wise_dequantize_linear
from jaxdml._ops.element_wise_quantize_linear import OPERATOR, element_wise_quantize_linear
from jaxdml._tensor_rules import broken
from jaxdml.feature_levels import FeatureLevel


def fake_quantize(
    input: Any,
    scale: Any,
    zero_point: Any = None,
    *,
    output_dtype: Any = None,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> jax.Array:
    """input as it comes back from `element_wise_quantize_linear` and `element_wise_dequantize_linear`, bit for bit.

    Gradients are straight-through: rounding counts as the identity. That of input is 1 where the quantized value is in
    the output type's range and 0 where it is clamped; that of scale is what a step adds to the result, less input /
    scale where not clamped, as in learned step size quantization, whose further factor is left to the optimizer. There
    is none for zero_point. Nothing keeps a learned scale above 0: learn its logarithm, say.

    Args:
      input: float32 or float16 array of rank 1 to 8.
      scale: of input's type, a number or an array that broadcasts to input's shape.
      zero_point: of the quantized type, an integer or an array that broadcasts to input's shape; None is 0 (from 6_2).
      output_dtype: the quantized type. The default is zero_point's type, or uint8 if zero_point is None or an integer.
      feature_level: the feature level whose rules are checked; see `FeatureLevel`.

    Returns:
      Array of input's shape and type.

    Raises:
      DescError: if one of the two operators would not allow it; the message says why.

    Source: Esser et al., Learned Step Size Quantization, 2020, equations 1 to 3, for the gradients.
    """
    arguments = Arguments(OPERATOR, feature_level)
    input = arguments.tensor("input", input)
    if not jnp.issubdtype(input.dtype, jnp.floating):
        text = f"has type {input.dtype}, fake_quantize takes FLOAT32 or FLOAT16; quantize what is meant to be floats"
        raise broken(OPERATOR, "InputTensor", "data_type", text, expected=jnp.floating, received=input.dtype)
    scale = arguments.scale("scale", scale, np.float16 if input.dtype == np.float16 else np.float32)
    dtype = arguments.output_dtype(output_dtype, "zero_point", zero_point, default=np.uint8)
    zero_point = arguments.zero_point("zero_point", zero_point, dtype)
    return _fake_quantize(dtype, feature_level, input, scale, zero_point)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _fake_quantize(dtype: np.dtype, level: FeatureLevel, input: Any, scale: Any, zero_point: Any) -> jax.Array:
    own = dtype if zero_point is None else None  # or else the zero point says it
    quantized = element_wise_quantize_linear(input, scale, zero_point, output_dtype=own, feature_level=level)
    return element_wise_dequantize_linear(quantized, scale, zero_point, feature_level=level)


@_fake_quantize.defjvp
def _(dtype: np.dtype, level: FeatureLevel, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    input, scale, zero_point = primals
    by_input, by_scale, _ = tangents
    quantized = element_wise_quantize_linear(input, scale, zero_point, output_dtype=dtype, feature_level=level)
    output = element_wise_dequantize_linear(quantized, scale, zero_point, feature_level=level)
    scale, by_scale = (_numerics.with_rank(x, input.ndim).astype(np.float32) for x in (scale, by_scale))
    # In float32 whatever the type, and with the very quotient that is rounded: float16 holds few of the steps.
    ratio = _numerics.quotient(input.astype(np.float32), scale)
    steps = _numerics.difference(quantized, zero_point)
    limits = np.iinfo(dtype)
    lowest, highest = (
        _numerics.difference(jnp.full((1,) * input.ndim, end, dtype), zero_point) for end in (limits.min, limits.max)
    )
    inside = (jnp.round(ratio) >= lowest) & (jnp.round(ratio) <= highest)
    nothing = np.float32(0)
    tangent = jnp.where(inside, by_input.astype(np.float32), nothing)
    tangent += by_scale * (steps - jnp.where(inside, ratio, nothing))
    return output, tangent.astype(output.dtype)
