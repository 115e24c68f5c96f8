"""DML_QUANTIZED_LINEAR_MATRIX_MULTIPLY_OPERATOR_DESC."""

import jax

from jaxdml._arithmetic import contractions
from jaxdml._arithmetic.prepared import PreparedMatrix
from jaxdml._directml.desc import OperatorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.pages.quantized_linear_matrix_multiply import QuantizedLinearMatrixMultiplyDesc
from jaxdml._operators.call import operator
from jaxdml._operators.descriptions import Given
from jaxdml._operators.prepare import repacked_matrix
from jaxdml.typing import Array, DType, Scale, ZeroPoint

NO_BIAS = (
    "DirectML's matrix product has no bias, but its convolution has one. For two matrices, convolve with a.T[None] as "
    "input, b.T[:, :, None] as filter and a bias in units of a_scale * b_scale; if the result is y, the matrix product "
    "is y[0].T. For leading dimensions, use jax.vmap"
)


def _describe(given: Given) -> OperatorDesc:
    output = given["a"].shape[:-1] + given["b"].shape[-1:]
    return given.desc(QuantizedLinearMatrixMultiplyDesc, output=output)


@operator(
    QuantizedLinearMatrixMultiplyDesc,
    _describe,
    prepared={"b": PreparedMatrix},
    owned={"b": repacked_matrix},
    hints={"bias": NO_BIAS},
)
def quantized_linear_matrix_multiply(
    a: Array,
    a_scale: Scale,
    a_zero_point: ZeroPoint | None,
    b: Array | PreparedMatrix,
    b_scale: Scale,
    b_zero_point: ZeroPoint | None,
    output_scale: Scale,
    output_zero_point: ZeroPoint | None,
    *,
    output_dtype: DType | None = None,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> jax.Array:
    """Matrix product of quantized `a` and `b`; the result is quantized, too.

    [..., M, K] x [..., K, N] = [..., M, N]. ``sum((a - a_zero_point) * (b - b_zero_point))`` is exact in int32, modulo
    2**32. The sum is rounded to float32, multiplied by ``a_scale * b_scale / output_scale``, and rounded to an integer,
    ties to even; then the zero point is added, and the result is clamped. Subnormal scales, and subnormal products
    and quotients of scales, count as 0.

    Args:
      a: int8 or uint8 array [M, K], [C, M, K] or [N, C, M, K].
      a_scale: number, or float32 array, per row: [M, 1], with leading 1s allowed.
      a_zero_point: integer, or array of a's type with a shape as for a_scale; None means 0 and costs nothing.
      b: int8 or uint8 array [K, N] with a's leading dimensions, or the result of `prepare_matrix_multiply_b`.
      b_scale: number, or float32 array, per column: [N] or [1, N], with leading 1s allowed.
      b_zero_point: integer, or array of b's type with a shape as for b_scale; None means 0 and costs nothing.
      output_scale: number, or float32 array with a shape as for a_scale.
      output_zero_point: integer, or array of the output's type with a shape as for a_scale; None means 0.
      output_dtype: int8 or uint8. Default: the type of an output_zero_point array, else a's type.
      feature_level: the feature level that validates the call; see `FeatureLevel`.

    Returns:
      Array [..., M, N] of the output type.

    Raises:
      DescError: if the feature level does not allow the call.

    Source: DirectML, DML_QUANTIZED_LINEAR_MATRIX_MULTIPLY_OPERATOR_DESC, fields ATensor to OutputTensor,
    https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_quantized_linear_matrix_multiply_operator_desc
    """
    output = output_scale, output_zero_point
    return contractions.requantized_dot(
        a, a_scale, a_zero_point, b, b_scale, b_zero_point, None, *output, output_dtype=output_dtype
    )
