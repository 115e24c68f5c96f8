"""DML_MATRIX_MULTIPLY_INTEGER_TO_FLOAT_OPERATOR_DESC."""

from typing import Any

import chex
import numpy as np

from jaxdml._arithmetic import contractions, rounding, wide
from jaxdml._arithmetic.prepared import PreparedMatrix
from jaxdml._directml.desc import OperatorDesc, TensorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.messages import broken
from jaxdml._directml.pages.matrix_multiply_integer_to_float import MatrixMultiplyIntegerToFloatDesc
from jaxdml._directml.tensor_rules import is_symbolic
from jaxdml._operators.call import operator
from jaxdml._operators.descriptions import Given, broadcast_desc, parameter_desc, tensor_desc
from jaxdml._operators.prepare import repacked_matrix


def _describe(given: Given) -> OperatorDesc:
    a, b = given["a"], given["b"]
    output = a.shape[:-1] + b.shape[-1:]
    if not _are_bytes(a, b) and a.ndim and is_symbolic(a.shape[-1]):
        text = f"has symbolic K {a.shape[-1]}, which products of more than 8 bits cannot leave open; give it a number"
        raise broken(MatrixMultiplyIntegerToFloatDesc.operator, "ATensor", "sizes", text, expected=int)

    def form(field: str, array: Any) -> TensorDesc:
        if field in ("a_tensor", "b_tensor"):
            return tensor_desc(array)
        return broadcast_desc(array, output) if field == "bias_tensor" else parameter_desc(array, a.ndim)

    output_type = given["a_scale"].dtype
    return given.desc(MatrixMultiplyIntegerToFloatDesc, output=output, output_type=output_type, form=form)


def _are_bytes(a: Any, b: Any) -> bool:
    return bool(a.dtype.itemsize == b.dtype.itemsize == 1)


def _scale_dtype(given: Given, scale: Any) -> type[np.floating]:
    """A number beside FLOAT16 arrays is FLOAT16."""
    halves = (getattr(given[name], "dtype", None) == np.float16 for name in ("a_scale", "b_scale", "bias"))
    return np.float16 if any(halves) else np.float32


@operator(
    MatrixMultiplyIntegerToFloatDesc,
    _describe,
    scale_dtype=_scale_dtype,
    prepared={"b": PreparedMatrix},
    owned={"b": repacked_matrix},
)
def matrix_multiply_integer_to_float(
    a: chex.Array,
    a_scale: chex.Numeric,
    a_zero_point: chex.Numeric | None,
    b: chex.Array | PreparedMatrix,
    b_scale: chex.Numeric,
    b_zero_point: chex.Numeric | None,
    bias: chex.Array | None = None,
    *,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> chex.Array:
    """Matrix product of quantized a and b, in floats.

    [..., M, K] x [..., K, N] = [..., M, N]. ``sum((a - a_zero_point) * (b - b_zero_point))`` is exact: modulo 2**32 if
    a and b have 8 bits, whatever its size if one of them has more. The sum is rounded to float32, times ``a_scale *
    b_scale``, plus bias; each of the three operations is rounded to float32. FLOAT16 scales and bias are widened, and
    the result is rounded to FLOAT16 at the end, where it may overflow to infinity. Subnormal float32 numbers count as
    0.

    The page says that a, b and their zero points are of one type. Devices take a and b of different types, and so does
    this function. The page describes OutputScaleTensor and OutputZeroPointTensor, which no header has.

    Args:
      a: array [M, K], [C, M, K] or [N, C, M, K] of a signed or unsigned integer type of 8, 16 or 32 bits.
      a_scale: float32 or float16, a number or one for each row: [M, 1], leading ones allowed.
      a_zero_point: of a's type, in the forms of its scale; None is 0.
      b: array [K, N] of such a type with a's leading dimensions, or what `prepare_matrix_multiply_b` made of 8-bit b.
      b_scale: of a_scale's type, a number or one for each column: [N] or [1, N], leading ones allowed.
      b_zero_point: of b's type, in the forms of its scale; None is 0.
      bias: None, or of a_scale's type an array that broadcasts to the output, such as [N].
      feature_level: the feature level whose rules are checked; see `FeatureLevel`.

    Returns:
      Array [..., M, N] of the scales' type.

    Raises:
      DescError: if the feature level does not allow the call; the message says why.

    Source: DirectML, DML_MATRIX_MULTIPLY_INTEGER_TO_FLOAT_OPERATOR_DESC, fields ATensor to OutputTensor,
    https://learn.microsoft.com/windows/ai/directml/api/ns-directml-dml_matrix_multiply_integer_to_float_operator_desc
    """
    total: Any
    if _are_bytes(a, b):
        total = contractions.integer_dot(a, a_zero_point, b, b_zero_point)
    else:
        b = b.array if isinstance(b, PreparedMatrix) else b
        zero_points = (rounding.with_rank(zero_point, a.ndim) for zero_point in (a_zero_point, b_zero_point))
        a_zero_point, b_zero_point = zero_points
        total = wide.dot(a, a_zero_point, b, b_zero_point)
    return rounding.multiplied(total, a_scale, b_scale, bias, a_scale.dtype)
