"""DML_CONVOLUTION_INTEGER_OPERATOR_DESC."""

from typing import ClassVar

from jaxdml._directml.data_types import BYTES, INT32
from jaxdml._directml.desc import OperatorDesc, TensorDesc, operator_desc
from jaxdml._directml.feature_levels import FeatureLevel, Rows, Same, Support
from jaxdml._directml.fields import INPUT, OUTPUT, count, counts, spatial_dimensions, tensor
from jaxdml._directml.page import Page
from jaxdml._directml.remedies import stack_of_filters, too_many_dimensions
from jaxdml._directml.size_checks import check_sizes
from jaxdml._directml.window_checks import check_of_filter, check_of_image, convolved_sizes


@operator_desc
class ConvolutionIntegerDesc(OperatorDesc):
    """DML_CONVOLUTION_INTEGER_OPERATOR_DESC.

    InputTensor is [N, C, H, W] or [N, C, W], FilterTensor ``[O, C / group_count, *kernel]``, OutputTensor [N, O, ...].
    Zero points have one element; FilterZeroPointTensor may also be [1, O, 1, 1]. Both zero points may be None.

    Source: https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_convolution_integer_operator_desc
    """

    operator: ClassVar[str] = "convolution_integer"

    input_tensor: TensorDesc | None = tensor(INPUT, batch=1)
    input_zero_point_tensor: TensorDesc | None = tensor(INPUT.zero_point_of("input_tensor"))
    filter_tensor: TensorDesc | None = tensor(INPUT)
    filter_zero_point_tensor: TensorDesc | None = tensor(INPUT.zero_point_of("filter_tensor"))
    output_tensor: TensorDesc | None = tensor(OUTPUT, batch=1)
    dimension_count: int | None = spatial_dimensions()
    strides: tuple[int, ...] | None = counts(1)
    dilations: tuple[int, ...] | None = counts(1)
    start_padding: tuple[int, ...] | None = counts(0, pads="input_tensor")
    end_padding: tuple[int, ...] | None = counts(0, pads="input_tensor")
    group_count: int | None = count(1, "divides the channels")


def _rows(data: tuple[int, int], zero_points: tuple[int, int]) -> Rows:
    return {
        "InputTensor": Support(data, BYTES),
        "InputZeroPointTensor": Support(zero_points, BYTES, optional=True),
        "FilterTensor": Support(data, BYTES),
        "FilterZeroPointTensor": Support(zero_points, BYTES, optional=True),
        "OutputTensor": Support(data, INT32),
    }


def _check(desc: ConvolutionIntegerDesc) -> None:
    output = convolved_sizes(desc)
    check_of_image(desc, "Input", ("ZeroPoint",), len(output))
    check_of_filter(desc, ("ZeroPoint",), output)
    check_sizes(desc, "OutputTensor", output, "the size that input, filter and options give")


PAGE = Page(
    desc=ConvolutionIntegerDesc,
    support={
        FeatureLevel.LEVEL_2_1: _rows((4, 4), (4, 4)),
        FeatureLevel.LEVEL_4_0: _rows((3, 4), (1, 4)),
    },
    constraints=(
        Same("dimension_count", ("InputZeroPointTensor", "FilterZeroPointTensor")),
        Same("dimension_count", ("InputTensor", "FilterTensor", "OutputTensor")),
        Same("data_type", ("InputTensor", "InputZeroPointTensor")),
        Same("data_type", ("FilterTensor", "FilterZeroPointTensor")),
    ),
    check=_check,
    remedies={
        ("FilterTensor", "dimension_count"): stack_of_filters,
        ("InputTensor", "dimension_count"): too_many_dimensions,
    },
    weights={"FilterTensor": 0},
)
