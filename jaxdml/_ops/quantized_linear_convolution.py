"""DML_QUANTIZED_LINEAR_CONVOLUTION_OPERATOR_DESC."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml import _numerics
from jaxdml._arguments import Arguments, parameter_desc, tensor_desc
from jaxdml._contract import int_conv
from jaxdml._data_types import DataType
from jaxdml._lowering.prepared import PreparedFilter
from jaxdml._operator import Call, operator
from jaxdml._shapes import Shape, output_extent, per_channel
from jaxdml._tensor_rules import broken, is_uint
from jaxdml.descs import QuantizedLinearConvolutionDesc, TensorDesc
from jaxdml.feature_levels import FeatureLevel

OPERATOR = QuantizedLinearConvolutionDesc.operator


@operator
def quantized_linear_convolution(
    input: Any,
    input_scale: Any,
    input_zero_point: Any,
    filter: Any,
    filter_scale: Any,
    filter_zero_point: Any,
    bias: Any,
    output_scale: Any,
    output_zero_point: Any,
    *,
    strides: int | tuple[int, ...] = 1,
    dilations: int | tuple[int, ...] = 1,
    start_padding: int | tuple[int, ...] = 0,
    end_padding: int | tuple[int, ...] = 0,
    group_count: int = 1,
    output_dtype: Any = None,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> Call:
    """Convolution of a quantized input with a quantized filter, quantized.

    ``sum((input - input_zero_point) * (filter - filter_zero_point)) + bias`` is exact in int32, modulo 2**32; padding
    is real zero, that is input_zero_point. It is rounded to float32, times ``input_scale * filter_scale /
    output_scale``, rounded to an integer, ties to even; then the zero point is added, then the result clamped.
    As in DirectML's forward convolution the filter is not flipped.

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

    Source: DirectML, DML_QUANTIZED_LINEAR_CONVOLUTION_OPERATOR_DESC, fields InputTensor to GroupCount.
    """
    arguments = Arguments(OPERATOR, feature_level)
    input, filter = arguments.tensor("input", input), arguments.tensor("filter", filter, prepared=PreparedFilter)
    bias = arguments.tensor("bias", bias, optional=True)
    dtype = arguments.output_dtype(output_dtype, "output_zero_point", output_zero_point, default=input.dtype)
    quantization = arguments.quantization(
        input=(input_scale, input_zero_point, input.dtype),
        filter=(filter_scale, filter_zero_point, filter.dtype),
        output=(output_scale, output_zero_point, dtype),
    )
    options: dict[str, Any] = {
        name: arguments.per_dimension(name, value, max(input.ndim - 2, 0))
        for name, value in {
            "strides": strides,
            "dilations": dilations,
            "start_padding": start_padding,
            "end_padding": end_padding,
        }.items()
    }
    group_count = arguments.integer("group_count", group_count)
    if isinstance(filter, PreparedFilter) and filter.group_count != group_count:
        text = f"was prepared for group_count {filter.group_count}, the call has {group_count}; prepare it with that"
        raise broken(OPERATOR, "FilterTensor", "group_count", text, expected=group_count, received=filter.group_count)
    channels = filter.shape[0] if filter.ndim else 0
    parameters: dict[str, Any] = {
        f"{name}_tensor": parameter_desc(value, input.ndim, channels if name.startswith("filter") else None)
        for name, value in quantization.items()
    }
    desc = QuantizedLinearConvolutionDesc(
        input_tensor=tensor_desc(input),
        filter_tensor=tensor_desc(filter),
        bias_tensor=parameter_desc(bias, input.ndim, channels),
        output_tensor=TensorDesc(DataType.of(dtype), _output_shape(input.shape, filter.shape, **options)),
        **parameters,
        dimension_count=input.ndim - 2,
        group_count=group_count,
        **options,
    )
    return Call(
        desc,
        feature_level,
        partial(_convolve, input, filter, bias, **quantization, output_dtype=dtype, group_count=group_count, **options),
    )


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


@partial(
    jax.jit,
    static_argnames=(
        "output_dtype", "group_count", "strides", "dilations", "start_padding", "end_padding"
    ),
)  # fmt: skip
def _convolve(
    input: jax.Array,
    filter: jax.Array | PreparedFilter,
    bias: jax.Array | None,
    *,
    input_scale: jax.Array,
    input_zero_point: jax.Array | None,
    filter_scale: jax.Array,
    filter_zero_point: jax.Array | None,
    output_scale: jax.Array,
    output_zero_point: jax.Array | None,
    output_dtype: np.dtype,
    group_count: int,
    strides: Shape,
    dilations: Shape,
    start_padding: Shape,
    end_padding: Shape,
) -> jax.Array:
    def channelwise(x: jax.Array) -> jax.Array:
        return lax.reshape(x, per_channel(x.shape, input.ndim, filter.shape[0]))

    with jax.named_scope(OPERATOR):
        input_zero_point = _numerics.with_rank(input_zero_point, input.ndim)
        if filter_zero_point is not None:
            filter_zero_point = jnp.moveaxis(channelwise(filter_zero_point), 1, 0)
        accumulator = int_conv(
            input,
            input_zero_point,
            filter,
            filter_zero_point,
            strides=strides,
            dilations=dilations,
            padding=tuple(zip(start_padding, end_padding, strict=True)),
            group_count=group_count,
        )
        if bias is not None:
            accumulator += channelwise(bias)
        scales = (input_scale, channelwise(filter_scale), output_scale)
        return _numerics.requantize(accumulator, *scales, output_zero_point, output_dtype)
