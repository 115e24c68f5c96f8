"""DML_MATRIX_MULTIPLY_INTEGER_OPERATOR_DESC."""

import jax
import numpy as np

from jaxdml._arithmetic import contractions
from jaxdml._arithmetic.prepared import PreparedMatrix
from jaxdml._directml.desc import OperatorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.pages.matrix_multiply_integer import MatrixMultiplyIntegerDesc
from jaxdml._operators.call import operator
from jaxdml._operators.descriptions import Given
from jaxdml._operators.prepare import repacked_matrix
from jaxdml.typing import Array, ZeroPoint


def _describe(given: Given) -> OperatorDesc:
    output = given["a"].shape[:-1] + given["b"].shape[-1:]
    return given.desc(MatrixMultiplyIntegerDesc, output=output, output_type=np.int32)


@operator(MatrixMultiplyIntegerDesc, _describe, prepared={"b": PreparedMatrix}, owned={"b": repacked_matrix})
def matrix_multiply_integer(
    a: Array,
    a_zero_point: ZeroPoint | None,
    b: Array | PreparedMatrix,
    b_zero_point: ZeroPoint | None,
    *,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> jax.Array:
    """Matrix product of quantized `a` and `b`, in int32.

    [..., M, K] x [..., K, N] = [..., M, N]: ``sum((a - a_zero_point) * (b - b_zero_point))``, exact modulo 2**32.
    DirectML's page does not define sums that overflow int32. Sums of up to 33025 products do not overflow.

    Args:
      a: int8 or uint8 array [M, K], [C, M, K] or [N, C, M, K].
      a_zero_point: integer, or array of a's type, per row: [M, 1], with leading 1s allowed; None means 0.
      b: int8 or uint8 array [K, N] with a's leading dimensions, or the result of `prepare_matrix_multiply_b`.
      b_zero_point: integer, or array of b's type, per column: [N] or [1, N], with leading 1s allowed; None means 0.
      feature_level: the feature level that validates the call; see `FeatureLevel`.

    Returns:
      int32 array [..., M, N].

    Raises:
      DescError: if the feature level does not allow the call.

    Source: DirectML, DML_MATRIX_MULTIPLY_INTEGER_OPERATOR_DESC, fields ATensor to OutputTensor,
    https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_matrix_multiply_integer_operator_desc
    """
    return contractions.integer_dot(a, a_zero_point, b, b_zero_point)
