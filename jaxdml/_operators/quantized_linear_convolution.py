"""DML_QUANTIZED_LINEAR_CONVOLUTION_OPERATOR_DESC."""

import jax

from jaxdml._arithmetic import contractions
from jaxdml._arithmetic.prepared import PreparedFilter
from jaxdml._directml.desc import OperatorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.pages.quantized_linear_convolution import QuantizedLinearConvolutionDesc
from jaxdml._operators.call import operator
from jaxdml._operators.convolutions import HINTS, PADDING_ADVICE, channelwise, describe_convolution, repacked_filter
from jaxdml._operators.descriptions import Given
from jaxdml.typing import Array, DType, PerDimension, Scale, ZeroPoint


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
    input: Array,
    input_scale: Scale,
    input_zero_point: ZeroPoint | None,
    filter: Array | PreparedFilter,
    filter_scale: Scale,
    filter_zero_point: ZeroPoint | None,
    bias: Array | None,
    output_scale: Scale,
    output_zero_point: ZeroPoint | None,
    *,
    strides: PerDimension = 1,
    dilations: PerDimension = 1,
    start_padding: PerDimension = 0,
    end_padding: PerDimension = 0,
    group_count: int = 1,
    output_dtype: DType | None = None,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> jax.Array:
    """Convolution of a quantized input with a quantized filter; the result is quantized, too.

    ``sum((input - input_zero_point) * (filter - filter_zero_point)) + bias`` is exact in int32, modulo 2**32. The sum
    is rounded to float32, multiplied by ``input_scale * filter_scale / output_scale``, and rounded to an integer, ties
    to even; then the zero point is added, and the result is clamped. Subnormal scales, and subnormal products and
    quotients of scales, count as 0. Padding has the value input_zero_point, which stands for real zero. As in
    DirectML's forward convolution, the filter is not flipped.

    Args:
      input: int8 or uint8 array [N, C, H, W] or [N, C, W].
      input_scale: number, or float32 array of one element.
      input_zero_point: integer, or array of one element of input's type; None means 0.
      filter: int8 or uint8 array [O, C / group_count, KH, KW] or [O, C / group_count, KW], or the result of
        `prepare_convolution_filter` for the same group_count.
      filter_scale: number, or float32 array, per output channel: [O] or [1, O, 1, 1].
      filter_zero_point: integer, or array of filter's type with a shape as for filter_scale; None means 0.
      bias: None, or int32 array [O] or [1, O, 1, 1], in units of input_scale * filter_scale.
      output_scale: number, or float32 array of one element.
      output_zero_point: integer, or array of one element of the output's type; None means 0.
      strides, dilations: at least 1; an integer, or one integer per spatial dimension.
      start_padding, end_padding: elements added before and after each spatial dimension; an integer, or one for each.
      group_count: the number of groups of input and output channels; C for a depthwise convolution.
      output_dtype: int8 or uint8. Default: the type of an output_zero_point array, else input's type.
      feature_level: the feature level that validates the call; see `FeatureLevel`.

    Returns:
      Array ``[N, O, *spatial]`` of the output type, where each spatial size is
      ``1 + (size + start + end - (1 + (kernel - 1) * dilation)) // stride``.

    Raises:
      DescError: if the feature level does not allow the call.

    Source: DirectML, DML_QUANTIZED_LINEAR_CONVOLUTION_OPERATOR_DESC, fields InputTensor to GroupCount,
    https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_quantized_linear_convolution_operator_desc
    """
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
        strides=strides,
        dilations=dilations,
        padding=tuple(zip(start_padding, end_padding, strict=True)),
        group_count=group_count,
    )
