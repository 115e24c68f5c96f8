"""Advice in error texts. `table_remedies` has the advice for tensor-support tables and tensor constraints.

The checks validate sizes before they call these functions, so a size that is not an int is symbolic.
"""

import itertools
import math
import re
from collections.abc import Container, Sequence
from typing import Any, NamedTuple

from jaxdml._directml.data_types import DataType
from jaxdml._directml.desc import Slot, TensorDesc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.messages import Remedy, shown
from jaxdml._shapes import Shape, aligned, broadcast, known_elements, without_leading_ones

# Fields of descs and data types --------------------------------------------------------------------------------------

TENSOR_DESC = "write TensorDesc(DataType.UINT8, (2, 3)) or the like"
DATA_TYPE = "write DataType.UINT8 or the like, or DataType.of(dtype)"
NOT_EMPTY = Remedy("skip the call when there is no data", "give each dimension 1 or more")
SPLIT = "split the tensor"
NO_OVERLAP = "each element of an output needs its own place in the buffer"
NO_FLAGS = "leave its flags NONE"
QUANTIZATION_TYPE = "write QuantizationType.SCALE or QuantizationType.SCALE_ZERO_POINT"


def tuple_of_one(field: str) -> str:
    return f"write {field}=(TensorDesc(...),)"


def feature_level(value: Any) -> str:
    """Suggests the level that a value such as "6_4", 6.4, "LEVEL_6_4" or 0x6400 means."""
    number = "_".join(re.findall(r"\d+", shown(value)))
    named = (level.name for level in FeatureLevel if number in (str(level), str(int(level))))
    return f"write FeatureLevel.{next(named, 'LEVEL_4_0 or the like')}"


def cast(argument: str, expected: DataType) -> Remedy:
    return Remedy(f"write {argument}.astype(jnp.{expected.name.lower()})", f"write data_type=DataType.{expected.name}")


def converted(slot: Slot, parameters: Container[str], received: DataType, expected: DataType, owner: str) -> Remedy:
    """Advice for a tensor, such as a zero point, whose type must be that of the tensor `owner`."""
    remedy = cast(slot.argument, expected)
    if slot.role.parameter != "zero_point":
        return remedy
    if received.name.startswith("FLOAT"):
        return remedy._replace(in_call=float_zero_point(slot.argument, parameters))
    return remedy._replace(in_call=retyped_zero_point(slot.argument, received, expected, owner))


def float_zero_point(zero_point: str, parameters: Container[str]) -> str:
    """Asks whether scale and zero point were swapped. Avoids a cast, which would turn a scale below 1 into 0."""
    scale = zero_point.replace("zero_point", "scale")
    return "a zero point is an integer" + (f": are {scale} and {zero_point} swapped?" if scale in parameters else "")


def retyped_zero_point(zero_point: str, received: DataType, expected: DataType, owner: str) -> str:
    """Suggests a cast between integer types, except between types of the same size: int8 -64 would become uint8 192."""
    if received.bits == expected.bits:
        return f"give the {expected.name} zero point that {owner} was quantized with"
    is_signed, wants_signed = (not data_type.name.startswith("U") for data_type in (received, expected))
    keeps_all_values = expected.bits > received.bits and (wants_signed or not is_signed)
    cast = f"write {zero_point}.astype(jnp.{expected.name.lower()})"
    return cast if keeps_all_values else f"if all values of {zero_point} fit {expected.name}, {cast}"


# Scales, zero points, matrices ---------------------------------------------------------------------------------------


def to_form(
    argument: str, sizes: Shape, forms: Sequence[Shape], exact: Sequence[Shape], otherwise: str | Remedy
) -> str | Remedy:
    """Advice to reshape a tensor to one of `forms` with the same number of values; `otherwise` if none fits."""
    number = known_elements(sizes)
    fitting = [form for form in forms if math.prod(form) == number > 1]
    if not fitting:
        return otherwise or (f"there are {number} values" if number > 1 else "")
    bare = without_leading_ones(fitting[0])
    trailing = 0 if (number,) in exact else len(bare) - 1

    def in_call(shape: Shape) -> str:
        if len(shape) == 1 and trailing == 1:
            return f"write {argument}[:, None]"
        return f"write {argument}.reshape(-1{', 1' * trailing})"

    in_desc = aligned(fitting[0], len(sizes)) if len(bare) <= len(sizes) else fitting[0]
    return Remedy(in_call, f"write sizes={in_desc}")


def even_blocks(axis: int, blocks: Any, size: Any) -> str:
    """Advice for a dimension whose size is not a multiple of the number of blocks."""
    if not isinstance(blocks, int) or not isinstance(size, int):
        return f"give dimension {axis} size 1 or the size of the input's dimension"
    if blocks > size:
        return f"there are more values than elements in dimension {axis}"
    padded = -(-size // blocks) * blocks
    return f"pad the input to {padded} in dimension {axis}, or give a number of values that divides {size}"


def matched(a: TensorDesc, b: TensorDesc, matrix: int) -> str:
    """How to write `a` and `b` so that their sizes fit: in a product if `matrix` is 2, in a sum if it is 0.

    The text is empty if nothing helps.
    """
    for turned in ("", "b", "a"):  # b before a: other libraries store weights as [N, K]
        pair = {name: (*s[:-2], *s[:-3:-1]) if name == turned else s for name, s in (("a", a.sizes), ("b", b.sizes))}
        leading = broadcast(*(sizes[: len(sizes) - matrix] for sizes in pair.values()))
        if leading is not None and (not matrix or pair["a"][-1] == pair["b"][-2]):
            whole = {name: (*leading, *sizes[len(sizes) - matrix :]) for name, sizes in pair.items()}
            steps = {name: _step(name, sizes, whole[name], name == turned) for name, sizes in pair.items()}
            verbs = {"a": "write", "b": "prepare" if b.flags else "write"}
            advice = [f"{verbs[name]} {step}" for name, step in steps.items() if step != name]
            stacks = [other for name, other in ("ab", "ba") if whole[name][1:] == pair[name]]
            is_stack = stacks and not turned and not advice[1:]
            return " and ".join(advice) + (f", or use jax.vmap over a stack of {stacks[0]}" if is_stack else "")
    return ""


def _step(name: str, sizes: Shape, whole: Shape, is_turned: bool) -> str:
    """Code that transposes a tensor if `is_turned`, and then broadcasts it from `sizes` to `whole`."""
    step = name + (".T" if len(sizes) == 2 else ".swapaxes(-1, -2)") * is_turned
    if sizes == whole:
        return step
    return f"{step}[None]" if whole == (1, *sizes) else f"jnp.broadcast_to({step}, {whole})"


# Convolutions --------------------------------------------------------------------------------------------------------


class _Layout(NamedTuple):
    """Names of DirectML's layouts and of channels-last layouts.

    `data_axes` and `filter_axes` transpose from a channels-last layout to DirectML's.
    """

    data: str
    filter: str
    data_last: str
    filter_last: str
    data_axes: Shape
    filter_axes: Shape


LAYOUTS = {  # keyed by the number of spatial dimensions
    1: _Layout("NCW", "[O, I, W]", "NWC data", "a WIO filter", (0, 2, 1), (2, 1, 0)),
    2: _Layout("NCHW", "[O, I, H, W]", "NHWC data", "an HWIO filter", (0, 3, 1, 2), (3, 2, 0, 1)),
}


def channels(desc: Any) -> Remedy:
    """Advice for channels that do not fit: transposes and group counts that make them fit, or other changes."""
    sizes, filter, groups = desc.input_tensor.sizes, desc.filter_tensor.sizes, desc.group_count
    layout = LAYOUTS[len(sizes) - 2]
    is_square = len(filter) == 4 and isinstance(sum(filter), int) and filter[2] == filter[3] < max(filter[:2])

    def fitting(turns: Sequence[bool], *, regroup: bool) -> list[tuple[bool, bool, int]]:
        choices = []
        for of_filter, of_input in itertools.product(turns, (False, True)):
            data = tuple(sizes[axis] for axis in layout.data_axes) if of_input else sizes
            weights = tuple(filter[axis] for axis in layout.filter_axes) if of_filter else filter
            is_known = isinstance(data[1] + weights[1], int)
            count = groups if not regroup else data[1] // weights[1] if is_known else 0
            if _fits(desc, data, weights, count):
                choices.append((of_input, of_filter, count))
        return choices

    # A filter such as [8, 4, 3, 3] is not transposed: only its last two sizes can be a kernel. The filters
    # [8, 4, 8, 1] and [8, 8, 3, 3] may be HWIO.
    turns = (False,) if is_square and filter[0] != filter[1] else (False, True)
    choices = fitting(turns, regroup=False)
    if all(of_filter for _, of_filter, _ in choices):
        choices = fitting((False,), regroup=True) + choices
    if not choices and groups == 1:
        choices = fitting(turns, regroup=True)
    outputs = f" and a multiple of {groups} output channels" if groups > 1 else ""
    otherwise = f"give a filter with {sizes[1] // groups} input channels{outputs}"
    otherwise = f"give a group_count that divides {sizes[1]}" if sizes[1] % groups else otherwise

    def text(data: str, weights: str, strides: str) -> str:
        advice = []
        for *turned, count in choices:
            steps = [*itertools.compress((data, weights), turned), *[f"group_count={count}"] * (count != groups)]
            kinds = " and ".join(itertools.compress((layout.data_last, layout.filter_last), turned))
            advice.append(" and ".join(steps) + (f" {strides}for {kinds}" if kinds else ""))
        return f"write {', or '.join(advice)}" if advice else otherwise

    array = "filter.array" if desc.filter_tensor.flags else "filter"  # prepared weights have no transpose
    in_call = text(f"input.transpose{layout.data_axes}", f"{array}.transpose{layout.filter_axes}", "")
    return Remedy(in_call, text(f"{layout.data} Sizes", f"{layout.filter} Sizes", "with Strides "))


def _fits(desc: Any, input: Shape, filter: Shape, groups: int) -> bool:
    """Whether a filter's channels and kernel fit an input, given their sizes. A symbolic kernel or extent fits."""
    windows = zip(input[2:], filter[2:], desc.dilations, desc.start_padding, desc.end_padding, strict=True)
    return (
        input[1] == filter[1] * groups
        and not filter[0] % groups
        and all(not isinstance(n + k, int) or (k - 1) * step < n + start + end for n, k, step, start, end in windows)
    )


def outputs_first(filter: Shape, parameter: TensorDesc | None) -> str | Remedy:
    """Advice for a parameter that fits the filter's last size: the output channels may be last."""
    if parameter is None or not 1 < known_elements(parameter.sizes) == filter[-1]:
        return ""
    layout = LAYOUTS[len(filter) - 2]
    order = f"the filter must be {layout.filter}: "
    return Remedy(
        f"{order}write filter.transpose{layout.filter_axes} for {layout.filter_last}",
        f"{order}Strides can describe {layout.filter_last}",
    )


def too_many_dimensions(input: TensorDesc) -> str | None:
    return "DirectML convolves in one or two spatial dimensions" if len(input.sizes) > 4 else None


def stack_of_filters(filter: TensorDesc) -> str | Remedy | None:
    if len(filter.sizes) <= 4:
        return None
    advice = "a stack of filters is not a filter: "
    return Remedy(
        advice + "prepare it with jax.vmap(dml.prepare_convolution_filter), and convolve under jax.vmap",
        advice + "write a desc for one of them",
    )


def smaller_kernel(extent: Sequence[Any], kernel: Sequence[Any]) -> str:
    """Advice for a kernel that is larger than the padded input."""
    if all(isinstance(size, int) and size < window for size, window in zip(extent, kernel, strict=True)):
        return "pad the input, shrink the kernel, or swap input and filter"
    return "pad the input or shrink the kernel"


# Windows -------------------------------------------------------------------------------------------------------------

PAD_LESS = "pad less"
MEANS_OF_MEANS = "pool twice with smaller windows"
KNOWN_FILTER = "export a program for each filter's shape"
WHOLE_IMAGE = "write integers, or window_size=input.shape[2:] for global pooling"
PLAIN_WINDOW = "set dilations=1, start_padding=0 and end_padding=0"
ONLY_PADDING = "pad less, or set include_padding"
ONLY_GAPS = "use a dilation no larger than the input's size, or set include_padding"


def smaller_window(input: Shape, window: Sequence[int]) -> Remedy:
    """Advice for a pooling window larger than the padded input, with a transpose if the channels may come last."""
    advice = "pad the input or shrink the window"
    pairs = list(zip(input[1:-1], window, strict=True))
    if all(isinstance(size, int) for pair in pairs for size in pair) and all(size >= extent for size, extent in pairs):
        order = (0, len(input) - 1, *range(1, len(input) - 1))
        return Remedy(f"{advice}, or write input.transpose{order} if channels come last", advice)
    return Remedy(advice, advice)
