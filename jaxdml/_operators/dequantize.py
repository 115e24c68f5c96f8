"""DML_DEQUANTIZE_OPERATOR_DESC."""

import jax
import numpy as np

from jaxdml._arithmetic import elementwise
from jaxdml._directml.desc import OperatorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.pages.dequantize import DequantizeDesc
from jaxdml._operators.call import operator
from jaxdml._operators.descriptions import Given, block_desc, quantization_options, scale_of_output
from jaxdml.typing import Array, Scale, ZeroPoint


def _describe(given: Given) -> OperatorDesc:
    input = given["input"]
    return given.desc(
        DequantizeDesc,
        output=input.shape,
        output_type=np.float16 if given["scale"].dtype == np.float16 else np.float32,
        form=lambda field, array: block_desc(array, input.ndim),
        **quantization_options(given),
    )


@operator(DequantizeDesc, _describe, scale_dtype=scale_of_output)
def dequantize(
    input: Array,
    scale: Scale,
    zero_point: ZeroPoint | None = None,
    *,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> jax.Array:
    """Dequantizes 4 or 8 bits to floats, blockwise: ``(input - zero_point) * scale``.

    Each block of input has a scale and a zero point. For an input of shape [4, 64], a scale of shape [4, 1] has one
    value per row, [4, 2] has one value per block of 32 elements of a row, and a number applies to all elements. The
    arithmetic is that of `element_wise_dequantize_linear`. Without zero_point, a signed input has the zero point 0, and
    an unsigned input the middle of its range (8 or 128).

    DirectML's page defines the types and leaves the rest "TBD". Blocks and default zero points follow ONNX Runtime and
    WebNN, which call this operator.

    Args:
      input: int4, uint4, int8 or uint8 array of rank 1 to 8.
      scale: number, or float32 or float16 array of input's rank, whose sizes divide input's sizes.
      zero_point: integer, or array of input's type with a shape as for scale; None means the default above.
      feature_level: the feature level that validates the call; see `FeatureLevel`.

    Returns:
      Array of input's shape and scale's type.

    Raises:
      DescError: if the feature level does not allow the call.

    Source: DirectML, DML_DEQUANTIZE_OPERATOR_DESC, fields InputTensor to OutputTensor,
    https://learn.microsoft.com/windows/ai/directml/api/ns-directml-dml_dequantize_operator_desc
    """
    return elementwise.dequantized_blocks(input, scale, zero_point)
