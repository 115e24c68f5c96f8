"""DML_ELEMENT_WISE_DEQUANTIZE_LINEAR_OPERATOR_DESC."""

import jax

from jaxdml._arithmetic import elementwise
from jaxdml._directml.desc import OperatorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.pages.element_wise_dequantize_linear import ElementWiseDequantizeLinearDesc
from jaxdml._operators.call import operator
from jaxdml._operators.descriptions import Given, broadcast_desc, scale_of_output
from jaxdml.typing import Array, Scale, ZeroPoint


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
    input: Array,
    scale: Scale,
    zero_point: ZeroPoint | None = None,
    *,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> jax.Array:
    """``(input - zero_point) * scale``, elementwise.

    The difference is computed exactly and rounded to float32; the product is rounded to float32. With a float16 scale,
    the product is then rounded to float16, where it may overflow to infinity. A subnormal float32 scale counts as 0.

    Args:
      input: int8, uint8, int16, uint16, int32 or uint32 array of rank 1 to 8.
      scale: number, or float32 or float16 array that broadcasts to input's shape.
      zero_point: integer, or array of input's type that broadcasts to input's shape; None means 0 (from feature level
        6_2 on).
      feature_level: the feature level that validates the call; see `FeatureLevel`.

    Returns:
      Array of input's shape and scale's type.

    Raises:
      DescError: if the feature level does not allow the call.

    Source: DirectML, DML_ELEMENT_WISE_DEQUANTIZE_LINEAR_OPERATOR_DESC, fields InputTensor to OutputTensor,
    https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_element_wise_dequantize_linear_operator_desc
    """
    return elementwise.dequantized(input, scale, zero_point)
