"""DML_MATRIX_MULTIPLY_INTEGER_TO_FLOAT_OPERATOR_DESC."""

from typing import ClassVar

from jaxdml._directml.data_types import FLOATS, INTEGERS
from jaxdml._directml.desc import OperatorDesc, TensorDesc, operator_desc
from jaxdml._directml.feature_levels import FeatureLevel, Same, Support
from jaxdml._directml.fields import INPUT, OUTPUT, tensor
from jaxdml._directml.messages import Remedy
from jaxdml._directml.page import Page
from jaxdml._directml.size_checks import check_product


@operator_desc
class MatrixMultiplyIntegerToFloatDesc(OperatorDesc):
    """DML_MATRIX_MULTIPLY_INTEGER_TO_FLOAT_OPERATOR_DESC.

    ATensor is [..., M, K], BTensor [..., K, N], BiasTensor and OutputTensor [..., M, N]. Scales and zero points have
    one element; A's may be per row, [1, 1, M, 1], and B's per column, [1, 1, 1, N]. All scales and zero points
    have the same rank. Zero points and bias may be None. The page also lists OutputScaleTensor and
    OutputZeroPointTensor, which directml.h does not have.

    Source: https://learn.microsoft.com/windows/ai/directml/api/ns-directml-dml_matrix_multiply_integer_to_float_operator_desc
    """

    operator: ClassVar[str] = "matrix_multiply_integer_to_float"

    a_tensor: TensorDesc | None = tensor(INPUT, batch=-2)
    a_scale_tensor: TensorDesc | None = tensor(INPUT.scale_of("a_tensor"))
    a_zero_point_tensor: TensorDesc | None = tensor(INPUT.zero_point_of("a_tensor"))
    b_tensor: TensorDesc | None = tensor(INPUT, batch=-2)
    b_scale_tensor: TensorDesc | None = tensor(INPUT.scale_of("b_tensor"))
    b_zero_point_tensor: TensorDesc | None = tensor(INPUT.zero_point_of("b_tensor"))
    bias_tensor: TensorDesc | None = tensor(INPUT, batch=-2)
    output_tensor: TensorDesc | None = tensor(OUTPUT, batch=-2)


def _check(desc: MatrixMultiplyIntegerToFloatDesc) -> None:
    of_rows, of_columns = (tuple(f"{x}{kind}Tensor" for kind in ("Scale", "ZeroPoint")) for x in "AB")
    check_product(desc, of_rows=of_rows, of_columns=of_columns)


def _values_of_bias(bias: TensorDesc) -> Remedy:
    in_desc = "write the output's sizes, and strides of 0 where values are repeated"
    return Remedy("give bias one value for each column, or sizes that broadcast to the output's", in_desc)


DATA, PARAMETER = (2, 4), (1, 4)
SCALE, ZERO_POINT = Support(PARAMETER, FLOATS), Support(PARAMETER, INTEGERS, optional=True)
PAGE = Page(
    desc=MatrixMultiplyIntegerToFloatDesc,
    support={
        FeatureLevel.LEVEL_6_2: {
            "ATensor": Support(DATA, INTEGERS),
            "AScaleTensor": SCALE,
            "AZeroPointTensor": ZERO_POINT,
            "BTensor": Support(DATA, INTEGERS),
            "BScaleTensor": SCALE,
            "BZeroPointTensor": ZERO_POINT,
            "BiasTensor": Support(DATA, FLOATS, optional=True),
            "OutputTensor": Support(DATA, FLOATS),
        },
    },
    constraints=(
        Same("dimension_count", ("AScaleTensor", "AZeroPointTensor", "BScaleTensor", "BZeroPointTensor")),
        Same("dimension_count", ("ATensor", "BTensor", "BiasTensor", "OutputTensor")),
        Same("sizes", ("OutputTensor", "BiasTensor")),
        # The page requires one type for A, B and both zero points. Devices accept different types for A and B, and ONNX
        # Runtime's tests of DirectML rely on that. So each tensor must share a type only with its own zero point.
        Same("data_type", ("ATensor", "AZeroPointTensor")),
        Same("data_type", ("BTensor", "BZeroPointTensor")),
        Same("data_type", ("AScaleTensor", "BScaleTensor", "BiasTensor", "OutputTensor")),
    ),
    check=_check,
    remedies={("BiasTensor", "same_sizes"): _values_of_bias},
    weights={"BTensor": -1},
)
