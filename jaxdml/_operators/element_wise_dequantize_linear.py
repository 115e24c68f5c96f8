"""DML_ELEMENT_WISE_DEQUANTIZE_LINEAR_OPERATOR_DESC."""

import chex

from jaxdml._arithmetic import elementwise
from jaxdml._directml.desc import OperatorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.pages.element_wise_dequantize_linear import ElementWiseDequantizeLinearDesc
from jaxdml._operators.call import operator
from jaxdml._operators.descriptions import Given, broadcast_desc, scale_of_output


def _describe(given: Given) -> OperatorDesc:
    sizes = given["input"].shape
    return given.desc(
        ElementWiseDequantizeLinearDesc,
        output=sizes,
        output_type=given["scale"].dtype,
        form=lambda field, array: broadcast_desc(array, sizes),
    )


@operator(ElementWiseDequantizeLinearDesc, _describe, scale_dtype=scale_of_output)
def element_wise_dequantize_linear(
    input: chex.Array,
    scale: chex.Numeric,
    zero_point: chex.Numeric | None = None,
    *,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> chex.Array:
    """``(input - zero_point) * scale``, element by element.

    The difference is exact, whatever the type; it is rounded to float32, and so is the product. A FLOAT16 scale is
    widened, and the product rounded once more, to FLOAT16, where it may overflow to infinity. A scale that is a
    subnormal float32 counts as 0.

    Args:
      input: int8, uint8, int16, uint16, int32 or uint32 array of rank 1 to 8.
      scale: float32 or float16, a number or an array that broadcasts to input's shape.
      zero_point: of input's type, an integer or an array that broadcasts to input's shape; None is 0 (from 6_2).
      feature_level: the feature level whose rules are checked; see `FeatureLevel`.

    Returns:
      Array of input's shape and scale's type.

    Raises:
      DescError: if the feature level does not allow the call; the message says why.

    Source: DirectML, DML_ELEMENT_WISE_DEQUANTIZE_LINEAR_OPERATOR_DESC, fields InputTensor to OutputTensor,
    https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_element_wise_dequantize_linear_operator_desc
    """
    return elementwise.dequantized(input, scale, zero_point)
