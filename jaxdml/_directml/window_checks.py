"""Checks of the sizes and options of convolutions and pooling."""

import bisect
import functools
from collections.abc import Sequence
from typing import Any

from jaxdml._directml import remedies
from jaxdml._directml.desc import OperatorDesc, page_name
from jaxdml._directml.messages import Remedy, RuleError, shown
from jaxdml._directml.size_checks import Form, check_form, check_spatial_options, padded_sizes
from jaxdml._directml.tensor_rules import MAXIMUM_ELEMENTS, is_symbolic
from jaxdml._shapes import Shape, elements_inside, is_surely_a_size, known_elements, output_extent


def windowed_extents(desc: Any, name: str, window: Sequence[int], remedy: str | Remedy) -> Shape:
    """Checks that the window of the field `name` fits the padded input; returns the output's spatial sizes."""
    operator, extents = desc.operator, []
    options = (desc.strides, desc.dilations, desc.start_padding, desc.end_padding)
    for size, extent, stride, dilation, start, end in zip(desc.input_tensor.sizes[2:], window, *options, strict=True):
        padded, dilated = size + start + end, 1 + (extent - 1) * dilation
        if is_surely_a_size(dilated - padded - 1):  # of symbolic sizes this is often unknown
            text = f"spans {dilated} elements with dilation {dilation}, the padded input has {padded}"
            raise RuleError(operator, name, "kernel", text, remedy, expected=f"at most {padded}", received=dilated)
        extents.append(output_extent(size, extent, stride, dilation, start, end))
    for sizes in padded_sizes(desc).values():
        if known_elements(sizes) > MAXIMUM_ELEMENTS:
            text = f"pads the input to {known_elements(sizes)} elements, the limit is {MAXIMUM_ELEMENTS}"
            field = max("start_padding", "end_padding", key=lambda field: max(getattr(desc, field)))
            facts = {"expected": MAXIMUM_ELEMENTS, "received": getattr(desc, field)}
            raise RuleError(operator, page_name(field), "elements", text, remedies.PAD_LESS, **facts)
    return tuple(extents)


# Convolutions --------------------------------------------------------------------------------------------------------


def convolved_sizes(desc: Any) -> Shape:
    """Checks channels, groups and options of a convolution; returns the output's sizes."""
    operator = desc.operator
    batch, in_channels, *extent = desc.input_tensor.sizes
    out_channels, filter_channels, *kernel = desc.filter_tensor.sizes
    check_spatial_options(desc, len(extent))
    groups = desc.group_count

    def wrong_channels(name: str, text: str, expected: Any, received: int) -> RuleError:
        facts = {"expected": expected, "received": received}
        return RuleError(operator, name, "channels", text, remedies.channels(desc), **facts)

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
    if any(map(is_symbolic, desc.filter_tensor.sizes)):
        text = f"has symbolic Sizes {list(desc.filter_tensor.sizes)}, but a filter's sizes must be known"
        raise RuleError(
            operator, "FilterTensor", "sizes", text, remedies.KNOWN_FILTER, received=desc.filter_tensor.sizes
        )
    remedy = remedies.smaller_kernel(extent, kernel)
    return (batch, out_channels, *windowed_extents(desc, "FilterTensor", kernel, remedy))


def check_of_image(desc: OperatorDesc, name: str, kinds: Sequence[str], rank: int) -> None:
    """Checks that the scale and zero point of a convolution's input or output have one element."""
    one = Form((1,) * rank, "one value")
    otherwise = f"only the filter may have one for each channel, not the {name.lower()}"
    for kind in kinds:
        check_form(desc, f"{name}{kind}Tensor", [one], otherwise=otherwise)


def check_of_filter(desc: Any, kinds: Sequence[str], output: Shape) -> Form:
    """Checks that a filter's scale and zero point have one element or one per channel; returns the per-channel form."""
    channels, ones = output[1], (1,) * (len(output) - 2)
    per_channel = Form((1, channels, *ones), f"one for each of the {channels} output channels")
    # The pages write {1, C, 1, 1} even for 3-D tensors. Their tables allow rank 1, so {C} is allowed, too. {1, 1, 1, C}
    # is not allowed: it would mean one value for each column of the input.
    exact = [(channels,), (1, channels, 1, 1)]
    for kind in kinds:
        name = f"Filter{kind}Tensor"
        forms = [Form((1, 1, *ones), "one value"), per_channel]
        advice = remedies.outputs_first(desc.filter_tensor.sizes, desc.tensors()[name])
        check_form(desc, name, forms, exact, otherwise=advice)
    return per_channel


# Pooling -------------------------------------------------------------------------------------------------------------


MOST_ELEMENTS = (2**31 - 1) // 255  # the largest window: each element adds at most 255 to the int32 sum


def pooled_sizes(desc: Any) -> Shape:
    """Checks the options of a pooling operator; returns the output's sizes."""
    batch, channels, *extent = desc.input_tensor.sizes
    check_spatial_options(desc, len(extent))
    _check_symbolic_windows(desc, extent)
    elements = known_elements(desc.window_size)
    if elements > MOST_ELEMENTS:
        text = f"has {elements} elements, but int32 holds the sum of at most {MOST_ELEMENTS} elements"
        facts = {"expected": MOST_ELEMENTS, "received": desc.window_size}
        raise RuleError(desc.operator, "WindowSize", "elements", text, remedies.MEANS_OF_MEANS, **facts)
    remedy = remedies.smaller_window(desc.input_tensor.sizes, desc.window_size)
    return (batch, channels, *windowed_extents(desc, "WindowSize", desc.window_size, remedy))


def _check_symbolic_windows(desc: Any, extent: Sequence[int]) -> None:
    """Checks that each symbolic window is as large as the image, so that the number of windows is known."""
    options = zip(extent, desc.window_size, desc.dilations, desc.start_padding, desc.end_padding, strict=True)
    for size, window, *others in options:
        if is_symbolic(window) and not (window == size and others == [1, 0, 0]):
            text = f"has symbolic size {window}, which must be the input's, {size}, without dilation and padding"
            remedy = remedies.PLAIN_WINDOW if window == size else remedies.WHOLE_IMAGE
            facts = {"expected": size, "received": desc.window_size}
            raise RuleError(desc.operator, "WindowSize", "values", text, remedy, **facts)


def check_windows_see_input(desc: Any) -> None:
    """Checks that no window covers only padding: a mean that excludes padding would divide by 0."""
    options = zip(desc.window_size, desc.strides, desc.dilations, desc.start_padding, desc.end_padding, strict=True)
    for size, (window, stride, dilation, start, end) in zip(desc.input_tensor.sizes[2:], options, strict=True):
        if is_symbolic(window):
            continue  # there is no padding
        if is_symbolic(size):  # the end of the last window is unknown, so only the first is checked
            size, end = start + window * dilation, 0
        count, steps_over = output_extent(size, window, stride, dilation, start, end), window > 1 and dilation > size
        for place in (0, count - 1):  # the outermost windows overlap the input least
            if not elements_inside(size, place, window, stride, dilation, start):
                raise _covers_only_padding(desc, place, is_before=place * stride < start, steps_over=steps_over)
        if steps_over:
            misses = functools.partial(_misses, size=size, stride=stride, dilation=dilation, start=start)
            place = bisect.bisect_left(range(count + 1), 1, key=misses)
            if place <= count:
                raise _covers_only_padding(desc, place - 1, steps_over=True)


def _misses(count: int, size: int, stride: int, dilation: int, start: int) -> int:
    """How many of the first `count` windows step over the input.

    In such a window, the first element past the start padding has the index (place * stride - start) % dilation in the
    input. This is at least `size`, so the window has no element of the input.
    """
    first = -start % dilation
    quotients = _sum_of_quotients(count, stride, first, dilation)
    return count - quotients + _sum_of_quotients(count, stride, first - size, dilation)


def _sum_of_quotients(count: int, factor: int, offset: int, divisor: int) -> int:
    """The sum of (i * factor + offset) // divisor over i < count, computed with the steps of Euclid's algorithm."""
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


def _covers_only_padding(desc: Any, place: int, *, is_before: bool = True, steps_over: bool = False) -> RuleError:
    name, padding = ("StartPadding", desc.start_padding) if is_before else ("EndPadding", desc.end_padding)
    remedy = remedies.ONLY_PADDING
    if steps_over:
        name, padding, remedy = "Dilations", desc.dilations, remedies.ONLY_GAPS
    text = f"is {list(padding)}: the window at index {place} of the output covers only padding"
    facts = {"expected": "an element of the input", "received": padding}
    return RuleError(desc.operator, name, "padding", text, remedy, **facts)
