"""Sizes and options of what sees its input through windows: convolutions and pooling."""

import bisect
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxdml._directml.desc import OperatorDesc, TensorDesc, page_name
from jaxdml._directml.messages import Remedy, RuleError, shown
from jaxdml._directml.size_checks import Form, check_form, check_spatial_options, known_elements, padded_sizes
from jaxdml._directml.tensor_rules import MAXIMUM_ELEMENTS, is_symbolic
from jaxdml._shapes import Shape, elements_inside, output_extent


def windowed_extents(desc: Any, name: str, window: Sequence[int], fix: str | Remedy) -> Shape:
    """The output's spatial sizes for a window of the tensor or option of that name; options are checked."""
    operator, options_of = desc.operator, ("strides", "dilations", "start_padding", "end_padding")
    extents = []
    options = (getattr(desc, option) for option in options_of)
    for size, extent, stride, dilation, start, end in zip(desc.input_tensor.sizes[2:], window, *options, strict=True):
        padded, dilated = size + start + end, 1 + (extent - 1) * dilation
        if dilated > padded:
            text = f"spans {dilated} elements with dilation {dilation}, the padded input has {padded}"
            raise RuleError(operator, name, "kernel", text, fix, expected=f"at most {padded}", received=dilated)
        extents.append(output_extent(size, extent, stride, dilation, start, end))
    for sizes in padded_sizes(desc).values():
        if known_elements(sizes) > MAXIMUM_ELEMENTS:
            text = f"makes an input of {known_elements(sizes)} elements, the limit is {MAXIMUM_ELEMENTS}"
            field = max("start_padding", "end_padding", key=lambda field: max(getattr(desc, field)))
            facts = {"expected": MAXIMUM_ELEMENTS, "received": getattr(desc, field)}
            raise RuleError(operator, page_name(field), "elements", text, "pad less", **facts)
    return tuple(extents)


# Convolutions --------------------------------------------------------------------------------------------------------


class _Layout(NamedTuple):
    """How other libraries order dimensions, and how these come into the pages' order."""

    data: str
    filter: str
    filter_here: str
    of_data: Shape
    of_filter: Shape


CHANNELS_LAST = {  # by the number of spatial dimensions
    1: _Layout("NWC data", "a WIO filter", "[O, I, W]", (0, 2, 1), (2, 1, 0)),
    2: _Layout("NHWC data", "an HWIO filter", "[O, I, H, W]", (0, 3, 1, 2), (3, 2, 0, 1)),
}


def _channels_first(spatial: int) -> Remedy:
    """What every error about channels says: the pages have no other order of dimensions."""
    layout = CHANNELS_LAST[spatial]
    return Remedy(
        f"channels are dimension 1 of both: write input.transpose{layout.of_data} for {layout.data}, "
        f"filter.transpose{layout.of_filter} for {layout.filter}",
        f"channels are dimension 1 of both: let Strides say the order of {layout.data} or of {layout.filter}",
    )


def _other_groups(desc: Any) -> Remedy | None:
    """The remedy where the filter fits the input in other groups, and neither is written with channels last."""
    input, filter = desc.input_tensor.sizes, desc.filter_tensor.sizes
    if not all(isinstance(size, int) and size for size in (*input, *filter)):
        return None
    groups, rest = divmod(input[1], filter[1])
    if rest or filter[0] % groups or input[-1] in (filter[1], filter[-2]) or filter[-2] == input[1]:
        return None
    return Remedy(f"write group_count={groups}", f"let GroupCount be {groups}")


def outputs_first(desc: Any, name: str) -> str | Remedy:
    """The remedy where a parameter has as many values as the filter would have output channels, were they last."""
    sizes, parameter = desc.filter_tensor.sizes, desc.tensors()[name]
    if parameter is None or not 1 < known_elements(parameter.sizes) == sizes[-1]:
        return ""
    layout = CHANNELS_LAST[len(sizes) - 2]
    order = f"the filter is {layout.filter_here}: "
    return Remedy(
        f"{order}write filter.transpose{layout.of_filter} for {layout.filter}",
        f"{order}let Strides say the order of {layout.filter}",
    )


def convolved_sizes(desc: Any) -> Shape:
    """The output's sizes of a convolution, from input_tensor, filter_tensor and the options, which are checked."""
    operator = desc.operator
    batch, in_channels, *extent = desc.input_tensor.sizes
    out_channels, filter_channels, *kernel = desc.filter_tensor.sizes
    check_spatial_options(desc, len(extent))
    groups = desc.group_count
    remedy = _other_groups(desc) or _channels_first(len(extent))

    def wrong_channels(name: str, text: str, expected: Any, received: int) -> RuleError:
        return RuleError(operator, name, "channels", text, remedy, expected=expected, received=received)

    if in_channels % groups:
        text = f"is {shown(groups)}, which does not divide InputTensor's {in_channels} channels"
        raise wrong_channels("GroupCount", text, f"divisor of {in_channels}", groups)
    if filter_channels * groups != in_channels:
        expected = in_channels // groups
        text = f"has {filter_channels} input channels, expected {expected}: InputTensor's {in_channels} divided by "
        raise wrong_channels("FilterTensor", f"{text}GroupCount {groups}", expected, filter_channels)
    if out_channels % groups:
        text = f"has {out_channels} output channels, expected a multiple of GroupCount {groups}"
        raise wrong_channels("FilterTensor", text, f"multiple of {groups}", out_channels)

    fix = "pad it or shrink the kernel"
    if all(isinstance(size, int) and size < window for size, window in zip(extent, kernel, strict=True)):
        fix = "pad it, shrink the kernel, or swap input and filter"
    return (batch, out_channels, *windowed_extents(desc, "FilterTensor", kernel, fix))


def check_of_image(desc: OperatorDesc, name: str, kinds: Sequence[str], rank: int) -> None:
    """Scale and zero point of a convolution's input or output have one element."""
    one = Form((1,) * rank, "one value")
    unless = f"one for each channel is possible for the filter alone, not for the {name.lower()}"
    for kind in kinds:
        check_form(desc, f"{name}{kind}Tensor", [one], unless=unless)


def check_of_filter(desc: OperatorDesc, kinds: Sequence[str], output: Shape) -> Form:
    """Scale and zero point of a filter have one element, or one for each output channel; the form of the latter."""
    channels, ones = output[1], (1,) * (len(output) - 2)
    per_channel = Form((1, channels, *ones), f"one for each of the {channels} output channels")
    # Beside {1, C, 1, 1} the pages' tables allow rank 1, which has room for nothing but {C};
    # and a 3-D convolution may write its parameters as the 4-D one does. At other ranks these sizes say something
    # else: {1, 1, 1, C} would be one for each column of the input.
    exact = [(channels,), (1, channels, 1, 1)]
    for kind in kinds:
        name = f"Filter{kind}Tensor"
        forms = [Form((1, 1, *ones), "one value"), per_channel]
        check_form(desc, name, forms, exact, unless=outputs_first(desc, name))
    return per_channel


def too_many_dimensions(input: TensorDesc) -> str | None:
    """The remedy for an image of more dimensions than a convolution has."""
    return "DirectML convolves in one or two spatial dimensions" if len(input.sizes) > 4 else None


def stack_of_filters(filter: TensorDesc) -> str | Remedy | None:
    """The remedy for a filter of too many dimensions."""
    if len(filter.sizes) <= 4:
        return None
    advice = "a stack of filters is no filter: "
    return Remedy(
        advice + "prepare it with jax.vmap(dml.prepare_convolution_filter), and convolve under jax.vmap",
        advice + "write a desc for one of them",
    )


# Pooling -------------------------------------------------------------------------------------------------------------


MOST_ELEMENTS = (2**31 - 1) // 255  # of a window: differences of bytes, whose sum int32 holds


def pooled_sizes(desc: Any) -> Shape:
    """The output's sizes of a pooling operator, from input_tensor and the options, which are checked."""
    batch, channels, *extent = desc.input_tensor.sizes
    check_spatial_options(desc, len(extent))
    advice = "pad the input or shrink the window"
    fix = Remedy(advice, advice)
    elements = math.prod(desc.window_size)
    if elements > MOST_ELEMENTS:
        text = f"has {elements} elements, the sums of at most {MOST_ELEMENTS} fit int32"
        facts = {"expected": MOST_ELEMENTS, "received": desc.window_size}
        raise RuleError(desc.operator, "WindowSize", "elements", text, "take means of means", **facts)
    of_channels_last = zip((channels, *extent[:-1]), desc.window_size, strict=True)
    if all(isinstance(size, int) and size >= window for size, window in of_channels_last):
        order = (0, len(extent) + 1, *range(1, len(extent) + 1))
        fix = Remedy(f"{advice}, or write input.transpose{order} if channels come last", advice)
    return (batch, channels, *windowed_extents(desc, "WindowSize", desc.window_size, fix))


def check_windows_see_input(desc: Any) -> None:
    """Every window has an element of the input, which a mean that leaves padding out divides by."""
    options = zip(desc.window_size, desc.strides, desc.dilations, desc.start_padding, desc.end_padding, strict=True)
    for size, (window, stride, dilation, start, end) in zip(desc.input_tensor.sizes[2:], options, strict=True):
        if is_symbolic(size):  # the first window sees the input if it reaches it; of the last nobody knows
            size, end = start + window * dilation, 0
        count, steps_over = output_extent(size, window, stride, dilation, start, end), window > 1 and dilation > size
        for place in (0, count - 1):  # the outermost windows are furthest from the input
            if not elements_inside(size, place, window, stride, dilation, start):
                raise _sees_padding_alone(desc, place, is_before=place * stride < start, steps_over=steps_over)
        if steps_over:
            place = bisect.bisect_left(
                range(count + 1), True, key=lambda n: _misses(n, size, stride, dilation, start) > 0
            )
            if place <= count:
                raise _sees_padding_alone(desc, place - 1, steps_over=True)


def _misses(count: int, size: int, stride: int, dilation: int, start: int) -> int:
    """How many of the first windows step over the input: the first of their elements behind the start is behind it.

    That element is element (place * stride - start) % dilation of the input.
    """
    first = -start % dilation
    return (
        count
        - _sum_of_quotients(count, stride, first, dilation)
        + _sum_of_quotients(count, stride, first - size, dilation)
    )


def _sum_of_quotients(count: int, factor: int, offset: int, divisor: int) -> int:
    """The sum of (i * factor + offset) // divisor for i below count, in as many steps as Euclid's algorithm takes."""
    total = 0
    while True:
        whole, factor = divmod(factor, divisor)
        total += whole * count * (count - 1) // 2
        whole, offset = divmod(offset, divisor)
        total += whole * count
        last = factor * count + offset
        if last < divisor:
            return total
        count, offset = divmod(last, divisor)
        factor, divisor = divisor, factor


def _sees_padding_alone(desc: Any, place: int, *, is_before: bool = True, steps_over: bool = False) -> RuleError:
    name, padding = ("StartPadding", desc.start_padding) if is_before else ("EndPadding", desc.end_padding)
    fix = "pad less, or set include_padding"
    if steps_over:
        name, padding, fix = "Dilations", desc.dilations, "dilate less than the input is long, or set include_padding"
    text = f"is {list(padding)}, by which the window at {place} of the output sees padding alone"
    facts = {"expected": "an element of the input", "received": padding}
    return RuleError(desc.operator, name, "padding", text, fix, **facts)
