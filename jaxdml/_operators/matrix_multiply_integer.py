"""DML_MATRIX_MULTIPLY_INTEGER_OPERATOR_DESC."""

import chex
import numpy as np

from jaxdml._arithmetic import contractions
from jaxdml._arithmetic.prepared import PreparedMatrix
from jaxdml._directml.desc import OperatorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.pages.matrix_multiply_integer import MatrixMultiplyIntegerDesc
from jaxdml._operators.call import operator
from jaxdml._operators.descriptions import Given
from jaxdml._operators.prepare import repacked_matrix


def _describe(given: Given) -> OperatorDesc:
    output = given["a"].shape[:-1] + given["b"].shape[-1:]
    return given.desc(MatrixMultiplyIntegerDesc, output=output, output_type=np.int32)


@operator(MatrixMultiplyIntegerDesc, _describe, prepared={"b": PreparedMatrix}, owned={"b": repacked_matrix})
def matrix_multiply_integer(
    a: chex.Array,
    a_zero_point: chex.Numeric | None,
    b: chex.Array | PreparedMatrix,
    b_zero_point: chex.Numeric | None,
    *,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> chex.Array:
    """Matrix product of quantized a and b, in int32.

    [..., M, K] x [..., K, N] = [..., M, N]: ``sum((a - a_zero_point) * (b - b_zero_point))``, exact modulo 2**32. The
    page does not say what becomes of a sum that int32 does not hold; 33025 products always fit.

    Args:
      a: int8 or uint8 array [M, K], [C, M, K] or [N, C, M, K].
      a_zero_point: of a's type, an integer, or one for each row: [M, 1], leading ones allowed; None is 0.
      b: int8 or uint8 array [K, N] with a's leading dimensions, or what `prepare_matrix_multiply_b` made of it.
      b_zero_point: of b's type, an integer, or one for each column: [N] or [1, N], leading ones allowed; None is 0.
      feature_level: the feature level whose rules are checked; see `FeatureLevel`.

    Returns:
      int32 array [..., M, N].

    Raises:
      DescError: if the feature level does not allow the call; the message says why.

    Source: DirectML, DML_MATRIX_MULTIPLY_INTEGER_OPERATOR_DESC, fields ATensor to OutputTensor,
    https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_matrix_multiply_integer_operator_desc
    """
    return contractions.integer_dot(a, a_zero_point, b, b_zero_point)
