"""DML_QUANTIZE_OPERATOR_DESC."""

import chex
import numpy as np

from jaxdml._arithmetic import elementwise
from jaxdml._directml.desc import OperatorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.pages.quantize import QuantizeDesc
from jaxdml._operators.call import operator
from jaxdml._operators.descriptions import Given, block_desc, quantization_options, scale_of_input


def _describe(given: Given) -> OperatorDesc:
    input = given["input"]
    options = quantization_options(given)
    return given.desc(
        QuantizeDesc, output=input.shape, form=lambda field, array: block_desc(array, input.ndim), **options
    )


@operator(QuantizeDesc, _describe, scale_dtype=scale_of_input, output_dtype=np.uint8)
def quantize(
    input: chex.Array,
    scale: chex.Numeric,
    zero_point: chex.Numeric | None = None,
    *,
    output_dtype: chex.ArrayDType | None = None,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> chex.Array:
    """From floats to 4 or 8 bits, by blocks.

    ``clamp(round(input / scale) + zero_point, Min, Max)``, with a scale and a zero point for each block of input; ties
    round to even. A parameter of sizes [4, 1] for input of sizes [4, 64] has a value for each row; [4, 2] has one for
    each block of 32 elements of a row; a number is for all. Arithmetic is that of `element_wise_quantize_linear`.
    Without zero_point an unsigned output has the middle of its range, 8 or 128, in its place, a signed one 0. The page
    says TBD of all but types: blocks and the middle are those of ONNX Runtime and WebNN, which run on it.

    Args:
      input: float32 or float16 array of rank 1 to 8.
      scale: of input's type, a number or an array of input's rank, each of whose sizes divides that of input.
      zero_point: of the output's type, an integer or an array, as scale; None is the middle, or 0.
      output_dtype: jnp.int4, jnp.uint4, int8 or uint8. The default is zero_point's type, or uint8 if zero_point is
        None or an integer.
      feature_level: the feature level whose rules are checked; see `FeatureLevel`.

    Returns:
      Array of input's shape and the output type.

    Raises:
      DescError: if the feature level does not allow the call; the message says why.

    Source: DirectML, DML_QUANTIZE_OPERATOR_DESC, fields InputTensor to OutputTensor,
    https://learn.microsoft.com/windows/ai/directml/api/ns-directml-dml_quantize_operator_desc
    """
    return elementwise.quantized_blocks(input, scale, zero_point, output_dtype=output_dtype)
