"""How sizes and options depend on each other: checks that pages share."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxdml._directml.desc import OperatorDesc, argument_name, field_of, fields_of, page_name
from jaxdml._directml.fields import Option
from jaxdml._directml.messages import Remedy, RuleError, listed, shown
from jaxdml._directml.tensor_rules import MAXIMUM_ELEMENTS, check_uints, is_symbolic, is_uint
from jaxdml._shapes import Shape, aligned, output_extent, without_leading_ones


class Form(NamedTuple):
    """Sizes that a scale, zero point or bias may have, and what its values are then."""

    sizes: Shape
    words: str


def check_form(
    desc: OperatorDesc, name: str, forms: Sequence[Form], exact: Sequence[Shape] = (), unless: str = ""
) -> None:
    """The tensor, if present, has one of the forms, aligned to the right as in NumPy broadcasting, or exact sizes.

    `unless` says what is not possible, and is told beside the forms.
    """
    tensor = getattr(desc, field_of(type(desc), name))
    if tensor is None or tensor.sizes in exact:
        return
    if without_leading_ones(tensor.sizes) in [without_leading_ones(form.sizes) for form in forms]:
        return
    expected = tuple(dict.fromkeys((*(form.sizes for form in forms), *exact)))
    options, words = listed(list(sizes) for sizes in expected), ", or ".join(form.words for form in forms)
    text = f"has Sizes {list(tensor.sizes)}, expected {options}: {words}" + (f"; {unless}" if unless else "")
    remedy = _to_the_form(argument_name(name), tensor.sizes, forms, exact)
    raise RuleError(desc.operator, name, "sizes", text, remedy, expected=expected, received=tensor.sizes)


def _to_the_form(argument: str, sizes: Shape, forms: Sequence[Form], exact: Sequence[Shape]) -> str | Remedy:
    """How values of the right number come into the form that they are meant for."""
    number = math.prod(size for size in sizes if not is_symbolic(size))
    fitting = [form.sizes for form in forms if math.prod(form.sizes) == number > 1]
    if not fitting:
        return f"there are {number} values" if number > 1 else ""
    bare = without_leading_ones(fitting[0])
    trailing = 0 if (number,) in exact else len(bare) - 1

    def in_call(shape: Shape) -> str:
        if len(shape) == 1 and trailing == 1:
            return f"write {argument}[:, None]"
        return f"write {argument}.reshape(-1{', 1' * trailing})"

    in_desc = aligned(fitting[0], len(sizes)) if len(bare) <= len(sizes) else fitting[0]
    return Remedy(in_call, f"write sizes={in_desc}")


def check_sizes(desc: OperatorDesc, name: str, expected: Shape, why: str) -> None:
    """The tensor has these sizes and no others."""
    sizes = getattr(desc, field_of(type(desc), name)).sizes
    if sizes != expected:
        text = f"has Sizes {list(sizes)}, expected {list(expected)}: {why}"
        raise RuleError(desc.operator, name, "sizes", text, expected=expected, received=sizes)


def check_spatial_options(desc: OperatorDesc, spatial: int) -> None:
    """Every list of UINTs has one for each spatial dimension; they and the other UINTs are large enough."""
    for field, option in fields_of(type(desc)).items():
        if not isinstance(option, Option) or isinstance(option.kind, type):
            continue
        name, value = page_name(field), getattr(desc, field)
        if option.kind == "counts":
            check_uints(desc.operator, name, "values", value, length=spatial, least=option.least)
        elif option.kind == "dimensions" and (not is_uint(value) or value != spatial):
            text = f"is {shown(value)}, expected {spatial} for an InputTensor of rank {spatial + 2}"
            raise RuleError(desc.operator, name, field, text, expected=spatial, received=value)
        elif not is_uint(value) or value < option.least:
            text = f"is {shown(value)}, expected an integer of at least {option.least}"
            raise RuleError(desc.operator, name, field, text, expected=f"at least {option.least}", received=value)


def padded_sizes(desc: OperatorDesc) -> dict[str, Shape]:
    """By page name the sizes of tensors with the padding that options add to their spatial dimensions."""
    padded: dict[str, Shape] = {}
    for field, option in fields_of(type(desc)).items():
        if isinstance(option, Option) and option.pads:
            name = page_name(option.pads)
            batch, channels, *extent = padded.get(name, desc.tensors()[name].sizes)
            added = zip(extent, getattr(desc, field), strict=True)
            padded[name] = (batch, channels, *(size + more for size, more in added))
    return padded


def known_elements(sizes: Shape) -> int:
    """Elements of a tensor; symbolic dimensions are not counted."""
    return math.prod(size for size in sizes if not is_symbolic(size))


def _channels_first(spatial: int) -> Remedy:
    """What every error about channels says: the pages have no other order of dimensions."""
    image, kernel = {1: ((0, 2, 1), (2, 1, 0)), 2: ((0, 3, 1, 2), (3, 2, 0, 1))}[spatial]
    last, kernel_last = ("W", "a WIO") if spatial == 1 else ("HW", "an HWIO")
    return Remedy(
        f"channels are dimension 1 of both: write input.transpose{image} for N{last}C data, "
        f"filter.transpose{kernel} for {kernel_last} filter",
        f"channels are dimension 1 of both: let Strides say the order of N{last}C data or of {kernel_last} filter",
    )


def convolved_sizes(desc: Any) -> Shape:
    """The output's sizes of a convolution, from input_tensor, filter_tensor and the options, which are checked."""
    operator, options_of = desc.operator, ("strides", "dilations", "start_padding", "end_padding")
    batch, in_channels, *extent = desc.input_tensor.sizes
    out_channels, filter_channels, *kernel = desc.filter_tensor.sizes
    check_spatial_options(desc, len(extent))
    remedy, groups = _channels_first(len(extent)), desc.group_count

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

    output = []
    options = (getattr(desc, name) for name in options_of)
    for size, window, stride, dilation, start, end in zip(extent, kernel, *options, strict=True):
        padded, dilated = size + start + end, 1 + (window - 1) * dilation
        if dilated > padded:
            text = f"spans {dilated} elements with dilation {dilation}, the padded input has {padded}"
            fix = "pad it or shrink the kernel"
            raise RuleError(
                operator, "FilterTensor", "kernel", text, fix, expected=f"at most {padded}", received=dilated
            )
        output.append(output_extent(size, window, stride, dilation, start, end))
    for sizes in padded_sizes(desc).values():
        if known_elements(sizes) > MAXIMUM_ELEMENTS:
            text = f"makes an input of {known_elements(sizes)} elements, the limit is {MAXIMUM_ELEMENTS}"
            facts = {"expected": MAXIMUM_ELEMENTS, "received": desc.start_padding}
            raise RuleError(operator, "StartPadding", "elements", text, "pad less", **facts)
    return (batch, out_channels, *output)
