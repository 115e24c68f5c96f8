"""DML_DYNAMIC_QUANTIZE_LINEAR_OPERATOR_DESC."""

from typing import Any

import jax
import numpy as np

from jaxdml._arithmetic import elementwise
from jaxdml._directml.data_types import DataType
from jaxdml._directml.desc import OperatorDesc, TensorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.pages.dynamic_quantize_linear import DynamicQuantizeLinearDesc
from jaxdml._operators.call import operator
from jaxdml._operators.descriptions import Given, tensor_desc
from jaxdml.typing import Array, DType


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
    input: Array,
    *,
    output_dtype: DType | None = None,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Quantizes input with a scale and zero point computed from its range.

    - The range always contains 0: ``low = min(0, min(input))``, ``high = max(0, max(input))``.
    - Scale: ``(high - low) / (Max - Min)``, or 1 if that is 0.
    - Zero point: ``clamp(round(Min - low / scale), Min, Max)``.
    - Output: ``clamp(round(input / scale) + zero_point, Min, Max)``.

    Each float operation is rounded to float32; ties round to even; subnormals count as 0. If input contains NaN, the
    scale is NaN, and the zero point and the output are Min. DirectML's page does not say whether the range contains
    0, or how the zero point is rounded; this function follows ONNX.

    Args:
      input: float32 or float16 array of rank 1 to 8; float16 is converted to float32.
      output_dtype: uint8 (the default) or int8.
      feature_level: the feature level that validates the call; see `FeatureLevel`.

    Returns:
      A named tuple: output has input's shape and output_dtype. output_scale is float32, and output_zero_point has
      output_dtype; both have input's rank and one element.

    Raises:
      DescError: if the feature level does not allow the call.

    Source: DirectML, DML_DYNAMIC_QUANTIZE_LINEAR_OPERATOR_DESC, fields InputTensor to OutputZeroPointTensor,
    https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_dynamic_quantize_linear_operator_desc
    """
    outputs: Any = DynamicQuantizeLinearDesc.Outputs
    return outputs(*elementwise.dynamically_quantized(input, output_dtype=output_dtype))
