"""DML_QUANTIZE_OPERATOR_DESC."""

import jax
import numpy as np

from jaxdml._arithmetic import elementwise
from jaxdml._directml.desc import OperatorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.pages.quantize import QuantizeDesc
from jaxdml._operators.call import operator
from jaxdml._operators.descriptions import Given, block_desc, quantization_options, scale_of_input
from jaxdml.typing import Array, DType, Scale, ZeroPoint


def _describe(given: Given) -> OperatorDesc:
    input = given["input"]
    options = quantization_options(given)
    return given.desc(
        QuantizeDesc, output=input.shape, form=lambda field, array: block_desc(array, input.ndim), **options
    )


@operator(QuantizeDesc, _describe, scale_dtype=scale_of_input, output_dtype=np.uint8)
def quantize(
    input: Array,
    scale: Scale,
    zero_point: ZeroPoint | None = None,
    *,
    output_dtype: DType | None = None,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> jax.Array:
    """Quantizes floats to 4 or 8 bits, blockwise.

    ``clamp(round(input / scale) + zero_point, Min, Max)``; ties round to even. Each block of input has a scale and a
    zero point. For an input of shape [4, 64], a scale of shape [4, 1] has one value per row, [4, 2] has one value per
    block of 32 elements of a row, and a number applies to all elements. The arithmetic is that of
    `element_wise_quantize_linear`. Without zero_point, a signed output has the zero point 0, and an unsigned output the
    middle of its range (8 or 128).

    DirectML's page defines the types and leaves the rest "TBD". Blocks and default zero points follow ONNX Runtime and
    WebNN, which call this operator.

    Args:
      input: float32 or float16 array of rank 1 to 8.
      scale: number, or array of input's type and rank, whose sizes divide input's sizes.
      zero_point: integer, or array of the output's type with a shape as for scale; None means the default above.
      output_dtype: jnp.int4, jnp.uint4, int8 or uint8. Default: the type of a zero_point array, else uint8.
      feature_level: the feature level that validates the call; see `FeatureLevel`.

    Returns:
      Array of input's shape and the output type.

    Raises:
      DescError: if the feature level does not allow the call.

    Source: DirectML, DML_QUANTIZE_OPERATOR_DESC, fields InputTensor to OutputTensor,
    https://learn.microsoft.com/windows/ai/directml/api/ns-directml-dml_quantize_operator_desc
    """
    return elementwise.quantized_blocks(input, scale, zero_point, output_dtype=output_dtype)
