"""DML_QUANTIZED_LINEAR_MATRIX_MULTIPLY_OPERATOR_DESC."""

import chex

from jaxdml._arithmetic import contractions
from jaxdml._arithmetic.prepared import PreparedMatrix
from jaxdml._directml.desc import OperatorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.pages.quantized_linear_matrix_multiply import QuantizedLinearMatrixMultiplyDesc
from jaxdml._operators.call import operator
from jaxdml._operators.descriptions import Given
from jaxdml._operators.prepare import repacked_matrix

NO_BIAS = (
    "DirectML's product has none. Its convolution has: a.T[None] as input and b.T[:, :, None] as filter give the "
    "product of two matrices, with a bias in steps of a_scale * b_scale, as [0].T of the result; jax.vmap maps it over "
    "leading dimensions"
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
    a: chex.Array,
    a_scale: chex.Numeric,
    a_zero_point: chex.Numeric | None,
    b: chex.Array | PreparedMatrix,
    b_scale: chex.Numeric,
    b_zero_point: chex.Numeric | None,
    output_scale: chex.Numeric,
    output_zero_point: chex.Numeric | None,
    *,
    output_dtype: chex.ArrayDType | None = None,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> chex.Array:
    """Matrix product of quantized a and b, quantized.

    [..., M, K] x [..., K, N] = [..., M, N]. ``sum((a - a_zero_point) * (b - b_zero_point))`` is exact in int32, modulo
    2**32. The sum is rounded to float32, times ``a_scale * b_scale / output_scale``, rounded to an integer, ties to
    even; then the zero point is added, then the result clamped. Subnormal scales, products and quotients of scales
    count as 0.

    Args:
      a: int8 or uint8 array [M, K], [C, M, K] or [N, C, M, K].
      a_scale: float32, a number or one for each row: [M, 1], leading ones allowed.
      a_zero_point: of a's type, in the forms of a_scale; None is 0 and costs nothing.
      b: int8 or uint8 array [K, N] with a's leading dimensions, or what `prepare_matrix_multiply_b` made of it.
      b_scale: float32, a number or one for each column: [N] or [1, N], leading ones allowed.
      b_zero_point: of b's type, in the forms of b_scale; None is 0 and costs nothing.
      output_scale: float32, in the forms of a_scale.
      output_zero_point: of the output's type, an integer or [M, 1]; None is 0.
      output_dtype: int8 or uint8. The default is output_zero_point's type, or a's if that is None or an integer.
      feature_level: the feature level whose rules are checked; see `FeatureLevel`.

    Returns:
      Array [..., M, N] of the output type.

    Raises:
      DescError: if the feature level does not allow the call; the message says why.

    Source: DirectML, DML_QUANTIZED_LINEAR_MATRIX_MULTIPLY_OPERATOR_DESC, fields ATensor to OutputTensor,
    https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_quantized_linear_matrix_multiply_operator_desc
    """
    output = output_scale, output_zero_point
    return contractions.requantized_dot(
        a, a_scale, a_zero_point, b, b_scale, b_zero_point, *output, output_dtype=output_dtype
    )
