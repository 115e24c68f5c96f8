"""DML_CONVOLUTION_INTEGER_OPERATOR_DESC."""

from collections.abc import Sequence

import chex
import numpy as np

from jaxdml._arithmetic import contractions
from jaxdml._arithmetic.prepared import PreparedFilter
from jaxdml._directml.desc import OperatorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.pages.convolution_integer import ConvolutionIntegerDesc
from jaxdml._operators.call import operator
from jaxdml._operators.convolutions import HINTS, PADDING_ADVICE, channelwise, describe_convolution, repacked_filter
from jaxdml._operators.descriptions import Given


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
    input: chex.Array,
    input_zero_point: chex.Numeric | None,
    filter: chex.Array | PreparedFilter,
    filter_zero_point: chex.Numeric | None,
    *,
    strides: int | Sequence[int] = 1,
    dilations: int | Sequence[int] = 1,
    start_padding: int | Sequence[int] = 0,
    end_padding: int | Sequence[int] = 0,
    group_count: int = 1,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> chex.Array:
    """Convolution of quantized input and filter, in int32.

    Filters are not flipped, channels come second. ``sum((input - input_zero_point) * (filter - filter_zero_point))``,
    exact modulo 2**32. A padded position counts as real zero, an element equal to input_zero_point; the page does not
    say it, devices do it.

    Args:
      input: int8 or uint8 array [N, C, H, W] or, from 4_0, [N, C, W].
      input_zero_point: of input's type, an integer or an array of one element; None is 0.
      filter: int8 or uint8 array ``[O, C / group_count, *kernel]``, or what `prepare_convolution_filter` made of it.
      filter_zero_point: of filter's type, an integer, or one for each output channel: [O] or [1, O, 1, 1]; None is 0.
      strides, dilations: at least 1; an integer, or a tuple with one for each spatial dimension.
      start_padding, end_padding: elements added before and after; an integer, or a tuple as above.
      group_count: input and output channels fall into that many groups; C of them make it depthwise.
      feature_level: the feature level whose rules are checked; see `FeatureLevel`.

    Returns:
      int32 array ``[N, O, *spatial]``, each spatial dimension
      ``1 + (size + start + end - (1 + (kernel - 1) * dilation)) // stride``.

    Raises:
      DescError: if the feature level does not allow the call; the message says why.

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
        padding=tuple(zip(start_padding, end_padding, strict=True)),  # type: ignore[arg-type] # tuples by now
        group_count=group_count,
    )
