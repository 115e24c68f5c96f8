"""DML_DYNAMIC_QUANTIZE_LINEAR_OPERATOR_DESC."""

from typing import Any

import chex
import numpy as np

from jaxdml._arithmetic import elementwise
from jaxdml._directml.data_types import DataType
from jaxdml._directml.desc import OperatorDesc, TensorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.pages.dynamic_quantize_linear import DynamicQuantizeLinearDesc
from jaxdml._operators.call import operator
from jaxdml._operators.descriptions import Given, tensor_desc


def _describe(given: Given) -> OperatorDesc:
    input, output_type = given["input"], DataType.of(given["output_dtype"])
    ones = (1,) * input.ndim
    return DynamicQuantizeLinearDesc(
        input_tensor=tensor_desc(input),
        output_tensor=TensorDesc(output_type, input.shape),
        output_scale_tensor=TensorDesc(DataType.FLOAT32, ones),
        output_zero_point_tensor=TensorDesc(output_type, ones),
    )


@operator(DynamicQuantizeLinearDesc, _describe, output_dtype=np.uint8)
def dynamic_quantize_linear(
    input: chex.Array,
    *,
    output_dtype: chex.ArrayDType | None = None,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> tuple[chex.Array, chex.Array, chex.Array]:
    """Quantizes input by its own range.

    The range holds 0: ``low = min(0, min(input))``, ``high = max(0, max(input))``. The scale is
    ``(high - low) / (Max - Min)``, or 1 where that is 0; the zero point is ``clamp(round(Min - low / scale))``; the
    output is ``clamp(round(input / scale) + zero_point, Min, Max)``. Each float operation is rounded to float32, ties
    round to even, subnormals count as 0. Where input holds a NaN the scale is NaN; zero point and output are Min. The
    page says neither that the range holds 0 nor how the zero point is rounded: both are as in ONNX.

    Args:
      input: float32 or float16 array of rank 1 to 8; float16 is widened.
      output_dtype: uint8, the default, or int8.
      feature_level: the feature level whose rules are checked; see `FeatureLevel`.

    Returns:
      A named tuple (output, output_scale, output_zero_point); an array of input's shape and output_dtype; its scale,
      float32, and its zero point, of output_dtype, of input's rank and one element each.

    Raises:
      DescError: if the feature level does not allow the call; the message says why.

    Source: DirectML, DML_DYNAMIC_QUANTIZE_LINEAR_OPERATOR_DESC, fields InputTensor to OutputZeroPointTensor,
    https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_dynamic_quantize_linear_operator_desc
    """
    outputs: Any = DynamicQuantizeLinearDesc.Outputs  # type: ignore[attr-defined] # made where the desc is
    return outputs(*elementwise.dynamically_quantized(input, output_dtype=output_dtype))
