"""DML_ELEMENT_WISE_QUANTIZE_LINEAR_OPERATOR_DESC."""

from typing import Any, ClassVar

from jaxdml._directml.data_types import BYTES, FLOAT32, FLOATS, INT32, UINT8, WORDS, DataType
from jaxdml._directml.desc import OperatorDesc, TensorDesc, operator_desc
from jaxdml._directml.feature_levels import FeatureLevel, Rows, Same, Support
from jaxdml._directml.fields import INPUT, OUTPUT, tensor
from jaxdml._directml.messages import RuleError
from jaxdml._directml.page import Page
from jaxdml._directml.remedies import cast


@operator_desc
class ElementWiseQuantizeLinearDesc(OperatorDesc):
    """DML_ELEMENT_WISE_QUANTIZE_LINEAR_OPERATOR_DESC.

    All tensors have the same sizes; strides of 0 repeat a scale or zero point. ZeroPointTensor is optional from 6_2 on.

    Source: https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_element_wise_quantize_linear_operator_desc
    """

    operator: ClassVar[str] = "element_wise_quantize_linear"

    input_tensor: TensorDesc | None = tensor(INPUT)
    scale_tensor: TensorDesc | None = tensor(INPUT.scale_of("output_tensor"))
    zero_point_tensor: TensorDesc | None = tensor(INPUT.zero_point_of("output_tensor"))
    output_tensor: TensorDesc | None = tensor(OUTPUT)


def _rows(
    counts: tuple[int, int], inputs: tuple[DataType, ...], scales: tuple[DataType, ...],
    outputs: tuple[DataType, ...], *, optional: bool = False,
) -> Rows:  # fmt: skip
    return {
        "InputTensor": Support(counts, inputs),
        "ScaleTensor": Support(counts, scales),
        "ZeroPointTensor": Support(counts, outputs, optional),
        "OutputTensor": Support(counts, outputs),
    }


def _check(desc: ElementWiseQuantizeLinearDesc) -> None:
    """Checks that the scale has the input's type, or FLOAT32 for an INT32 input, as the page's text says."""
    assert desc.input_tensor is not None
    assert desc.scale_tensor is not None
    data, scale = desc.input_tensor.data_type, desc.scale_tensor.data_type
    expected = DataType.FLOAT32 if data == DataType.INT32 else data
    if scale != expected:
        text = f"has data type {scale.name}, expected {expected.name} for an InputTensor of {data.name}"
        facts: dict[str, Any] = {"expected": expected, "received": scale}
        raise RuleError(desc.operator, "ScaleTensor", "data_type", text, cast("scale", expected), **facts)


ALL = ("InputTensor", "OutputTensor", "ScaleTensor", "ZeroPointTensor")
PAGE = Page(
    desc=ElementWiseQuantizeLinearDesc,
    support={
        FeatureLevel.LEVEL_1_0: _rows((4, 4), FLOAT32, FLOAT32, UINT8),
        FeatureLevel.LEVEL_2_1: _rows((4, 4), FLOAT32 + INT32, FLOAT32, BYTES),
        FeatureLevel.LEVEL_3_0: _rows((1, 8), FLOAT32 + INT32, FLOAT32, BYTES),
        FeatureLevel.LEVEL_6_0: _rows((1, 8), FLOATS + INT32, FLOATS, BYTES),
        FeatureLevel.LEVEL_6_2: _rows((1, 8), FLOATS + INT32, FLOATS, BYTES, optional=True),
        # The page has no 16-bit outputs, although DEQUANTIZE_LINEAR takes 16-bit inputs.
        FeatureLevel.JAXDML: _rows((1, 8), FLOATS + INT32, FLOATS, WORDS, optional=True),
    },
    constraints=(
        Same("dimension_count", ALL),
        Same("sizes", ALL),
        Same("data_type", ("OutputTensor", "ZeroPointTensor")),
    ),
    check=_check,
    converts=("float", "integer"),
)
