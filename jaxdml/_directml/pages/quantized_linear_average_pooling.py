"""DML_QUANTIZED_LINEAR_AVERAGE_POOLING_OPERATOR_DESC."""

from typing import ClassVar

from jaxdml._directml.data_types import BYTES, FLOAT32
from jaxdml._directml.desc import OperatorDesc, TensorDesc, operator_desc
from jaxdml._directml.feature_levels import FeatureLevel, Same, Support
from jaxdml._directml.fields import INPUT, OUTPUT, boolean, counts, spatial_dimensions, tensor
from jaxdml._directml.page import Page
from jaxdml._directml.size_checks import Form, check_form, check_sizes
from jaxdml._directml.window_checks import check_windows_see_input, pooled_sizes


@operator_desc
class QuantizedLinearAveragePoolingDesc(OperatorDesc):
    """DML_QUANTIZED_LINEAR_AVERAGE_POOLING_OPERATOR_DESC.

    InputTensor and OutputTensor are [N, C, H, W] or [N, C, D, H, W]. Scales and zero points have one element, or one
    for each channel, [1, C, 1, 1]. Zero points may be None. The five lists have one number for each spatial dimension.

    Source: https://learn.microsoft.com/windows/ai/directml/api/ns-directml-dml_quantized_linear_average_pooling_operator_desc
    """

    operator: ClassVar[str] = "quantized_linear_average_pooling"

    input_tensor: TensorDesc | None = tensor(INPUT)
    input_scale_tensor: TensorDesc | None = tensor(INPUT.scale_of("input_tensor"))
    input_zero_point_tensor: TensorDesc | None = tensor(INPUT.zero_point_of("input_tensor"))
    output_scale_tensor: TensorDesc | None = tensor(INPUT.scale_of("output_tensor"))
    output_zero_point_tensor: TensorDesc | None = tensor(INPUT.zero_point_of("output_tensor"))
    output_tensor: TensorDesc | None = tensor(OUTPUT)
    dimension_count: int | None = spatial_dimensions()
    strides: tuple[int, ...] | None = counts(1)
    window_size: tuple[int, ...] | None = counts(1, may_be_symbolic=True)
    start_padding: tuple[int, ...] | None = counts(0, pads="input_tensor")
    end_padding: tuple[int, ...] | None = counts(0, pads="input_tensor")
    dilations: tuple[int, ...] | None = counts(1)
    include_padding: bool | None = boolean()


def _check(desc: QuantizedLinearAveragePoolingDesc) -> None:
    output = pooled_sizes(desc)
    channels, ones = output[1], (1,) * (len(output) - 2)
    forms = [Form((1, 1, *ones), "one value"), Form((1, channels, *ones), f"one for each of the {channels} channels")]
    for name in ("InputScaleTensor", "InputZeroPointTensor", "OutputScaleTensor", "OutputZeroPointTensor"):
        check_form(desc, name, forms, exact=[(1, channels, 1, 1)])  # the page allows {1, C, 1, 1} for 5-D input too
    check_sizes(desc, "OutputTensor", output, "the size that input and options give")
    if not desc.include_padding:
        check_windows_see_input(desc)


DATA, SCALE, ZERO_POINT = Support((4, 5), BYTES), Support((1, 5), FLOAT32), Support((1, 5), BYTES, optional=True)
PAGE = Page(
    desc=QuantizedLinearAveragePoolingDesc,
    support={
        FeatureLevel.LEVEL_6_2: {
            "InputTensor": DATA,
            "InputScaleTensor": SCALE,
            "InputZeroPointTensor": ZERO_POINT,
            "OutputScaleTensor": SCALE,
            "OutputZeroPointTensor": ZERO_POINT,
            "OutputTensor": DATA,
        },
    },
    constraints=(
        Same("dimension_count", ("InputTensor", "OutputTensor")),
        Same("data_type", ("InputTensor", "InputZeroPointTensor")),
        Same("data_type", ("OutputTensor", "OutputZeroPointTensor")),
    ),
    check=_check,
)
