"""DML_ELEMENT_WISE_QUANTIZE_LINEAR_OPERATOR_DESC."""

import jax
import numpy as np

from jaxdml._arithmetic import elementwise
from jaxdml._directml.desc import OperatorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.pages.element_wise_quantize_linear import ElementWiseQuantizeLinearDesc
from jaxdml._operators.call import operator
from jaxdml._operators.descriptions import Given, broadcast_desc, scale_of_input
from jaxdml.typing import Array, DType, Scale, ZeroPoint


def _describe(given: Given) -> OperatorDesc:
    sizes = given["input"].shape
    return given.desc(
        ElementWiseQuantizeLinearDesc, output=sizes, form=lambda field, array: broadcast_desc(array, sizes)
    )


@operator(ElementWiseQuantizeLinearDesc, _describe, scale_dtype=scale_of_input, output_dtype=np.uint8)
def element_wise_quantize_linear(
    input: Array,
    scale: Scale,
    zero_point: ZeroPoint | None = None,
    *,
    output_dtype: DType | None = None,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> jax.Array:
    """``clamp(round(input / scale) + zero_point, Min, Max)``, elementwise; ties round to even.

    The quotient is rounded to float32, then to an integer; then the zero point is added, and the result is clamped.
    Subnormal float32 inputs and scales count as 0. Infinities are clamped; NaN gives Min. Division by a scale of 0
    follows IEEE 754. The gradient is zero; `jaxdml.fake_quantize` has straight-through gradients.

    Args:
      input: float32, float16 or int32 array of rank 1 to 8.
      scale: number, or array that broadcasts to input's shape, of input's type (float32 for an int32 input).
      zero_point: integer, or array of the output's type that broadcasts to input's shape; None means 0 (from feature
        level 6_2 on).
      output_dtype: uint8 or int8. DirectML has no uint16 or int16 here; ``feature_level=FeatureLevel.JAXDML`` allows
        them. Default: the type of a zero_point array, else uint8.
      feature_level: the feature level that validates the call; see `FeatureLevel`.

    Returns:
      Array of input's shape and the output type.

    Raises:
      DescError: if the feature level does not allow the call.

    Source: DirectML, DML_ELEMENT_WISE_QUANTIZE_LINEAR_OPERATOR_DESC, fields InputTensor to OutputTensor,
    https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_element_wise_quantize_linear_operator_desc
    """
    return elementwise.quantized(input, scale, zero_point, output_dtype=output_dtype)
