"""DML_QUANTIZED_LINEAR_CONVOLUTION_OPERATOR_DESC."""

from typing import ClassVar

from jaxdml._directml.data_types import BYTES, FLOAT32, INT32
from jaxdml._directml.desc import OperatorDesc, TensorDesc, operator_desc
from jaxdml._directml.feature_levels import FeatureLevel, Rows, Same, Support
from jaxdml._directml.fields import INPUT, OUTPUT, count, counts, spatial_dimensions, tensor
from jaxdml._directml.messages import Remedy
from jaxdml._directml.page import Page
from jaxdml._directml.size_checks import Form, check_form, check_sizes, convolved_sizes


@operator_desc
class QuantizedLinearConvolutionDesc(OperatorDesc):
    """DML_QUANTIZED_LINEAR_CONVOLUTION_OPERATOR_DESC.

    Input is [N, C, H, W] or [N, C, W], the filter [O, C / group_count, *kernel], the output [N, O, ...]; strides say
    NHWC. Scales and zero points have one element, those of the filter also [1, O, 1, 1]; bias is [1, O, 1, 1]. Zero
    points and bias may be None, all else is required.

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
    rank, channels = len(output), output[1]
    ones = (1,) * (rank - 2)
    one = Form((1, 1, *ones), "one value")
    per_channel = Form((1, channels, *ones), f"one for each of the {channels} output channels")
    # Beside {1, C, 1, 1} the page's tables allow rank 1 from 5.2, which has room for nothing but {C};
    # and a 3-D convolution may write its parameters as the 4-D one does. At other ranks these sizes say something
    # else: {1, 1, 1, C} would be one for each column of the input.
    exact = [(channels,), (1, channels, 1, 1)]
    for name in ("Input", "Output"):
        unless = f"one for each channel is possible for the filter alone, not for the {name.lower()}"
        check_form(desc, f"{name}ScaleTensor", [one], unless=unless)
        check_form(desc, f"{name}ZeroPointTensor", [one], unless=unless)
    check_form(desc, "FilterScaleTensor", [one, per_channel], exact)
    check_form(desc, "FilterZeroPointTensor", [one, per_channel], exact)
    check_form(desc, "BiasTensor", [per_channel])
    check_sizes(desc, "OutputTensor", output, "the size that input, filter and options give")


def _steps(bias: TensorDesc) -> str | Remedy | None:
    if not bias.data_type.name.startswith("FLOAT"):
        return None
    advice = "it counts steps of input_scale * filter_scale: "
    return Remedy(
        advice + "divide by them, then jnp.rint and .astype(jnp.int32)", advice + "write data_type=DataType.INT32"
    )


def _stack(filter: TensorDesc) -> str | Remedy | None:
    if len(filter.sizes) <= 4:
        return None
    advice = "a stack of filters is no filter: "
    return Remedy(
        advice + "prepare it with jax.vmap(dml.prepare_convolution_filter), and convolve under jax.vmap",
        advice + "write a desc for one of them",
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
    remedies={("BiasTensor", "data_type"): _steps, ("FilterTensor", "dimension_count"): _stack},
)
