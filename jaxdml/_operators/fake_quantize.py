"""Quantize then dequantize, with the gradients that fine-tuning needs."""

from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._arithmetic import elementwise, rounding
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.messages import broken, raising_as
from jaxdml._operators.call import OPERATORS
from jaxdml._operators.element_wise_dequantize_linear import element_wise_dequantize_linear
from jaxdml._operators.element_wise_quantize_linear import element_wise_quantize_linear


def fake_quantize(
    input: chex.Array,
    scale: chex.Numeric,
    zero_point: chex.Numeric | None = None,
    *,
    output_dtype: chex.ArrayDType | None = None,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> chex.Array:
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

    Source: Esser et al., Learned Step Size Quantization, 2020, equations 1 to 3, https://arxiv.org/abs/1902.08153, for
    the gradients.
    """
    quantize = OPERATORS[element_wise_quantize_linear.__name__]
    is_array = isinstance(input, jax.Array | np.ndarray)
    if is_array and jnp.issubdtype(input.dtype, jnp.integer):
        dequantize = f"{element_wise_dequantize_linear.__name__}(input, scale, zero_point)"
        text = f"has type {input.dtype}, expected FLOAT32 or FLOAT16; dequantize it first: {dequantize}"
        facts = {"expected": jnp.floating, "received": input.dtype}
        raise broken(fake_quantize.__name__, "InputTensor", "data_type", text, **facts)
    options = {"output_dtype": output_dtype, "feature_level": feature_level}
    with raising_as(fake_quantize.__name__):
        given = quantize.checked(quantize.parameters.bound((input, scale, zero_point), options))
    return _fake_quantize(given["output_dtype"], given["input"], given["scale"], given["zero_point"])


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _there_and_back(dtype: np.dtype, input: Any, scale: Any, zero_point: Any) -> jax.Array:
    quantized = elementwise.quantized(input, scale, zero_point, output_dtype=dtype)
    return elementwise.dequantized(quantized, scale, zero_point)


@_there_and_back.defjvp
def _(dtype: np.dtype, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    input, scale, zero_point = primals
    by_input, by_scale, _ = tangents
    quantized = elementwise.quantized(input, scale, zero_point, output_dtype=dtype)
    output = elementwise.dequantized(quantized, scale, zero_point)
    scale, by_scale = (rounding.with_rank(x, input.ndim).astype(np.float32) for x in (scale, by_scale))
    # In float32 whatever the type, and with the very quotient that is rounded: float16 holds few of the steps.
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


_fake_quantize = jax.jit(_there_and_back, static_argnums=0)
