"""Converts poolings and means over axes."""

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from jaxdml.ptq._build import operators as op
from jaxdml.ptq._build.builder import Builder
from jaxdml.ptq._trace.equations import Equation

SIZES = [np.dtype(each) for each in (np.int32, np.int64, np.float32, np.float64)]  # types that hold sizes


def _in_order(builder: Builder, equation: Equation, *words: str) -> dict[str, Any]:
    """The equation's parameters `words`, which have one element for each axis, in the graph's order of axes."""
    order = builder.layouts.of(equation.inputs[0]).order
    return {word: tuple(tuple(x) if isinstance(x := equation.params[word][i], tuple | list) else x for i in order)
            for word in words}  # fmt: skip


def max_pool(builder: Builder, equation: Equation) -> None:
    reaches = zip(equation.params["padding"], equation.params["window_dimensions"], strict=True)
    # A window of only padding gives minus infinity, which no integer represents.
    may_see_padding_alone = any(pad >= size for pair, size in reaches for pad in pair if pad)
    if may_see_padding_alone or any(size != 1 for size in equation.params["base_dilation"]):
        builder.unchanged(equation)
        return
    words = "window_dimensions", "window_strides", "padding", "window_dilation"
    window, strides, padding, dilations = _in_order(builder, equation, *words).values()
    options = {"window": window, "strides": strides, "padding": padding, "dilations": dilations}
    held = builder.layouts.of(equation.inputs[0])
    builder.node(op.MAX_POOL, (held.name,), equation.outputs, options, equation)
    builder.layouts.hold(equation.outputs[0], equation.outputs[0], held.order)


def summed(builder: Builder, equation: Equation) -> list[Equation]:
    """Appends a sum over axes, or a mean if the next equation, apart from reshapes, divides the sum by the count."""
    data, axes, total = equation.inputs[0], equation.params["axes"], equation.outputs[0]
    count = math.prod(builder.shape(data)[axis] for axis in axes)
    reader = kept = builder.only_reader(total)
    if kept is not None and kept.name in ("broadcast_in_dim", "reshape", "expand_dims") and len(kept.inputs) == 1 and (
        math.prod(builder.shape(total)) == math.prod(builder.shape(kept.outputs[0]))
    ):  # fmt: skip
        reader = builder.only_reader(kept.outputs[0])
    if reader is None or kept is None or not axes or not _divides(builder, reader, count):
        builder.unchanged(equation)
        return []
    if axes == (len(builder.shape(data)) - 1,):  # a norm over channels: its equations work on rows
        builder.layouts.restore(data)
    held = builder.layouts.of(data)
    builder.node(op.MEAN, (held.name,), (total,), {"axes": tuple(sorted(held.places(axes)))}, equation, and_then=reader)
    left = [axis for axis in held.order if axis not in axes]
    builder.layouts.hold(total, total, tuple(sum(a < b for a in left) for b in left))
    if kept is not reader:
        builder.unchanged(kept, "mover")
    divided = builder.layouts.of(reader.inputs[0])
    builder.layouts.hold(reader.outputs[0], divided.name, divided.order)
    return [kept, reader]


def _divides(builder: Builder, reader: Equation, count: Any) -> bool:
    """Whether an equation divides its first input by a count, which may be symbolic."""
    if reader.name not in ("div", "mul") or not builder.is_data(reader.inputs[0]) or builder.is_data(reader.inputs[1]):
        return False
    if not isinstance(count, int):
        return _divides_by_size(builder, reader, count)
    found = builder.fixed.number(reader.inputs[1])
    number = float("nan") if found is None else float(found)
    if not number or not count:  # the mean of an empty image, such as the result of a window larger than its input
        return number == count and reader.name == "div"
    return abs((number if reader.name == "div" else 1 / number) - count) < 1e-6 * count


def _divides_by_size(builder: Builder, reader: Equation, size: Any) -> bool:
    """Whether a division is by a symbolic size, or a multiplication by 1 over the size."""
    division = reader if reader.name == "div" else _maker(builder, reader.inputs[1], SIZES)
    if division is None or division.name != "div":
        return False
    if division is not reader and builder.fixed.number(division.inputs[0]) != 1:
        return False
    divisor = _maker(builder, division.inputs[1], SIZES)
    return divisor is not None and divisor.name == "dim_as_value" and divisor.params["dim"] == size


def window_sum(builder: Builder, equation: Equation) -> list[Equation]:
    """Appends a sum over windows, or average pooling if the next equation divides by each window's element count."""
    window = equation.params["window_dimensions"]
    reader = builder.only_reader(equation.outputs[0])
    is_cropped = any(pad < 0 for pair in equation.params["padding"] for pad in pair)
    is_spread = is_cropped or any(
        size != 1 for word in ("base_dilation", "window_dilation") for size in equation.params[word]
    )
    is_counted = reader is not None and _divides(builder, reader, math.prod(window))
    is_uncounted = reader is not None and _divides_by_counts(builder, reader, equation)
    options = _in_order(builder, equation, "window_dimensions", "window_strides", "padding")
    window, strides, padding = options.values()
    spatial = sum((size, stride, *pair) != (1, 1, 0, 0)
                  for size, stride, pair in zip(window, strides, padding, strict=True))  # fmt: skip
    if reader is None or is_spread or spatial not in (1, 2) or not (is_counted or is_uncounted):
        builder.unchanged(equation)
        return []
    held = builder.layouts.of(equation.inputs[0])
    options = {"window": window, "strides": strides, "padding": padding, "include_padding": is_counted}
    builder.node(op.AVERAGE_POOL, (held.name,), reader.outputs, options, equation, and_then=reader)
    builder.layouts.hold(reader.outputs[0], reader.outputs[0], held.order)
    return [reader]


def _divides_by_counts(builder: Builder, reader: Equation, sums: Equation) -> bool:
    """Whether an equation divides sums over windows by the sums of ones over the same windows."""
    if reader.name != "div" or reader.inputs[0] != sums.outputs[0]:
        return False
    counts = _maker(builder, reader.inputs[1])
    if counts is None or counts.name != sums.name or builder.fixed.number(counts.inputs[0]) != 1:
        return False
    # The array of ones may lack the batch and channel axes.
    words = "window_dimensions", "window_strides", "padding"
    return all(_without_ones(counts.params[word]) == _without_ones(sums.params[word]) for word in words)


def _maker(builder: Builder, value: Any, types: Collection[Any] | None = None) -> Equation | None:
    """The equation that makes a fixed value, before broadcasts, reshapes and casts to `types`; None: to any type."""
    maker = builder.fixed.maker(value)
    while maker is not None and (
        maker.name in ("broadcast_in_dim", "reshape")
        or (maker.name == "convert_element_type" and (types is None or maker.params["new_dtype"] in types))
    ):
        maker = builder.fixed.maker(maker.inputs[0])
    return maker


def _without_ones(each: Any) -> list[Any]:
    return [x for x in each if x != 1 and (isinstance(x, int) or tuple(x) != (0, 0))]
