"""DML_QUANTIZED_LINEAR_CONVOLUTION_OPERATOR_DESC."""

from typing import ClassVar

from jaxdml._directml.data_types import BYTES, FLOAT32, INT32
from jaxdml._directml.desc import OperatorDesc, TensorDesc, operator_desc
from jaxdml._directml.feature_levels import FeatureLevel, Rows, Same, Support
from jaxdml._directml.fields import INPUT, OUTPUT, count, counts, spatial_dimensions, tensor
from jaxdml._directml.messages import Remedy
from jaxdml._directml.page import Page
from jaxdml._directml.remedies import outputs_first, stack_of_filters
from jaxdml._directml.size_checks import check_form, check_sizes
from jaxdml._directml.window_checks import check_of_filter, check_of_image, convolved_sizes


@operator_desc
class QuantizedLinearConvolutionDesc(OperatorDesc):
    """DML_QUANTIZED_LINEAR_CONVOLUTION_OPERATOR_DESC.

    InputTensor is [N, C, H, W] or [N, C, W], FilterTensor ``[O, C / group_count, *kernel]``, OutputTensor [N, O, ...];
    strides can describe NHWC data. Scales and zero points have one element; the filter's may also be
    [1, O, 1, 1]. BiasTensor is [1, O, 1, 1]. Zero points and bias may be None.

    Source: https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_quantized_linear_convolution_operator_desc
    """

    operator: ClassVar[str] = "quantized_linear_convolution"

    input_tensor: TensorDesc | None = tensor(INPUT, batch=1)
    input_scale_tensor: TensorDesc | None = tensor(INPUT.scale_of("input_tensor"))
    input_zero_point_tensor: TensorDesc | None = tensor(INPUT.zero_point_of("input_tensor"))
    filter_tensor: TensorDesc | None = tensor(INPUT)
    filter_scale_tensor: TensorDesc | None = tensor(INPUT.scale_of("filter_tensor"))
    filter_zero_point_tensor: TensorDesc | None = tensor(INPUT.zero_point_of("filter_tensor"))
    bias_tensor: TensorDesc | None = tensor(INPUT)
    output_scale_tensor: TensorDesc | None = tensor(INPUT.scale_of("output_tensor"))
    output_zero_point_tensor: TensorDesc | None = tensor(INPUT.zero_point_of("output_tensor"))
    output_tensor: TensorDesc | None = tensor(OUTPUT, batch=1)
    dimension_count: int | None = spatial_dimensions()
    strides: tuple[int, ...] | None = counts(1)
    dilations: tuple[int, ...] | None = counts(1)
    start_padding: tuple[int, ...] | None = counts(0, pads="input_tensor")
    end_padding: tuple[int, ...] | None = counts(0, pads="input_tensor")
    group_count: int | None = count(1, "divides the channels")


def _rows(data: tuple[int, int], parameters: tuple[int, int], filter_scale: tuple[int, int]) -> Rows:
    scale, zero_point = Support(parameters, FLOAT32), Support(parameters, BYTES, optional=True)
    return {
        "InputTensor": Support(data, BYTES),
        "InputScaleTensor": scale,
        "InputZeroPointTensor": zero_point,
        "FilterTensor": Support(data, BYTES),
        "FilterScaleTensor": Support(filter_scale, FLOAT32),
        "FilterZeroPointTensor": zero_point,
        "BiasTensor": Support(data, INT32, optional=True),
        "OutputScaleTensor": scale,
        "OutputZeroPointTensor": zero_point,
        "OutputTensor": Support(data, BYTES),
    }


def _check(desc: QuantizedLinearConvolutionDesc) -> None:
    output = convolved_sizes(desc)
    for name in ("Input", "Output"):
        check_of_image(desc, name, ("Scale", "ZeroPoint"), len(output))
    per_channel = check_of_filter(desc, ("Scale", "ZeroPoint"), output)
    assert desc.filter_tensor is not None
    of_channels = Remedy(f"give bias the shape [{output[1]}]", f"give it {output[1]} values")
    advice = outputs_first(desc.filter_tensor.sizes, desc.bias_tensor) or of_channels
    check_form(desc, "BiasTensor", [per_channel], otherwise=advice)
    check_sizes(desc, "OutputTensor", output, "the size that input, filter and options give")


def _steps(bias: TensorDesc) -> str | Remedy | None:
    if not bias.data_type.name.startswith("FLOAT"):
        return None
    advice = "a bias is in units of input_scale * filter_scale: "
    return Remedy(
        advice + "write jaxdml.ptq.quantize_bias(bias, input_scale, filter_scale)",
        advice + "write data_type=DataType.INT32",
    )


PAGE = Page(
    desc=QuantizedLinearConvolutionDesc,
    support={
        FeatureLevel.LEVEL_2_1: _rows((4, 4), (4, 4), filter_scale=(4, 4)),
        FeatureLevel.LEVEL_4_0: _rows((3, 4), (1, 4), filter_scale=(3, 4)),
        FeatureLevel.LEVEL_5_2: _rows((3, 4), (1, 4), filter_scale=(1, 4)),
    },
    constraints=(
        Same("dimension_count", ("InputTensor", "FilterTensor", "BiasTensor", "OutputTensor")),
        Same("data_type", ("InputTensor", "InputZeroPointTensor")),
        Same("data_type", ("FilterTensor", "FilterZeroPointTensor")),
        Same("data_type", ("OutputTensor", "OutputZeroPointTensor")),
    ),
    check=_check,
    remedies={("BiasTensor", "data_type"): _steps, ("FilterTensor", "dimension_count"): stack_of_filters},
    weights={"FilterTensor": 0},
)
