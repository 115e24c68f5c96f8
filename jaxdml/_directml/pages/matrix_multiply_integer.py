"""DML_MATRIX_MULTIPLY_INTEGER_OPERATOR_DESC."""

from typing import ClassVar

from jaxdml._directml.data_types import BYTES, INT32
from jaxdml._directml.desc import OperatorDesc, TensorDesc, operator_desc
from jaxdml._directml.feature_levels import FeatureLevel, Rows, Same, Support
from jaxdml._directml.fields import INPUT, OUTPUT, tensor
from jaxdml._directml.page import Page
from jaxdml._directml.size_checks import check_product


@operator_desc
class MatrixMultiplyIntegerDesc(OperatorDesc):
    """DML_MATRIX_MULTIPLY_INTEGER_OPERATOR_DESC.

    ATensor is [..., M, K], BTensor [..., K, N], OutputTensor [..., M, N]. Zero points have one element; A's may be
    per row, [1, 1, M, 1], and B's per column, [1, 1, 1, N]. Both zero points may be None.

    Source: https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_matrix_multiply_integer_operator_desc
    """

    operator: ClassVar[str] = "matrix_multiply_integer"

    a_tensor: TensorDesc | None = tensor(INPUT, batch=-2)
    a_zero_point_tensor: TensorDesc | None = tensor(INPUT.zero_point_of("a_tensor"))
    b_tensor: TensorDesc | None = tensor(INPUT, batch=-2)
    b_zero_point_tensor: TensorDesc | None = tensor(INPUT.zero_point_of("b_tensor"))
    output_tensor: TensorDesc | None = tensor(OUTPUT, batch=-2)


def _rows(data: tuple[int, int], of_a: tuple[int, int], of_b: tuple[int, int]) -> Rows:
    return {
        "ATensor": Support(data, BYTES),
        "AZeroPointTensor": Support(of_a, BYTES, optional=True),
        "BTensor": Support(data, BYTES),
        "BZeroPointTensor": Support(of_b, BYTES, optional=True),
        "OutputTensor": Support(data, INT32),
    }


def _check(desc: MatrixMultiplyIntegerDesc) -> None:
    check_product(desc, of_rows=("AZeroPointTensor",), of_columns=("BZeroPointTensor",))


PAGE = Page(
    desc=MatrixMultiplyIntegerDesc,
    support={
        FeatureLevel.LEVEL_2_1: _rows((4, 4), of_a=(4, 4), of_b=(4, 4)),
        FeatureLevel.LEVEL_4_0: _rows((2, 4), of_a=(1, 4), of_b=(2, 4)),
        FeatureLevel.LEVEL_5_2: _rows((2, 4), of_a=(1, 4), of_b=(1, 4)),
    },
    constraints=(
        Same("dimension_count", ("ATensor", "BTensor", "OutputTensor")),
        Same("data_type", ("ATensor", "AZeroPointTensor")),
        Same("data_type", ("BTensor", "BZeroPointTensor")),
    ),
    check=_check,
    weights={"BTensor": -1},
)
