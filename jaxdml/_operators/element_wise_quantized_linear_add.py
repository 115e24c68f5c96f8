"""DML_ELEMENT_WISE_QUANTIZED_LINEAR_ADD_OPERATOR_DESC."""

import chex

from jaxdml._arithmetic import elementwise
from jaxdml._directml.desc import OperatorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.pages.element_wise_quantized_linear_add import ElementWiseQuantizedLinearAddDesc
from jaxdml._operators.call import operator
from jaxdml._operators.descriptions import Given


def _describe(given: Given) -> OperatorDesc:
    return given.desc(ElementWiseQuantizedLinearAddDesc, output=given["a"].shape)


@operator(ElementWiseQuantizedLinearAddDesc, _describe)
def element_wise_quantized_linear_add(
    a: chex.Array,
    a_scale: chex.Numeric,
    a_zero_point: chex.Numeric | None,
    b: chex.Array,
    b_scale: chex.Numeric,
    b_zero_point: chex.Numeric | None,
    output_scale: chex.Numeric,
    output_zero_point: chex.Numeric | None,
    *,
    output_dtype: chex.ArrayDType | None = None,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> chex.Array:
    """Sum of quantized a and b, quantized.

    ``clamp(round(value / output_scale) + output_zero_point, Min, Max)``, where ``value = (a - a_zero_point) * a_scale +
    (b - b_zero_point) * b_scale``. Each operation is rounded to float32 by itself, in the order of the formula; ties
    round to even, then the zero point is added, then the result clamped. Subnormal scales and sums count as 0.

    Args:
      a: int8 or uint8 array of rank 1 to 8.
      a_scale: float32, a number or an array of one element.
      a_zero_point: of a's type, an integer or an array of one element; None is 0.
      b: int8 or uint8 array of a's shape; its type may be the other one.
      b_scale: float32, a number or an array of one element.
      b_zero_point: of b's type, an integer or an array of one element; None is 0.
      output_scale: float32, a number or an array of one element.
      output_zero_point: of the output's type, an integer or an array of one element; None is 0.
      output_dtype: int8 or uint8. The default is output_zero_point's type, or a's if that is None or an integer.
      feature_level: the feature level whose rules are checked; see `FeatureLevel`.

    Returns:
      Array of a's shape and the output type.

    Raises:
      DescError: if the feature level does not allow the call; the message says why.

    Source: DirectML, DML_ELEMENT_WISE_QUANTIZED_LINEAR_ADD_OPERATOR_DESC, fields ATensor to OutputTensor,
    https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_element_wise_quantized_linear_add_operator_desc
    """
    output = output_scale, output_zero_point
    return elementwise.quantized_sum(
        a, a_scale, a_zero_point, b, b_scale, b_zero_point, *output, output_dtype=output_dtype
    )
