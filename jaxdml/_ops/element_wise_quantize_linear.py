"""DML_ELEMENT_WISE_QUANTIZE_LINEAR_OPERATOR_DESC, the companion that makes what the other operators read."""

from functools import partial
from typing import Any

import jax
import numpy as np

from jaxdml import _numerics
from jaxdml._arguments import Arguments, broadcast_desc, tensor_desc
from jaxdml._data_types import DataType
from jaxdml._operator import Call, operator
from jaxdml.descs import ElementWiseQuantizeLinearDesc, TensorDesc
from jaxdml.feature_levels import FeatureLevel

OPERATOR = ElementWiseQuantizeLinearDesc.operator


@operator
def element_wise_quantize_linear(
    input: Any,
    scale: Any,
    zero_point: Any = None,
    *,
    output_dtype: Any = None,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> Call:
    """``clamp(round(input / scale) + zero_point, Min, Max)``, element by element; ties round to even.

    The quotient is rounded to float32, then to an integer; then the zero point is added, then the result clamped.
    Infinities clamp, NaN gives Min. A scale of 0 divides as IEEE 754 does. The gradient is that of integers, zero;
    `jaxdml.fake_quantize` has straight-through ones.

    Args:
      input: float32, float16 or int32 array of rank 1 to 8.
      scale: a number or an array that broadcasts to input's shape; of input's type, float32 for an int32 input.
      zero_point: of the output's type, an integer or an array that broadcasts to input's shape; None is 0 (from 6_2).
      output_dtype: uint8 or int8; also uint16 or int16, which DirectML's page does not have. The default is
        zero_point's type, or uint8 if zero_point is None or an integer.
      feature_level: the feature level whose rules are checked; see `FeatureLevel`.

    Returns:
      Array of input's shape and the output type.

    Raises:
      DescError: if the feature level does not allow the call; the message says why.

    Source: DirectML, DML_ELEMENT_WISE_QUANTIZE_LINEAR_OPERATOR_DESC, fields InputTensor to OutputTensor.
    """
    arguments = Arguments(OPERATOR, feature_level)
    input = arguments.tensor("input", input)
    scale = arguments.scale("scale", scale, np.float16 if input.dtype == np.float16 else np.float32)
    dtype = arguments.output_dtype(output_dtype, "zero_point", zero_point, default=np.uint8)
    zero_point = arguments.zero_point("zero_point", zero_point, dtype)
    desc = ElementWiseQuantizeLinearDesc(
        input_tensor=tensor_desc(input),
        scale_tensor=broadcast_desc(scale, input.shape),
        zero_point_tensor=broadcast_desc(zero_point, input.shape),
        output_tensor=TensorDesc(DataType.of(dtype), input.shape),
    )
    return Call(desc, feature_level, partial(_quantize, input, scale, zero_point, output_dtype=dtype))


@partial(jax.jit, static_argnames="output_dtype")
def _quantize(input: jax.Array, scale: jax.Array, zero_point: jax.Array | None, *, output_dtype: np.dtype) -> jax.Array:
    with jax.named_scope(OPERATOR):
        wide_scale = _numerics.with_rank(scale.astype(np.float32), input.ndim)
        return _numerics.saturate(_numerics.quotient(input.astype(np.float32), wide_scale), zero_point, output_dtype)
