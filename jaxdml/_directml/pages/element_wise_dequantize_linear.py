"""DML_ELEMENT_WISE_DEQUANTIZE_LINEAR_OPERATOR_DESC."""

from typing import ClassVar

from jaxdml._directml.data_types import FLOAT32, FLOATS, INTEGERS, UINT8, DataType
from jaxdml._directml.desc import OperatorDesc, TensorDesc, operator_desc
from jaxdml._directml.feature_levels import FeatureLevel, Rows, Same, Support
from jaxdml._directml.fields import INPUT, OUTPUT, tensor
from jaxdml._directml.messages import Remedy
from jaxdml._directml.page import Page


@operator_desc
class ElementWiseDequantizeLinearDesc(OperatorDesc):
    """DML_ELEMENT_WISE_DEQUANTIZE_LINEAR_OPERATOR_DESC.

    All tensors have the same sizes; strides of 0 repeat a scale or zero point. ZeroPointTensor is optional from 6_2 on.

    Source: https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_element_wise_dequantize_linear_operator_desc
    """

    operator: ClassVar[str] = "element_wise_dequantize_linear"

    input_tensor: TensorDesc | None = tensor(INPUT)
    scale_tensor: TensorDesc | None = tensor(INPUT.scale_of("input_tensor"))
    zero_point_tensor: TensorDesc | None = tensor(INPUT.zero_point_of("input_tensor"))
    output_tensor: TensorDesc | None = tensor(OUTPUT)


def _rows(
    counts: tuple[int, int], inputs: tuple[DataType, ...], floats: tuple[DataType, ...], *, optional: bool = False
) -> Rows:
    return {
        "InputTensor": Support(counts, inputs),
        "ScaleTensor": Support(counts, floats),
        "ZeroPointTensor": Support(counts, inputs, optional),
        "OutputTensor": Support(counts, floats),
    }


def _of_four_bits(input: TensorDesc) -> Remedy | None:
    if not input.data_type.is_packed:
        return None
    return Remedy("jaxdml.dequantize takes 4-bit types", "DML_OPERATOR_DEQUANTIZE takes 4-bit types")


ALL = ("InputTensor", "OutputTensor", "ScaleTensor", "ZeroPointTensor")
PAGE = Page(
    desc=ElementWiseDequantizeLinearDesc,
    support={
        FeatureLevel.LEVEL_1_0: _rows((4, 4), UINT8, FLOAT32),
        FeatureLevel.LEVEL_2_1: _rows((4, 4), INTEGERS, FLOAT32),
        FeatureLevel.LEVEL_3_0: _rows((1, 8), INTEGERS, FLOAT32),
        FeatureLevel.LEVEL_6_0: _rows((1, 8), INTEGERS, FLOATS),
        FeatureLevel.LEVEL_6_2: _rows((1, 8), INTEGERS, FLOATS, optional=True),
    },
    constraints=(
        Same("dimension_count", ALL),
        Same("sizes", ALL),
        Same("data_type", ("InputTensor", "ZeroPointTensor")),
        Same("data_type", ("OutputTensor", "ScaleTensor")),
    ),
    remedies={("InputTensor", "data_type"): _of_four_bits},
    converts=("integer", "float"),
)
