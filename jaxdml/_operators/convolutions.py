"""For convolutions and pooling: builds the desc of a call, and advises on arguments named as in other libraries."""

from collections.abc import Callable, Mapping
from typing import Any

from jax import lax

from jaxdml._arithmetic.prepared import PreparedFilter
from jaxdml._directml.desc import OperatorDesc, TensorDesc
from jaxdml._directml.messages import broken
from jaxdml._directml.tensor_rules import MAXIMUM_ELEMENTS, is_symbolic, is_uint
from jaxdml._operators.descriptions import Given, parameter_desc, tensor_desc
from jaxdml._operators.prepare import prepare_convolution_filter
from jaxdml._shapes import Shape, known_elements, output_extent, per_channel, same_padding

OPTIONS = ("strides", "dilations", "start_padding", "end_padding")


def describe_convolution(given: Given, kind: type[OperatorDesc], output_type: Any = None) -> OperatorDesc:
    """Builds the desc of a convolution."""
    input, filter, groups = given["input"], given["filter"], given["group_count"]
    if isinstance(filter, PreparedFilter) and filter.group_count != groups:
        prepared = filter.group_count
        fix = f"prepare filter.array with group_count={groups}"
        if input.ndim == filter.ndim > 1 and input.shape[1] == filter.shape[1] * prepared:
            fix = f"call with group_count={prepared}"
        text = f"was prepared for group_count {prepared}, the call has {groups}; {fix}"
        facts = {"expected": groups, "received": prepared}
        raise broken(kind.operator, "FilterTensor", "group_count", text, **facts)
    channels = filter.shape[0] if filter.ndim else 0

    def form(field: str, array: Any) -> TensorDesc:
        if field in ("input_tensor", "filter_tensor"):
            return tensor_desc(array)
        is_of_filter = field in ("filter_scale_tensor", "filter_zero_point_tensor", "bias_tensor")
        return parameter_desc(array, input.ndim, channels if is_of_filter else None)

    output = windowed_shape(input.shape, filter.shape, *(given[name] for name in OPTIONS))
    options = {"form": form, "dimension_count": input.ndim - 2}
    return given.desc(kind, output=output, output_type=output_type, **options)


def windowed_shape(
    input: Shape, filter: Shape, strides: Shape, dilations: Shape, start_padding: Shape, end_padding: Shape
) -> Shape:
    """The output's shape; the input's shape if the arguments are wrong, which validate reports later."""
    spatial = len(input) - 2
    options = (strides, dilations, start_padding, end_padding)
    if spatial < 1 or len(filter) != len(input) or any(len(option) != spatial for option in options) or 0 in strides:
        return input
    if not all(is_uint(value) for option in options for value in option):
        return input
    padded = (size + start + end for size, start, end in zip(input[2:], start_padding, end_padding, strict=True))
    if known_elements((*input[:2], *padded)) > MAXIMUM_ELEMENTS:
        return input
    extents = zip(input[2:], filter[2:], *options, strict=True)
    return (input[0], filter[0], *(_at_least_1(output_extent(*extent)) for extent in extents))


def _at_least_1(size: Any) -> Any:
    return size if is_symbolic(size) else max(size, 1)


def in_numbers(given: Given, word: str, window: Any) -> str:
    """Advice that turns a padding word such as "SAME" into numbers; window is None if it does not fit the input."""
    spatial = given["input"].ndim - 2
    if word.upper() not in ("SAME", "SAME_UPPER", "SAME_LOWER") or window is None:
        return "padding is given in numbers: VALID in other libraries is 0 here"
    start, end = [], []
    strides, dilations, window = (
        option if isinstance(option, tuple) else (option,) * spatial
        for option in (given["strides"], given["dilations"], window)
    )
    sizes = zip(given["input"].shape[2:], window, strides, dilations, strict=False)
    for size, kernel, stride, dilation in sizes:
        padding = same_padding(size, kernel, max(stride, 1), dilation)
        start.append(padding // 2)
        end.append(padding - padding // 2)
    if word.upper() == "SAME_LOWER":
        start, end = end, start
    numbers = f"start_padding={tuple(start)}, end_padding={tuple(end)}"
    return f"padding is given in numbers: {word.upper()} in other libraries is {numbers} here"


def _same(given: Given, word: str) -> str:
    fits = given["filter"].ndim == given["input"].ndim
    return in_numbers(given, word, given["filter"].shape[2:] if fits else None)


def repacked_filter(filter: Any, desc: Any) -> PreparedFilter:
    """Prepares a filter that is OWNED_BY_DML."""
    return prepare_convolution_filter(filter, group_count=desc.group_count)


def channelwise(x: Any, input: Any, filter: Any) -> Any:
    """A scale or zero point of a filter, or a bias, as [1, O, 1, ...]; scalars stay scalars."""
    if x is None or not x.ndim:
        return x
    return lax.reshape(x, per_channel(x.shape, input.ndim, filter.shape[0]))


PADDING_ADVICE: Mapping[str, Callable[[Given, str], str]] = {"start_padding": _same, "end_padding": _same}
HINTS = {"padding": "write start_padding for the start of each dimension, and end_padding for the end"}
