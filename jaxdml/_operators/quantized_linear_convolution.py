"""DML_QUANTIZED_LINEAR_CONVOLUTION_OPERATOR_DESC."""

from typing import Any

import chex

from jaxdml._arithmetic import contractions
from jaxdml._arithmetic.prepared import PreparedFilter
from jaxdml._directml.desc import OperatorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.pages.quantized_linear_convolution import QuantizedLinearConvolutionDesc
from jaxdml._operators.call import operator
from jaxdml._operators.convolutions import HINTS, PADDING_ADVICE, channelwise, describe_convolution, repacked_filter
from jaxdml._operators.descriptions import Given


def _describe(given: Given) -> OperatorDesc:
    return describe_convolution(given, QuantizedLinearConvolutionDesc)


@operator(
    QuantizedLinearConvolutionDesc,
    _describe,
    prepared={"filter": PreparedFilter},
    owned={"filter": repacked_filter},
    advice=PADDING_ADVICE,
    hints=HINTS,
)
def quantized_linear_convolution(
    input: chex.Array,
    input_scale: chex.Numeric,
    input_zero_point: chex.Numeric | None,
    filter: chex.Array | PreparedFilter,
    filter_scale: chex.Numeric,
    filter_zero_point: chex.Numeric | None,
    bias: chex.Array | None,
    output_scale: chex.Numeric,
    output_zero_point: chex.Numeric | None,
    *,
    strides: int | tuple[int, ...] = 1,
    dilations: int | tuple[int, ...] = 1,
    start_padding: int | tuple[int, ...] = 0,
    end_padding: int | tuple[int, ...] = 0,
    group_count: int = 1,
    output_dtype: chex.ArrayDType | None = None,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> chex.Array:
    """Convolution of a quantized input with a quantized filter, quantized.

    ``sum((input - input_zero_point) * (filter - filter_zero_point)) + bias`` is exact in int32, modulo 2**32; padding
    is real zero, that is input_zero_point. The sum is rounded to float32, times ``input_scale * filter_scale /
    output_scale``, rounded to an integer, ties to even; then the zero point is added, then the result clamped.
    Subnormal scales, products and quotients of scales count as 0. As in DirectML's forward convolution the filter is
    not flipped.

    Args:
      input: int8 or uint8 array [N, C, H, W] or [N, C, W].
      input_scale: float32, a number or an array of one element.
      input_zero_point: of input's type, an integer or an array of one element; None is 0.
      filter: int8 or uint8 array [O, C / group_count, KH, KW] or [O, C / group_count, KW], or what
        `prepare_convolution_filter` made of it, for the same group_count.
      filter_scale: float32, a number, or one for each output channel: [O] or [1, O, 1, 1].
      filter_zero_point: of filter's type, an integer, or one for each output channel; None is 0.
      bias: None or an int32 array [O] or [1, O, 1, 1], in units of input_scale * filter_scale.
      output_scale: float32, a number or an array of one element.
      output_zero_point: of the output's type, an integer or an array of one element; None is 0.
      strides, dilations: at least 1; an integer, or a tuple with one for each spatial dimension.
      start_padding, end_padding: elements added before and after; an integer, or a tuple as above.
      group_count: input and output channels fall into that many groups; C of them make it depthwise.
      output_dtype: int8 or uint8. The default is output_zero_point's type, or input's if that is None or an integer.
      feature_level: the feature level whose rules are checked; see `FeatureLevel`.

    Returns:
      Array ``[N, O, *spatial]`` of the output type, each spatial dimension
      ``1 + (size + start + end - (1 + (kernel - 1) * dilation)) // stride``.

    Raises:
      DescError: if the feature level does not allow the call; the message says why.

    Source: DirectML, DML_QUANTIZED_LINEAR_CONVOLUTION_OPERATOR_DESC, fields InputTensor to GroupCount,
    https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_quantized_linear_convolution_operator_desc
    """
    each: dict[str, Any] = {"strides": strides, "dilations": dilations, "start": start_padding, "end": end_padding}
    return contractions.requantized_conv(
        input,
        input_scale,
        input_zero_point,
        filter,
        channelwise(filter_scale, input, filter),
        channelwise(filter_zero_point, input, filter),
        channelwise(bias, input, filter),
        output_scale,
        output_zero_point,
        output_dtype=output_dtype,
        strides=each["strides"],
        dilations=each["dilations"],
        padding=tuple(zip(each["start"], each["end"], strict=True)),
        group_count=group_count,
    )
