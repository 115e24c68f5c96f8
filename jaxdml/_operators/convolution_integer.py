"""DML_CONVOLUTION_INTEGER_OPERATOR_DESC."""

import jax
import numpy as np

from jaxdml._arithmetic import contractions
from jaxdml._arithmetic.prepared import PreparedFilter
from jaxdml._directml.desc import OperatorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.pages.convolution_integer import ConvolutionIntegerDesc
from jaxdml._operators.call import operator
from jaxdml._operators.convolutions import HINTS, PADDING_ADVICE, channelwise, describe_convolution, repacked_filter
from jaxdml._operators.descriptions import Given
from jaxdml.typing import Array, PerDimension, ZeroPoint


def _describe(given: Given) -> OperatorDesc:
    return describe_convolution(given, ConvolutionIntegerDesc, output_type=np.int32)


@operator(
    ConvolutionIntegerDesc,
    _describe,
    prepared={"filter": PreparedFilter},
    owned={"filter": repacked_filter},
    advice=PADDING_ADVICE,
    hints=HINTS,
)
def convolution_integer(
    input: Array,
    input_zero_point: ZeroPoint | None,
    filter: Array | PreparedFilter,
    filter_zero_point: ZeroPoint | None,
    *,
    strides: PerDimension = 1,
    dilations: PerDimension = 1,
    start_padding: PerDimension = 0,
    end_padding: PerDimension = 0,
    group_count: int = 1,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> jax.Array:
    """Convolution of a quantized input and filter, in int32.

    ``sum((input - input_zero_point) * (filter - filter_zero_point))``, exact modulo 2**32. The layout is NCHW, and the
    filter is not flipped. Padding has the value input_zero_point, which stands for real zero. DirectML's page does not
    define the value of padding; devices pad with input_zero_point, too.

    Args:
      input: int8 or uint8 array [N, C, H, W] or, from feature level 4_0 on, [N, C, W].
      input_zero_point: integer, or array of one element of input's type; None means 0.
      filter: int8 or uint8 array ``[O, C / group_count, *kernel]``, or the result of `prepare_convolution_filter`.
      filter_zero_point: integer, or array of filter's type, per output channel: [O] or [1, O, 1, 1]; None means 0.
      strides, dilations: at least 1; an integer, or one integer per spatial dimension.
      start_padding, end_padding: elements added before and after each spatial dimension; an integer, or one for each.
      group_count: the number of groups of input and output channels; C for a depthwise convolution.
      feature_level: the feature level that validates the call; see `FeatureLevel`.

    Returns:
      int32 array ``[N, O, *spatial]``, where each spatial size is
      ``1 + (size + start + end - (1 + (kernel - 1) * dilation)) // stride``.

    Raises:
      DescError: if the feature level does not allow the call.

    Source: DirectML, DML_CONVOLUTION_INTEGER_OPERATOR_DESC, fields InputTensor to GroupCount,
    https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_convolution_integer_operator_desc
    """
    return contractions.integer_conv(
        input,
        input_zero_point,
        filter,
        channelwise(filter_zero_point, input, filter),
        strides=strides,
        dilations=dilations,
        padding=tuple(zip(start_padding, end_padding, strict=True)),
        group_count=group_count,
    )
