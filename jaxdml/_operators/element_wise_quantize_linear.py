"""DML_ELEMENT_WISE_QUANTIZE_LINEAR_OPERATOR_DESC, which makes what the other operators read."""

import chex
import numpy as np

from jaxdml._arithmetic import elementwise
from jaxdml._directml.desc import OperatorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.pages.element_wise_quantize_linear import ElementWiseQuantizeLinearDesc
from jaxdml._operators.call import operator
from jaxdml._operators.descriptions import Given, broadcast_desc, scale_of_input


def _describe(given: Given) -> OperatorDesc:
    sizes = given["input"].shape
    return given.desc(
        ElementWiseQuantizeLinearDesc, output=sizes, form=lambda field, array: broadcast_desc(array, sizes)
    )


@operator(ElementWiseQuantizeLinearDesc, _describe, scale_dtype=scale_of_input, output_dtype=np.uint8)
def element_wise_quantize_linear(
    input: chex.Array,
    scale: chex.Numeric,
    zero_point: chex.Numeric | None = None,
    *,
    output_dtype: chex.ArrayDType | None = None,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> chex.Array:
    """``clamp(round(input / scale) + zero_point, Min, Max)``, element by element; ties round to even.

    The quotient is rounded to float32, then to an integer; then the zero point is added, then the result clamped.
    Subnormal float32 inputs and scales count as 0. Infinities clamp, NaN gives Min. A scale of 0 divides as IEEE 754
    does. The gradient is that of integers, zero; `jaxdml.fake_quantize` has straight-through ones.

    Args:
      input: float32, float16 or int32 array of rank 1 to 8.
      scale: a number or an array that broadcasts to input's shape; of input's type, float32 for an int32 input.
      zero_point: of the output's type, an integer or an array that broadcasts to input's shape; None is 0 (from 6_2).
      output_dtype: uint8 or int8; also uint16 or int16 with ``feature_level=FeatureLevel.JAXDML``, for DirectML does
        not have them. The default is zero_point's type, or uint8 if zero_point is None or an integer.
      feature_level: the feature level whose rules are checked; see `FeatureLevel`.

    Returns:
      Array of input's shape and the output type.

    Raises:
      DescError: if the feature level does not allow the call; the message says why.

    Source: DirectML, DML_ELEMENT_WISE_QUANTIZE_LINEAR_OPERATOR_DESC, fields InputTensor to OutputTensor,
    https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_element_wise_quantize_linear_operator_desc
    """
    return elementwise.quantized(input, scale, zero_point, output_dtype=output_dtype)
