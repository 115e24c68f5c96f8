"""Updates of parts of an array: dynamic_update_slice, and scatters that replace or combine."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jax import lax

from jaxdml._graph.graph import Node
from jaxdml.onnx._write.dimensions import is_known
from jaxdml.onnx._write.elementwise import cast_to
from jaxdml.onnx._write.indexing import places_inside, places_of_part
from jaxdml.onnx._write.movers import reshaped, sliced, transposed
from jaxdml.onnx._write.reductions import reduced
from jaxdml.onnx._write.table import CannotWrite, equation
from jaxdml.onnx._write.writer import Writer

OUTSIDE = "it writes outside of the array", "write mode='clip', or indices that lie inside of the array"


class Combination(NamedTuple):
    """How a scatter combines elements with updates.

    Attributes:
      reduction: the attribute of ScatterND.
      operator: the operator of an element and an update.
      least_opset: the first opset in which ScatterND has the reduction.
    """

    reduction: str
    operator: str
    least_opset: int


COMBINATIONS = {
    "scatter-add": Combination("add", "Add", 16),
    "scatter-sub": Combination("add", "Add", 16),  # of negated updates
    "scatter-mul": Combination("mul", "Mul", 16),
    "scatter-max": Combination("max", "Max", 18),
    "scatter-min": Combination("min", "Min", 18),
}


class Part(NamedTuple):
    """A part of an axis.

    Attributes:
      size: the number of its elements.
      start: the first of them, if it is known.
      places: a value of the file with the indices of all elements, if the first one depends on data.
    """

    size: int
    start: int = 0
    places: str = ""


@equation("dynamic_update_slice")
def dynamic_update_slice(writer: Writer, node: Node) -> str:
    x, update, *starts = node.inputs
    parts = dict[int, Part]()
    sizes = zip(starts, writer.shape(update), writer.shape(x), strict=True)
    for axis, (name, size, length) in enumerate(sizes):
        if str(size) == str(length):
            continue
        if not (is_known(size) and is_known(length)):
            raise CannotWrite("it updates a part whose size is not known")
        number = writer.number(name)
        if number is None:
            parts[axis] = Part(size, places=places_of_part(writer, name, size, length))
        else:
            parts[axis] = Part(size, min(max(int(number), 0), length - size))
    return _with_part(writer, lambda: writer.read(x), parts, writer.rank(x), lambda _: writer.read(update))


@equation("scatter", *COMBINATIONS)
def scatter(writer: Writer, node: Node) -> str:
    """Updates whole rows at points along some axes, or one part at a known place."""
    params = node.options["equation"].params
    numbers = params["dimension_numbers"]
    x, indices, update = node.inputs
    shape, points = writer.shape(x), writer.shape(indices)
    inserted, mapped = tuple(numbers.inserted_window_dims), tuple(numbers.scatter_dims_to_operand_dims)
    if node.options["equation"].name == "scatter" and params["update_jaxpr"] is not None:
        raise CannotWrite("it applies a function", "write x.at[i].set(f(x[i])) in place of x.at[i].apply(f)")
    if numbers.operand_batching_dims:
        raise CannotWrite("it updates elements of rows by indices of each row")
    window = [axis for axis in range(len(shape)) if axis not in inserted]
    sizes = dict(zip(window, (writer.shape(update)[axis] for axis in numbers.update_window_dims), strict=True))
    is_whole = all(str(sizes[axis]) == str(shape[axis]) for axis in window)
    if is_whole and set(inserted) == set(mapped):
        return _at_points(writer, node, mapped, window)
    places = writer.constants.get(indices)
    if places is None:
        raise CannotWrite("it updates parts of rows at places that depend on data")
    if len(points) != 1:
        remedy = "update one axis at a time: x.at[:, 1:3].set(x[:, 1:3].at[:, :, ::2].add(y))"
        raise CannotWrite("it updates several parts at once", remedy)
    return _at_one_part(writer, node, dict(zip(mapped, map(int, places), strict=True)), sizes)


def _at_points(writer: Writer, node: Node, mapped: tuple[int, ...], rest: list[int]) -> str:
    """Updates rows of an array at points along the mapped axes."""
    equation, (x, indices, update) = node.options["equation"], node.inputs
    shape, of_window = writer.shape(x), equation.params["dimension_numbers"].update_window_dims
    order, lengths = [*mapped, *rest], [shape[axis] for axis in mapped]
    of_points = [axis for axis in range(writer.rank(update)) if axis not in of_window]
    value = transposed(writer, writer.read(x), order)
    rows = transposed(writer, _read_update(writer, node), [*of_points, *of_window])
    combination, opset = COMBINATIONS.get(equation.name), writer.options.opset
    if combination and opset < combination.least_opset:
        remedy = f"write opset={combination.least_opset}"
        raise CannotWrite(f"opset {opset} has no reduction {combination.reduction!r} of ScatterND", remedy)
    reduction: dict[str, Any] = {"reduction": combination.reduction} if combination else {}

    def scattered(value: str, places: str) -> str:
        return writer.emit("ScatterND", value, places, rows, **reduction)

    if indices in writer.constants or equation.params["mode"] != lax.GatherScatterMode.FILL_OR_DROP:
        value = scattered(value, cast_to(writer, places_inside(writer, node, lengths, OUTSIDE), np.int64))
    else:
        value = _with_spare_row(writer, value, lengths, [shape[axis] for axis in rest], indices, scattered)
    return transposed(writer, value, np.argsort(order))


def _read_update(writer: Writer, node: Node) -> str:
    update = writer.read(node.inputs[2])
    return writer.emit("Neg", update) if node.options["equation"].name == "scatter-sub" else update


def _with_spare_row(
    writer: Writer, value: str, lengths: list[Any], rest: list[Any], indices: str, scattered: Callable[[str, str], str]
) -> str:
    """Scatters into an array with a spare row, which receives out-of-bounds updates and is then dropped."""
    if not all(map(is_known, lengths)):
        raise CannotWrite("its indices may lie outside of an axis whose size is not known")
    count, zero = math.prod(lengths), writer.int64([0])
    value = reshaped(writer, value, [*lengths, *rest], [count, *rest])
    value = writer.emit("Concat", value, writer.emit("Slice", value, zero, writer.int64([1]), zero), axis=0)
    places = cast_to(writer, writer.read(indices), np.int64)
    is_inside = writer.emit("Less", places, writer.int64(lengths))
    is_outside = writer.emit("Or", writer.emit("Less", places, zero), writer.emit("Not", is_inside))
    is_outside = reduced(writer, "ReduceMax", cast_to(writer, is_outside, np.int32), [-1], keep=True)
    steps = np.cumprod([1, *lengths[:0:-1]])[::-1]
    flat = reduced(writer, "ReduceSum", writer.emit("Mul", places, writer.int64(steps)), [-1], keep=True)
    flat = writer.emit("Where", cast_to(writer, is_outside, np.bool_), writer.int64([count]), flat)
    value = scattered(value, reshaped(writer, flat, None, [*writer.shape(indices)[:-1], 1]))
    value = writer.emit("Slice", value, zero, writer.int64([count]), zero)
    return reshaped(writer, value, [count, *rest], [*lengths, *rest])


def _at_one_part(writer: Writer, node: Node, places: Mapping[int, int], sizes: Mapping[int, Any]) -> str:
    """Updates a single part of an array, at a known place; axes without a size are one element wide."""
    equation, x = node.options["equation"], node.inputs[0]
    parts = dict[int, Part]()
    for axis, length in enumerate(writer.shape(x)):
        size, start = sizes.get(axis, 1), places.get(axis, 0)
        if str(size) == str(length):
            continue
        if not (is_known(size) and is_known(length)):
            raise CannotWrite("it updates a part whose size is not known")
        inside = min(max(start, 0), length - size)
        if inside != start and equation.params["mode"] != lax.GatherScatterMode.CLIP:
            raise CannotWrite(*OUTSIDE)
        parts[axis] = Part(size, inside)
    value, inserted = _read_update(writer, node), equation.params["dimension_numbers"].inserted_window_dims
    if inserted:
        value = writer.emit("Unsqueeze", value, writer.int64(inserted))
    combination = COMBINATIONS.get(equation.name)

    def updated(old: Callable[[], str]) -> str:
        return writer.emit(combination.operator, old(), value) if combination else value

    return _with_part(writer, lambda: writer.read(x), parts, writer.rank(x), updated)


def _with_part(
    writer: Writer,
    old: Callable[[], str],
    parts: Mapping[int, Part],
    rank: int,
    update: Callable[[Callable[[], str]], str],
) -> str:
    """A value of the file: the old one, with the elements in the parts of some axes replaced by `update`."""
    if not parts:
        return update(old)
    (axis, part), *others = parts.items()
    value, end = old(), part.start + part.size

    def cut(start: int, end: int | None) -> str:
        return sliced(writer, value, [(start, end, 1) if other == axis else (0, None, 1) for other in range(rank)])

    def inside() -> str:
        return writer.emit("Gather", value, part.places, axis=axis) if part.places else cut(part.start, end)

    new = _with_part(writer, inside, dict(others), rank, update)
    if not part.places:
        return writer.emit("Concat", cut(0, part.start), new, cut(end, None), axis=axis)
    # The sizes before and after the part depend on data. ScatterElements at the part's indices keeps all shapes known.
    places = reshaped(writer, part.places, None, [part.size if other == axis else 1 for other in range(rank)])
    places = writer.emit("Expand", places, writer.emit("Shape", new))
    return writer.emit("ScatterElements", value, places, new, axis=axis)
