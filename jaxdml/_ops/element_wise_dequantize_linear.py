"""DML_ELEMENT_WISE_DEQUANTIZE_LINEAR_OPERATOR_DESC."""

from functools import partial
from typing import Any

import jax
import numpy as np

from jaxdml import _numerics
from jaxdml._arguments import Arguments, broadcast_desc, tensor_desc
from jaxdml._data_types import DataType
from jaxdml._operator import Call, operator
from jaxdml.descs import ElementWiseDequantizeLinearDesc, TensorDesc
from jaxdml.feature_levels import FeatureLevel

OPERATOR = ElementWiseDequantizeLinearDesc.operator


@operator
def element_wise_dequantize_linear(
    input: Any,
    scale: Any,
    zero_point: Any = None,
    *,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> Call:
    """``(input - zero_point) * scale``, element by element.

    The difference is exact, whatever the type; it is rounded to float32, and so is the product. A FLOAT16 scale is
    widened, and the product rounded once more, to FLOAT16, where it may overflow to infinity.

    Args:
      input: int8, uint8, int16, uint16, int32 or uint32 array of rank 1 to 8.
      scale: float32 or float16, a number or an array that broadcasts to input's shape.
      zero_point: of input's type, an integer or an array that broadcasts to input's shape; None is 0 (from 6_2).
      feature_level: the feature level whose rules are checked; see `FeatureLevel`.

    Returns:
      Array of input's shape and scale's type.

    Raises:
      DescError: if the feature level does not allow the call; the message says why.

    Source: DirectML, DML_ELEMENT_WISE_DEQUANTIZE_LINEAR_OPERATOR_DESC, fields InputTensor to OutputTensor.
    """
    arguments = Arguments(OPERATOR, feature_level)
    input = arguments.tensor("input", input)
    scale = arguments.scale("scale", scale, np.float16 if isinstance(scale, np.float16) else np.float32)
    zero_point = arguments.zero_point("zero_point", zero_point, input.dtype)
    desc = ElementWiseDequantizeLinearDesc(
        input_tensor=tensor_desc(input),
        scale_tensor=broadcast_desc(scale, input.shape),
        zero_point_tensor=broadcast_desc(zero_point, input.shape),
        output_tensor=TensorDesc(DataType.of(scale.dtype), input.shape),
    )
    return Call(desc, feature_level, partial(_dequantize, input, scale, zero_point))


@jax.jit
def _dequantize(input: jax.Array, scale: jax.Array, zero_point: jax.Array | None) -> jax.Array:
    with jax.named_scope(OPERATOR):
        return _numerics.dequantize(input, scale, zero_point)
