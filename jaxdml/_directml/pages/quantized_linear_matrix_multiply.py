"""DML_QUANTIZED_LINEAR_MATRIX_MULTIPLY_OPERATOR_DESC."""

from typing import ClassVar

from jaxdml._directml.data_types import BYTES, FLOAT32
from jaxdml._directml.desc import OperatorDesc, TensorDesc, operator_desc
from jaxdml._directml.feature_levels import FeatureLevel, Rows, Same, Support
from jaxdml._directml.fields import INPUT, OUTPUT, tensor
from jaxdml._directml.page import Page
from jaxdml._directml.size_checks import check_product


@operator_desc
class QuantizedLinearMatrixMultiplyDesc(OperatorDesc):
    """DML_QUANTIZED_LINEAR_MATRIX_MULTIPLY_OPERATOR_DESC.

    ATensor is [..., M, K], BTensor [..., K, N], OutputTensor [..., M, N]. Scales and zero points have one element;
    those of A and the output may be per row, [1, 1, M, 1], and those of B per column, [1, 1, 1, N]. All scales and
    zero points have the same rank. Zero points may be None.

    Source: https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_quantized_linear_matrix_multiply_operator_desc
    """

    operator: ClassVar[str] = "quantized_linear_matrix_multiply"

    a_tensor: TensorDesc | None = tensor(INPUT, batch=-2)
    a_scale_tensor: TensorDesc | None = tensor(INPUT.scale_of("a_tensor"))
    a_zero_point_tensor: TensorDesc | None = tensor(INPUT.zero_point_of("a_tensor"))
    b_tensor: TensorDesc | None = tensor(INPUT, batch=-2)
    b_scale_tensor: TensorDesc | None = tensor(INPUT.scale_of("b_tensor"))
    b_zero_point_tensor: TensorDesc | None = tensor(INPUT.zero_point_of("b_tensor"))
    output_scale_tensor: TensorDesc | None = tensor(INPUT.scale_of("output_tensor"))
    output_zero_point_tensor: TensorDesc | None = tensor(INPUT.zero_point_of("output_tensor"))
    output_tensor: TensorDesc | None = tensor(OUTPUT, batch=-2)


def _rows(data: tuple[int, int], parameters: tuple[int, int]) -> Rows:
    scale, zero_point = Support(parameters, FLOAT32), Support(parameters, BYTES, optional=True)
    return {
        "ATensor": Support(data, BYTES),
        "AScaleTensor": scale,
        "AZeroPointTensor": zero_point,
        "BTensor": Support(data, BYTES),
        "BScaleTensor": scale,
        "BZeroPointTensor": zero_point,
        "OutputScaleTensor": scale,
        "OutputZeroPointTensor": zero_point,
        "OutputTensor": Support(data, BYTES),
    }


def _check(desc: QuantizedLinearMatrixMultiplyDesc) -> None:
    check_product(desc, of_rows=OF_A + OF_OUTPUT, of_columns=OF_B)


OF_A, OF_B, OF_OUTPUT = (tuple(f"{x}{kind}Tensor" for kind in ("Scale", "ZeroPoint")) for x in ("A", "B", "Output"))
PAGE = Page(
    desc=QuantizedLinearMatrixMultiplyDesc,
    support={
        FeatureLevel.LEVEL_2_1: _rows((4, 4), (4, 4)),
        FeatureLevel.LEVEL_4_0: _rows((2, 4), (1, 4)),
    },
    constraints=(
        Same("dimension_count", OF_A + OF_B + OF_OUTPUT),
        Same("dimension_count", ("ATensor", "BTensor", "OutputTensor")),
        Same("data_type", ("ATensor", "AZeroPointTensor")),
        Same("data_type", ("BTensor", "BZeroPointTensor")),
        Same("data_type", ("OutputTensor", "OutputZeroPointTensor")),
    ),
    check=_check,
    weights={"BTensor": -1},
)
