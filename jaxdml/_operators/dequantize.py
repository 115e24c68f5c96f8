"""DML_DEQUANTIZE_OPERATOR_DESC."""

import chex
import numpy as np

from jaxdml._arithmetic import elementwise
from jaxdml._directml.desc import OperatorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.pages.dequantize import DequantizeDesc
from jaxdml._operators.call import operator
from jaxdml._operators.descriptions import Given, block_desc, quantization_options, scale_of_output


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
    input: chex.Array,
    scale: chex.Numeric,
    zero_point: chex.Numeric | None = None,
    *,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> chex.Array:
    """From 4 or 8 bits to floats, by blocks: ``(input - zero_point) * scale``.

    There is a scale and a zero point for each block of input. A parameter of sizes [4, 1] for input of sizes [4, 64]
    has a value for each row; [4, 2] has one for each block of 32 elements of a row; a number is for all. Arithmetic is
    that of `element_wise_dequantize_linear`. Without zero_point an unsigned input has the middle of its range, 8 or
    128, in its place, a signed one 0. The page says TBD of all but types: blocks and the middle are those of ONNX
    Runtime and WebNN, which run on it.

    Args:
      input: int4, uint4, int8 or uint8 array of rank 1 to 8.
      scale: float32 or float16, a number or an array of input's rank, each of whose sizes divides that of input.
      zero_point: of input's type, an integer or an array, as scale; None is the middle, or 0.
      feature_level: the feature level whose rules are checked; see `FeatureLevel`.

    Returns:
      Array of input's shape and scale's type.

    Raises:
      DescError: if the feature level does not allow the call; the message says why.

    Source: DirectML, DML_DEQUANTIZE_OPERATOR_DESC, fields InputTensor to OutputTensor,
    https://learn.microsoft.com/windows/ai/directml/api/ns-directml-dml_dequantize_operator_desc
    """
    return elementwise.dequantized_blocks(input, scale, zero_point)
