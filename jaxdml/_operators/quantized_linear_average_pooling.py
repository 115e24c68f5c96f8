"""DML_QUANTIZED_LINEAR_AVERAGE_POOLING_OPERATOR_DESC."""

from collections.abc import Sequence
from typing import Any

import chex
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

HINTS = CONVOLUTION_HINTS | {
    "kernel_size": "write window_size",
    "count_include_pad": "write include_padding",
    "ceil_mode": "it has none: end_padding makes room for a last window",
}


def _describe(given: Given) -> OperatorDesc:
    input = given["input"]
    channels = input.shape[1] if input.ndim > 1 else 0

    def form(field: str, array: Any) -> TensorDesc:
        if field == "input_tensor" or array.shape == (1, channels, 1, 1):
            return tensor_desc(array)
        return parameter_desc(array, input.ndim, channels)

    window = (channels, 1, *given["window_size"])  # as a depthwise filter
    output = windowed_shape(input.shape, window, *(given[name] for name in OPTIONS))
    options = {"form": form, "dimension_count": input.ndim - 2}
    return given.desc(QuantizedLinearAveragePoolingDesc, output=output, **options)


def _same(given: Given, word: str) -> str:
    return in_numbers(given, word, given["window_size"])


@operator(
    QuantizedLinearAveragePoolingDesc, _describe, advice={"start_padding": _same, "end_padding": _same}, hints=HINTS
)
def quantized_linear_average_pooling(
    input: chex.Array,
    input_scale: chex.Numeric,
    input_zero_point: chex.Numeric | None,
    output_scale: chex.Numeric,
    output_zero_point: chex.Numeric | None,
    *,
    window_size: int | Sequence[int],
    strides: int | Sequence[int] = 1,
    start_padding: int | Sequence[int] = 0,
    end_padding: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    include_padding: bool = False,
    output_dtype: chex.ArrayDType | None = None,
    feature_level: FeatureLevel = FeatureLevel.LATEST,
) -> chex.Array:
    """Means over windows of quantized input, quantized.

    Channels come second. The sum of ``input - input_zero_point`` over a window is exact in int32. That sum is rounded
    to float32, times ``input_scale``, divided by the number of elements, divided by ``output_scale``, rounded to an
    integer, ties to even; then the zero point is added, then the result clamped. Each operation is rounded to float32,
    subnormals count as 0. A padded position is real zero; it counts as an element with include_padding alone. The
    page's formula of the output's size leaves dilations out; here a window spans ``1 + (window - 1) * dilation``
    elements.

    Args:
      input: int8 or uint8 array [N, C, H, W] or [N, C, D, H, W].
      input_scale: float32, a number, or one for each channel: [C], [1, C, 1, 1].
      input_zero_point: of input's type, in the forms of its scale; None is 0.
      output_scale: float32, in the forms of input_scale.
      output_zero_point: of the output's type, in the forms of its scale; None is 0.
      window_size: elements of the window; an integer, or a tuple with one for each spatial dimension. That of the
        whole image makes it a global mean.
      strides: at least 1; an integer, or a tuple as above.
      start_padding, end_padding: elements added before and after; an integer, or a tuple as above. A window that sees
        padding alone is an error without include_padding; where sizes are symbolic, only the first window is looked at.
      dilations: at least 1; an integer, or a tuple as above.
      include_padding: whether padded positions count in the divisor.
      output_dtype: int8 or uint8. The default is output_zero_point's type, or input's if that is None or an integer.
      feature_level: the feature level whose rules are checked; see `FeatureLevel`.

    Returns:
      Array ``[N, C, *spatial]`` of the output type, each spatial dimension
      ``1 + (size + start + end - (1 + (window - 1) * dilation)) // stride``.

    Raises:
      DescError: if the feature level does not allow the call; the message says why.

    Source: DirectML, DML_QUANTIZED_LINEAR_AVERAGE_POOLING_OPERATOR_DESC, fields InputTensor to IncludePadding,
    https://learn.microsoft.com/windows/ai/directml/api/ns-directml-dml_quantized_linear_average_pooling_operator_desc
    """
    each: dict[str, Any] = {"strides": strides, "dilations": dilations, "window": window_size}

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
        padding=tuple(zip(start_padding, end_padding, strict=True)),  # type: ignore[arg-type] # tuples by now
        include_padding=include_padding,
        **each,
    )
