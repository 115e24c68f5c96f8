"""DML_MATRIX_MULTIPLY_INTEGER_TO_FLOAT_OPERATOR_DESC."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import contractions, halves, rounding, wide
from jaxdml._arithmetic.prepared import PreparedMatrix
from jaxdml._directml.desc import OperatorDesc, TensorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.messages import broken
from jaxdml._directml.pages.matrix_multiply_integer_to_float import MatrixMultiplyIntegerToFloatDesc
from jaxdml._directml.tensor_rules import is_symbolic
from jaxdml._operators.call import operator
from jaxdml._operators.descriptions import Given, broadcast_desc, parameter_desc, tensor_desc
from jaxdml._operators.prepare import repacked_matrix
from jaxdml.typing import Array, Scale, ZeroPoint


def _describe(given: Given) -> OperatorDesc:
    a, b = given["a"], given["b"]
    output = a.shape[:-1] + b.shape[-1:]
    if not _are_bytes(a, b) and a.ndim and is_symbolic(a.shape[-1]):
        text = f"has symbolic K {a.shape[-1]}, but operands of more than 8 bits need a known K; use an integer"
        raise broken(MatrixMultiplyIntegerToFloatDesc.operator, "ATensor", "sizes", text, expected=int)

    def form(field: str, array: Any) -> TensorDesc:
        if field in ("a_tensor", "b_tensor"):
            return tensor_desc(array)
        return broadcast_desc(array, output) if field == "bias_tensor" else parameter_desc(array, a.ndim)

    output_type = given["a_scale"].dtype
    return given.desc(MatrixMultiplyIntegerToFloatDesc, output=output, output_type=output_type, form=form)


def _float32(x: Any) -> Any:
    return x if x is None else lax.convert_element_type(x, jnp.float32)


def _are_bytes(a: Any, b: Any) -> bool:
    return bool(a.dtype.itemsize == b.dtype.itemsize == 1)


def _scale_dtype(given: Given, scale: Any) -> type[np.floating]:
    """The type for a number given as a scale: float16 if another scale or the bias is a float16 array, else float32."""
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
    a: Array,
    a_scale: Scale,
    a_zero_point: ZeroPoint | None,
    b: Array | PreparedMatrix,
    b_scale: Scale,
    b_zero_point: ZeroPoint | None,
    bias: Array | None = None,
    *,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> jax.Array:
    """Matrix product of quantized `a` and `b`, in floats.

    [..., M, K] x [..., K, N] = [..., M, N]. ``sum((a - a_zero_point) * (b - b_zero_point))`` is exact: modulo 2**32 if
    `a` and `b` have 8 bits, without overflow if `a` or `b` has more. The sum is rounded to float32, multiplied by
    ``a_scale * b_scale``, and bias is added; each operation is rounded to float32. With float16 scales and bias, the
    result is rounded to float16 at the end, where it may overflow to infinity. Subnormal float32 numbers count as 0.

    DirectML's page requires one type for `a`, `b` and their zero points. Devices accept different types for `a` and
    `b`, and so does this function. The page also lists OutputScaleTensor and OutputZeroPointTensor, which directml.h
    does not have.

    Args:
      a: array [M, K], [C, M, K] or [N, C, M, K] of a signed or unsigned integer type of 8, 16 or 32 bits.
      a_scale: number, or float32 or float16 array, per row: [M, 1], with leading 1s allowed.
      a_zero_point: integer, or array of a's type with a shape as for a_scale; None means 0.
      b: array [K, N] with a's leading dimensions, of any of the types listed for `a`; an 8-bit `b` may also be the
        result of `prepare_matrix_multiply_b`.
      b_scale: number, or array of a_scale's type, per column: [N] or [1, N], with leading 1s allowed.
      b_zero_point: integer, or array of b's type with a shape as for b_scale; None means 0.
      bias: None, or array of a_scale's type that broadcasts to the output, such as [N].
      feature_level: the feature level that validates the call; see `FeatureLevel`.

    Returns:
      Array [..., M, N] of the scales' type.

    Raises:
      DescError: if the feature level does not allow the call.

    Source: DirectML, DML_MATRIX_MULTIPLY_INTEGER_TO_FLOAT_OPERATOR_DESC, fields ATensor to OutputTensor,
    https://learn.microsoft.com/windows/ai/directml/api/ns-directml-dml_matrix_multiply_integer_to_float_operator_desc
    """
    dtype: Any = a_scale.dtype
    a_scale, b_scale, bias = map(_float32, (a_scale, b_scale, bias))
    if _are_bytes(a, b):
        result = contractions.float_dot(a, a_scale, a_zero_point, b, b_scale, b_zero_point, bias)
    elif halves.fit(a, b, a.shape[-1]):
        result = rounding.multiplied(halves.dot(a, a_zero_point, b, b_zero_point), a_scale, b_scale, bias)
    else:
        b = b.array if isinstance(b, PreparedMatrix) else b
        a_zero_point, b_zero_point = (rounding.with_rank(x, a.ndim) for x in (a_zero_point, b_zero_point))
        result = rounding.multiplied(wide.dot(a, a_zero_point, b, b_zero_point), a_scale, b_scale, bias)
    return rounding.rounded_to(result, dtype)
