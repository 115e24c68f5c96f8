"""DML_DYNAMIC_QUANTIZE_LINEAR_OPERATOR_DESC."""

from typing import ClassVar

from jaxdml._directml.data_types import BYTES, FLOAT32, FLOATS
from jaxdml._directml.desc import OperatorDesc, TensorDesc, operator_desc
from jaxdml._directml.feature_levels import FeatureLevel, Same, Support
from jaxdml._directml.fields import INPUT, OUTPUT, tensor
from jaxdml._directml.page import Page
from jaxdml._directml.size_checks import check_sizes


@operator_desc
class DynamicQuantizeLinearDesc(OperatorDesc):
    """DML_DYNAMIC_QUANTIZE_LINEAR_OPERATOR_DESC.

    OutputTensor has the sizes of InputTensor. OutputScaleTensor and OutputZeroPointTensor have one element and
    InputTensor's rank.

    Source: https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_dynamic_quantize_linear_operator_desc
    """

    operator: ClassVar[str] = "dynamic_quantize_linear"

    input_tensor: TensorDesc | None = tensor(INPUT)
    output_tensor: TensorDesc | None = tensor(OUTPUT)
    output_scale_tensor: TensorDesc | None = tensor(OUTPUT.scale_of("output_tensor"))
    output_zero_point_tensor: TensorDesc | None = tensor(OUTPUT.zero_point_of("output_tensor"))


def _check(desc: DynamicQuantizeLinearDesc) -> None:
    assert desc.input_tensor is not None
    for name in ("OutputScaleTensor", "OutputZeroPointTensor"):
        check_sizes(desc, name, (1,) * len(desc.input_tensor.sizes), "one value for the whole tensor")


ALL = ("InputTensor", "OutputTensor", "OutputScaleTensor", "OutputZeroPointTensor")
PAGE = Page(
    desc=DynamicQuantizeLinearDesc,
    support={
        FeatureLevel.LEVEL_4_0: {
            "InputTensor": Support((1, 8), FLOATS),
            "OutputTensor": Support((1, 8), BYTES),
            "OutputScaleTensor": Support((1, 8), FLOAT32),
            "OutputZeroPointTensor": Support((1, 8), BYTES),
        },
    },
    constraints=(
        Same("dimension_count", ALL),
        Same("sizes", ("InputTensor", "OutputTensor")),
        Same("data_type", ("OutputTensor", "OutputZeroPointTensor")),
    ),
    check=_check,
)
