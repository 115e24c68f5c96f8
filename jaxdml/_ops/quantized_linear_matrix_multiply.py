"""DML_QUANTIZED_LINEAR_MATRIX_MULTIPLY_OPERATOR_DESC."""

from functools import partial
from typing import Any

import jax
import numpy as np

from jaxdml import _numerics
from jaxdml._arguments import Arguments, parameter_desc, tensor_desc
from jaxdml._contract import int_dot
from jaxdml._data_types import DataType
from jaxdml._lowering.prepared import PreparedMatrix
from jaxdml._operator import Call, operator
from jaxdml.descs import QuantizedLinearMatrixMultiplyDesc, TensorDesc
from jaxdml.feature_levels import FeatureLevel

OPERATOR = QuantizedLinearMatrixMultiplyDesc.operator


@operator
def quantized_linear_matrix_multiply(
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
    """Matrix product of quantized a and b, quantized: [..., M, K] x [..., K, N] = [..., M, N].

    ``sum((a - a_zero_point) * (b - b_zero_point))`` is exact in int32, modulo 2**32. It is rounded to float32, times
    ``a_scale * b_scale / output_scale``, rounded to an integer, ties to even; then the zero point is added, then the
    result clamped.

    Args:
      a: int8 or uint8 array [M, K], [C, M, K] or [N, C, M, K].
      b: int8 or uint8 array [K, N] with a's leading dimensions, or what `prepare_matrix_multiply_b` made of it.
      a_scale, output_scale: float32, a number or one for each row: [M, 1], leading ones allowed.
      b_scale: float32, a number or one for each column: [N] or [1, N], leading ones allowed.
      a_zero_point, b_zero_point: of a's and b's type, in the forms of their scales; None is 0 and costs nothing.
      output_zero_point: of the output's type, an integer or [M, 1]; None is 0.
      output_dtype: int8 or uint8. The default is output_zero_point's type, or a's if that is None or an integer.
      feature_level: the feature level whose rules are checked; see `FeatureLevel`.

    Returns:
      Array [..., M, N] of the output type.

    Raises:
      DescError: if the feature level does not allow the call; the message says why.

    Source: DirectML, DML_QUANTIZED_LINEAR_MATRIX_MULTIPLY_OPERATOR_DESC, fields ATensor to OutputTensor.
    """
    arguments = Arguments(OPERATOR, feature_level)
    a, b = arguments.tensor("a", a), arguments.tensor("b", b, prepared=PreparedMatrix)
    dtype = arguments.output_dtype(output_dtype, "output_zero_point", output_zero_point, default=a.dtype)
    quantization = arguments.quantization(
        a=(a_scale, a_zero_point, a.dtype),
        b=(b_scale, b_zero_point, b.dtype),
        output=(output_scale, output_zero_point, dtype),
    )
    desc = QuantizedLinearMatrixMultiplyDesc(
        a_tensor=tensor_desc(a),
        b_tensor=tensor_desc(b),
        output_tensor=TensorDesc(DataType.of(dtype), a.shape[:-1] + b.shape[-1:]),
        **{f"{name}_tensor": parameter_desc(value, a.ndim) for name, value in quantization.items()},
    )
    return Call(desc, feature_level, partial(_matrix_multiply, a, b, **quantization, output_dtype=dtype))


@partial(jax.jit, static_argnames="output_dtype")
def _matrix_multiply(
    a: jax.Array,
    b: jax.Array | PreparedMatrix,
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
        a_zero_point = _numerics.with_rank(a_zero_point, a.ndim)
        b_zero_point = _numerics.with_rank(b_zero_point, b.ndim)
        accumulator = int_dot(a, a_zero_point, b, b_zero_point)
        return _numerics.requantize(accumulator, a_scale, b_scale, output_scale, output_zero_point, output_dtype)
