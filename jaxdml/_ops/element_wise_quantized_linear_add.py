"""DML_ELEMENT_WISE_QUANTIZED_LINEAR_ADD_OPERATOR_DESC."""

from functools import partial
from typing import Any

import jax
import numpy as np

from jaxdml import _numerics
from jaxdml._arguments import Arguments, parameter_desc, tensor_desc
from jaxdml._data_types import DataType
from jaxdml._operator import Call, operator
from jaxdml.descs import ElementWiseQuantizedLinearAddDesc, TensorDesc
from jaxdml.feature_levels import FeatureLevel

OPERATOR = ElementWiseQuantizedLinearAddDesc.operator


@operator
def element_wise_quantized_linear_add(
    a: Any,
    a_scale: Any,
    a_zero_point: Any,
    b: Any,
    b_scale: Any,
    b_zero_point: Any,
    output_scale: Any,
    output_zero_point: Any,
    *,
    output_dtype: Any = None,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> Call:
    """Sum of quantized a and b, quantized: ``clamp(round(value / output_scale) + output_zero_point, Min, Max)``.

    There ``value = (a - a_zero_point) * a_scale + (b - b_zero_point) * b_scale``. Each operation is rounded to float32
    by itself, in the order of the formula; ties round to even, then the zero point is added, then the result clamped.

    Args:
      a, b: int8 or uint8 arrays of rank 1 to 8 and equal shape, each of its own type.
      a_scale, b_scale, output_scale: float32, a number or an array of one element.
      a_zero_point, b_zero_point: of a's and b's type, an integer or an array of one element; None is 0.
      output_zero_point: of the output's type, an integer or an array of one element; None is 0.
      output_dtype: int8 or uint8. The default is output_zero_point's type, or a's if that is None or an integer.
      feature_level: the feature level whose rules are checked; see `FeatureLevel`.

    Returns:
      Array of a's shape and the output type.

    Raises:
      DescError: if the feature level does not allow the call; the message says why.

    Source: DirectML, DML_ELEMENT_WISE_QUANTIZED_LINEAR_ADD_OPERATOR_DESC, fields ATensor to OutputTensor.
    """
    arguments = Arguments(OPERATOR, feature_level)
    a, b = arguments.tensor("a", a), arguments.tensor("b", b)
    dtype = arguments.output_dtype(output_dtype, "output_zero_point", output_zero_point, default=a.dtype)
    quantization = arguments.quantization(
        a=(a_scale, a_zero_point, a.dtype),
        b=(b_scale, b_zero_point, b.dtype),
        output=(output_scale, output_zero_point, dtype),
    )
    desc = ElementWiseQuantizedLinearAddDesc(
        a_tensor=tensor_desc(a),
        b_tensor=tensor_desc(b),
        output_tensor=TensorDesc(DataType.of(dtype), a.shape),
        **{f"{name}_tensor": parameter_desc(value, a.ndim) for name, value in quantization.items()},
    )
    return Call(desc, feature_level, partial(_add, a, b, **quantization, output_dtype=dtype))


@partial(jax.jit, static_argnames="output_dtype")
def _add(
    a: jax.Array,
    b: jax.Array,
    *,
    a_scale: jax.Array,
    a_zero_point: jax.Array | None,
    b_scale: jax.Array,
    b_zero_point: jax.Array | None,
    output_scale: jax.Array,
    output_zero_point: jax.Array | None,
    output_dtype: np.dtype,
) -> jax.Array:
    with jax.named_scope(OPERATOR):
        a_value = _numerics.dequantize(a, a_scale, a_zero_point)
        b_value = _numerics.dequantize(b, b_scale, b_zero_point)
        quotient = _numerics.quotient(a_value + b_value, _numerics.with_rank(output_scale, a.ndim))
        return _numerics.saturate(quotient, output_zero_point, output_dtype)
