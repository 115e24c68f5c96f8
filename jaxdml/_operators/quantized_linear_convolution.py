"""DML_QUANTIZED_LINEAR_CONVOLUTION_OPERATOR_DESC."""

import math
from typing import Any

import chex
from jax import lax

from jaxdml._arithmetic import contractions
from jaxdml._arithmetic.prepared import PreparedFilter
from jaxdml._directml.desc import OperatorDesc, TensorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.messages import broken
from jaxdml._directml.pages.quantized_linear_convolution import QuantizedLinearConvolutionDesc
from jaxdml._directml.tensor_rules import is_uint
from jaxdml._operators.call import operator
from jaxdml._operators.descriptions import Given, parameter_desc, tensor_desc
from jaxdml._operators.prepare import prepare_convolution_filter
from jaxdml._shapes import Shape, output_extent, per_channel

OPTIONS = ("strides", "dilations", "start_padding", "end_padding")


def _describe(given: Given) -> OperatorDesc:
    input, filter, groups = given["input"], given["filter"], given["group_count"]
    if isinstance(filter, PreparedFilter) and filter.group_count != groups:
        text = f"was prepared for group_count {filter.group_count}, the call has {groups}; prepare it with that"
        facts = {"expected": groups, "received": filter.group_count}
        raise broken(QuantizedLinearConvolutionDesc.operator, "FilterTensor", "group_count", text, **facts)
    channels = filter.shape[0] if filter.ndim else 0

    def form(field: str, array: Any) -> TensorDesc:
        if field in ("input_tensor", "filter_tensor"):
            return tensor_desc(array)
        is_of_filter = field in ("filter_scale_tensor", "filter_zero_point_tensor", "bias_tensor")
        return parameter_desc(array, input.ndim, channels if is_of_filter else None)

    output = _output_shape(input.shape, filter.shape, *(given[name] for name in OPTIONS))
    return given.desc(QuantizedLinearConvolutionDesc, output=output, form=form, dimension_count=input.ndim - 2)


def _output_shape(
    input: Shape, filter: Shape, strides: Shape, dilations: Shape, start_padding: Shape, end_padding: Shape
) -> Shape:
    """The output's shape; input's where the arguments make none, for validate to say what is wrong with them."""
    spatial = len(input) - 2
    options = (strides, dilations, start_padding, end_padding)
    if spatial < 1 or len(filter) != len(input) or any(len(option) != spatial for option in options) or 0 in strides:
        return input
    if not all(is_uint(value) for option in options for value in option):
        return input
    extents = zip(input[2:], filter[2:], *options, strict=True)
    return (input[0], filter[0], *(max(output_extent(*extent), 1) for extent in extents))


def _same(given: Given, word: str) -> str:
    """The padding that a word stands for elsewhere, in numbers."""
    is_same = word.upper() in ("SAME", "SAME_UPPER", "SAME_LOWER")
    if not is_same or given["filter"].ndim != given["input"].ndim:
        return "it has no words: write 0 for what is VALID elsewhere"
    start, end = [], []
    strides, dilations = given["strides"], given["dilations"]
    strides, dilations = (
        option if isinstance(option, tuple) else (option,) * (given["input"].ndim - 2)
        for option in (strides, dilations)
    )
    sizes = zip(given["input"].shape[2:], given["filter"].shape[2:], strides, dilations, strict=False)
    for size, kernel, stride, dilation in sizes:
        reach = (math.ceil(size / max(stride, 1)) - 1) * stride + 1 + (kernel - 1) * dilation
        padding = max(reach - size, 0)
        start.append(padding // 2)
        end.append(padding - padding // 2)
    if word.upper() == "SAME_LOWER":
        start, end = end, start
    numbers = f"start_padding={tuple(start)}, end_padding={tuple(end)}"
    return f"it has no words: what is {word.upper()} elsewhere is {numbers} here"


def _repacked(filter: Any, desc: Any) -> PreparedFilter:
    return prepare_convolution_filter(filter, group_count=desc.group_count)


@operator(
    QuantizedLinearConvolutionDesc,
    _describe,
    prepared={"filter": PreparedFilter},
    owned={"filter": _repacked},
    advice={"start_padding": _same, "end_padding": _same},
    hints={"padding": "write start_padding, what comes before each dimension, and end_padding, what comes after"},
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
    is real zero, that is input_zero_point. It is rounded to float32, times ``input_scale * filter_scale /
    output_scale``, rounded to an integer, ties to even; then the zero point is added, then the result clamped.
    Subnormal scales, products and quotients of scales count as 0. As in DirectML's forward convolution the filter is
    not flipped.

    Args:
      input: int8 or uint8 array [N, C, H, W] or [N, C, W].
      filter: int8 or uint8 array [O, C / group_count, KH, KW] or [O, C / group_count, KW], or what
        `prepare_convolution_filter` made of it, for the same group_count.
      input_scale, output_scale: float32, a number or an array of one element.
      filter_scale: float32, a number, or one for each output channel: [O] or [1, O, 1, 1].
      input_zero_point: of input's type, an integer or an array of one element; None is 0.
      filter_zero_point: of filter's type, an integer, or one for each output channel; None is 0.
      bias: None or an int32 array [O] or [1, O, 1, 1], in units of input_scale * filter_scale.
      output_zero_point: of the output's type, an integer or an array of one element; None is 0.
      strides, dilations: at least 1; an integer, or a tuple with one for each spatial dimension.
      start_padding, end_padding: elements added before and after; an integer, or a tuple as above.
      group_count: input and output channels fall into that many groups; C of them make it depthwise.
      output_dtype: int8 or uint8. The default is output_zero_point's type, or input's if that is None or an integer.
      feature_level: the feature level whose rules are checked; see `FeatureLevel`.

    Returns:
      Array [N, O, *spatial] of the output type, each spatial dimension
      ``1 + (size + start + end - (1 + (kernel - 1) * dilation)) // stride``.

    Raises:
      DescError: if the feature level does not allow the call; the message says why.

    Source: DirectML, DML_QUANTIZED_LINEAR_CONVOLUTION_OPERATOR_DESC, fields InputTensor to GroupCount,
    https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_quantized_linear_convolution_operator_desc
    """
    each: dict[str, Any] = {"strides": strides, "dilations": dilations, "start": start_padding, "end": end_padding}

    def channelwise(x: Any) -> Any:
        if x is None or not x.ndim:
            return x
        return lax.reshape(x, per_channel(x.shape, input.ndim, filter.shape[0]))

    return contractions.requantized_conv(
        input,
        input_scale,
        input_zero_point,
        filter,
        channelwise(filter_scale),
        channelwise(filter_zero_point),
        channelwise(bias),
        output_scale,
        output_zero_point,
        output_dtype=output_dtype,
        strides=each["strides"],
        dilations=each["dilations"],
        padding=tuple(zip(each["start"], each["end"], strict=True)),
        group_count=group_count,
    )
