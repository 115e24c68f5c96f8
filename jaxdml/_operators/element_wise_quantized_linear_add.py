"""DML_ELEMENT_WISE_QUANTIZED_LINEAR_ADD_OPERATOR_DESC."""

import jax

from jaxdml._arithmetic import elementwise
from jaxdml._directml.desc import OperatorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.pages.element_wise_quantized_linear_add import ElementWiseQuantizedLinearAddDesc
from jaxdml._operators.call import operator
from jaxdml._operators.descriptions import Given
from jaxdml.typing import Array, DType, Scale, ZeroPoint


def _describe(given: Given) -> OperatorDesc:
    return given.desc(ElementWiseQuantizedLinearAddDesc, output=given["a"].shape)


@operator(ElementWiseQuantizedLinearAddDesc, _describe)
def element_wise_quantized_linear_add(
    a: Array,
    a_scale: Scale,
    a_zero_point: ZeroPoint | None,
    b: Array,
    b_scale: Scale,
    b_zero_point: ZeroPoint | None,
    output_scale: Scale,
    output_zero_point: ZeroPoint | None,
    *,
    output_dtype: DType | None = None,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> jax.Array:
    """Adds quantized arrays `a` and `b`, and quantizes the sum.

    ``clamp(round(value / output_scale) + output_zero_point, Min, Max)``, where ``value = (a - a_zero_point) * a_scale +
    (b - b_zero_point) * b_scale``. Each operation of the formula is rounded to float32. The quotient is rounded to an
    integer, ties to even; then the zero point is added, and the result clamped. Subnormal scales and sums count as 0.

    Args:
      a: int8 or uint8 array of rank 1 to 8.
      a_scale: number, or float32 array of one element.
      a_zero_point: integer, or array of one element of a's type; None means 0.
      b: int8 or uint8 array of a's shape; its type may differ from a's.
      b_scale: number, or float32 array of one element.
      b_zero_point: integer, or array of one element of b's type; None means 0.
      output_scale: number, or float32 array of one element.
      output_zero_point: integer, or array of one element of the output's type; None means 0.
      output_dtype: int8 or uint8. Default: the type of an output_zero_point array, else a's type.
      feature_level: the feature level that validates the call; see `FeatureLevel`.

    Returns:
      Array of a's shape and the output type.

    Raises:
      DescError: if the feature level does not allow the call.

    Source: DirectML, DML_ELEMENT_WISE_QUANTIZED_LINEAR_ADD_OPERATOR_DESC, fields ATensor to OutputTensor,
    https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_element_wise_quantized_linear_add_operator_desc
    """
    output = output_scale, output_zero_point
    return elementwise.quantized_sum(
        a, a_scale, a_zero_point, b, b_scale, b_zero_point, *output, output_dtype=output_dtype
    )
