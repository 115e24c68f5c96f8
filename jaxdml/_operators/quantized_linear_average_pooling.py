"""DML_QUANTIZED_LINEAR_AVERAGE_POOLING_OPERATOR_DESC."""

from typing import Any

import jax
from jax import lax

from jaxdml._arithmetic import pooling
from jaxdml._directml.desc import OperatorDesc, TensorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.pages.quantized_linear_average_pooling import QuantizedLinearAveragePoolingDesc
from jaxdml._operators.call import operator
from jaxdml._operators.convolutions import HINTS as CONVOLUTION_HINTS
from jaxdml._operators.convolutions import OPTIONS, in_numbers, windowed_shape
from jaxdml._operators.descriptions import Given, parameter_desc, tensor_desc
from jaxdml._shapes import per_channel
from jaxdml.typing import Array, DType, PerDimension, Scale, ZeroPoint

HINTS = CONVOLUTION_HINTS | {
    "kernel_size": "write window_size",
    "count_include_pad": "write include_padding",
    "ceil_mode": "there is no ceil_mode: enlarge end_padding to make room for a last window",
}


def _describe(given: Given) -> OperatorDesc:
    input = given["input"]
    channels = input.shape[1] if input.ndim > 1 else 0

    def form(field: str, array: Any) -> TensorDesc:
        if field == "input_tensor" or array.shape == (1, channels, 1, 1):
            return tensor_desc(array)
        return parameter_desc(array, input.ndim, channels)

    window = (channels, 1, *given["window_size"])  # the shape of a depthwise filter
    output = windowed_shape(input.shape, window, *(given[name] for name in OPTIONS))
    options = {"form": form, "dimension_count": input.ndim - 2}
    return given.desc(QuantizedLinearAveragePoolingDesc, output=output, **options)


def _same(given: Given, word: str) -> str:
    return in_numbers(given, word, given["window_size"])


@operator(
    QuantizedLinearAveragePoolingDesc, _describe, advice={"start_padding": _same, "end_padding": _same}, hints=HINTS
)
def quantized_linear_average_pooling(
    input: Array,
    input_scale: Scale,
    input_zero_point: ZeroPoint | None,
    output_scale: Scale,
    output_zero_point: ZeroPoint | None,
    *,
    window_size: PerDimension,
    strides: PerDimension = 1,
    start_padding: PerDimension = 0,
    end_padding: PerDimension = 0,
    dilations: PerDimension = 1,
    include_padding: bool = False,
    output_dtype: DType | None = None,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> jax.Array:
    """Average pooling of a quantized input; the result is quantized, too.

    The sum of ``input - input_zero_point`` over a window is exact in int32. It is rounded to float32, multiplied by
    ``input_scale``, divided by the number of elements, divided by ``output_scale``, and rounded to an integer, ties to
    even; then the zero point is added, and the result is clamped. Each operation is rounded to float32; subnormals
    count as 0. Padding stands for real zero, and counts as elements only with include_padding. A window spans
    ``1 + (window - 1) * dilation`` elements; the formula for the output's size on DirectML's page omits dilations.

    Args:
      input: int8 or uint8 array [N, C, H, W] or [N, C, D, H, W].
      input_scale: number, or float32 array, per channel: [C] or [1, C, 1, 1].
      input_zero_point: integer, or array of input's type with a shape as for input_scale; None means 0.
      output_scale: number, or float32 array with a shape as for input_scale.
      output_zero_point: integer, or array of the output's type with a shape as for input_scale; None means 0.
      window_size: size of the window; an integer, or one integer per spatial dimension. ``input.shape[2:]`` gives
        global average pooling, also of symbolic sizes; no other window size may be symbolic. A window has at most
        8,421,504 elements, so that int32 can hold their sum. With symbolic sizes, this is not validated, and larger
        sums wrap.
      strides: at least 1; an integer, or one integer per spatial dimension.
      start_padding, end_padding: elements added before and after each spatial dimension; an integer, or one for each.
        Without include_padding, a window that covers only padding raises an error; with symbolic sizes, only the
        first window is validated.
      dilations: at least 1; an integer, or one integer per spatial dimension.
      include_padding: whether padding counts in the divisor.
      output_dtype: int8 or uint8. Default: the type of an output_zero_point array, else input's type.
      feature_level: the feature level that validates the call; see `FeatureLevel`.

    Returns:
      Array ``[N, C, *spatial]`` of the output type, where each spatial size is
      ``1 + (size + start + end - (1 + (window - 1) * dilation)) // stride``.

    Raises:
      DescError: if the feature level does not allow the call.

    Source: DirectML, DML_QUANTIZED_LINEAR_AVERAGE_POOLING_OPERATOR_DESC, fields InputTensor to IncludePadding,
    https://learn.microsoft.com/windows/ai/directml/api/ns-directml-dml_quantized_linear_average_pooling_operator_desc
    """

    def channelwise(x: Any) -> Any:
        if x is None or not x.ndim:
            return x
        channels = input.shape[1]
        shape = (channels,) if x.shape == (1, channels, 1, 1) else x.shape
        return lax.reshape(x, per_channel(shape, input.ndim, channels))

    return pooling.mean_of_windows(
        input,
        *map(channelwise, (input_scale, input_zero_point, output_scale, output_zero_point)),
        output_dtype=output_dtype,
        window=window_size,
        strides=strides,
        dilations=dilations,
        padding=tuple(zip(start_padding, end_padding, strict=True)),
        include_padding=include_padding,
    )
