"""Gathers and dynamic slices."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from jaxdml._graph.graph import Node
from jaxdml.onnx._write.dimensions import is_known
from jaxdml.onnx._write.elementwise import cast_to
from jaxdml.onnx._write.movers import reshaped, sliced, transposed
from jaxdml.onnx._write.table import CannotWrite, equation
from jaxdml.onnx._write.writer import Writer

INDICES = (np.int32, np.int64)  # the types of indices in ONNX
OUTSIDE = "it reads outside of the array", "write mode='clip', or indices that lie inside of the array"


@equation("dynamic_slice")
def dynamic_slice(writer: Writer, node: Node) -> str:
    x, *starts = node.inputs
    shape, sizes = writer.shape(x), node.options["equation"].params["slice_sizes"]
    value = writer.read(x)
    for axis, (name, size, length) in enumerate(zip(starts, sizes, shape, strict=True)):
        if str(size) == str(length):
            continue
        if not is_known(size):
            raise CannotWrite("it takes a part whose size is not known")
        number = writer.number(name)
        if number is not None and is_known(length):
            start = min(max(int(number), 0), length - size)
            value = sliced(writer, value, [(start, start + size, 1) if i == axis else (0, None, 1)
                                           for i in range(len(shape))])  # fmt: skip
            continue
        value = writer.emit("Gather", value, places_of_part(writer, name, size, length), axis=axis)
    return value


def places_of_part(writer: Writer, name: str, size: int, length: Any) -> str:
    """The indices of a part of an axis whose start depends on data, clamped so that the part lies inside the axis.

    Unlike a Slice with a computed end, a Gather of these indices has a size that is known without the data.
    """
    start = writer.emit("Reshape", cast_to(writer, writer.read(name), np.int64), writer.int64([1]))
    if is_known(length):
        last = writer.int64([length - size])
    else:
        last = writer.emit("Sub", writer.dimensions.value(length), writer.int64([size]))
    start = writer.emit("Min", writer.emit("Max", start, writer.int64([0])), last)
    return start if size == 1 else writer.emit("Add", start, writer.int64(np.arange(size)))


@equation("gather")
def gather(writer: Writer, node: Node) -> str:
    """A gather as Gather, GatherElements, GatherND or Slice, whichever computes the same result."""
    params = node.options["equation"].params
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    x, indices = node.inputs
    shape = writer.shape(x)
    whole = [str(size) == str(length) for size, length in zip(sizes, shape, strict=True)]
    collapsed = tuple(numbers.collapsed_slice_dims)
    batch, mapped = tuple(numbers.operand_batching_dims), tuple(numbers.start_index_map)
    rest = [axis for axis in range(len(shape)) if axis not in (*collapsed, *batch)]
    is_whole = all(whole[axis] for axis in rest)
    if not batch and is_whole and set(collapsed) == set(mapped) and mapped:
        return _of_points(writer, node, mapped, rest)
    free = len(writer.shape(indices)) - 1 - len(batch)  # axes of the indices that are not axes of the array
    if batch and len(mapped) == free == 1 and not rest and collapsed == mapped:
        return _of_rows(writer, node, mapped[0])
    if batch and is_whole and set(collapsed) == set(mapped) and mapped:
        return _of_own_points(writer, node, mapped, rest)
    places = writer.constants.get(indices)
    if not batch and places is not None and places.ndim == 1:
        return _of_one_part(writer, node, places, collapsed)
    if places is not None:
        raise CannotWrite("it gathers several parts at once", "slice one axis at a time: x[:, 1:][:, :, ::2]")
    raise CannotWrite("it gathers parts of rows at places that depend on data")


def places_inside(writer: Writer, node: Node, lengths: list[Any], outside: Sequence[str] = OUTSIDE) -> str:
    """The indices, in bounds unless the gather's mode is fill. Their last axis has one index for each of the `lengths`.

    Raises:
      CannotWrite: if known indices lie out of bounds and the gather does not clamp, because ONNX's Gather has no fill
        value. Also if a known index along an axis of unknown size is negative, or may need clamping.
    """
    name, clamps = node.inputs[1], node.options["equation"].params["mode"] == lax.GatherScatterMode.CLIP
    known = writer.constants.get(name)
    if known is None:
        return _unknown_places(writer, node, lengths)
    if not all(map(is_known, lengths)):
        if (known < 0).any() or (clamps and known.any()):
            raise CannotWrite("its places may lie outside of an axis whose size is not known")
        return writer.read(name)
    inside = np.clip(known, 0, np.asarray([length - 1 for length in lengths], known.dtype))
    if (known == inside).all():
        return writer.read(name)
    if not clamps:
        raise CannotWrite(*outside)
    return writer.array(inside, name)


def _unknown_places(writer: Writer, node: Node, lengths: list[Any]) -> str:
    """Indices that depend on data, clamped; if the gather fills, negative indices are moved past the end instead.

    ONNX counts negative indices from the end. Indices past the end raise an error in onnxruntime.
    """
    name, emit = node.inputs[1], writer.emit
    places, dtype = writer.read(name), writer.dtype(name)
    if dtype not in INDICES or not all(map(is_known, lengths)):
        places, dtype = cast_to(writer, places, np.int64), np.dtype(np.int64)

    def row(sizes: list[Any]) -> str:
        return writer.array(np.asarray(sizes, dtype)) if all(map(is_known, sizes)) else writer.dimensions.shape(sizes)

    zero = writer.array(np.zeros(1, dtype))
    if node.options["equation"].params["mode"] == lax.GatherScatterMode.FILL_OR_DROP:
        return emit("Where", emit("Less", places, zero), row(lengths), places)
    return emit("Min", emit("Max", places, zero), row([length - 1 for length in lengths]))


def _of_points(writer: Writer, node: Node, mapped: tuple[int, ...], rest: list[int]) -> str:
    """Gathers whole rows at points along the mapped axes."""
    x, indices = node.inputs
    numbers = node.options["equation"].params["dimension_numbers"]
    shape, points = writer.shape(x), writer.shape(indices)
    places = places_inside(writer, node, [shape[axis] for axis in mapped])
    if len(mapped) == 1:
        places = reshaped(writer, places, points, points[:-1])
        value = writer.emit("Gather", writer.read(x), places, axis=mapped[0])
        # The result has the axes before the mapped one, those of the indices, and the rest.
        before = mapped[0]
        own = [*range(before), *range(before + len(points) - 1, len(rest) + len(points) - 1)]
    else:
        value = transposed(writer, writer.read(x), [*mapped, *rest])
        value = writer.emit("GatherND", value, cast_to(writer, places, np.int64))
        own = [*range(len(points) - 1, len(rest) + len(points) - 1)]
    of_indices = [axis for axis in range(len(rest) + len(points) - 1) if axis not in own]
    order = [0] * (len(own) + len(of_indices))
    offsets = tuple(numbers.offset_dims)
    others = [axis for axis in range(len(order)) if axis not in offsets]
    for target, source in zip((*offsets, *others), (*own, *of_indices), strict=True):
        order[target] = source
    return transposed(writer, value, order)


def _of_rows(writer: Writer, node: Node, axis: int) -> str:
    """Gathers the element at each index from the row that belongs to the index, as in `jnp.take_along_axis`."""
    x, indices = node.inputs
    numbers = node.options["equation"].params["dimension_numbers"]
    shape, points = writer.shape(x), writer.shape(indices)
    batch, of_indices = tuple(numbers.operand_batching_dims), tuple(numbers.start_indices_batching_dims)
    (free,) = (i for i in range(len(points) - 1) if i not in of_indices)
    # The axis of the indices for each axis of the array.
    of_axis = dict(zip(batch, of_indices, strict=True)) | {axis: free}
    order = [of_axis[i] for i in range(len(shape))]
    places = reshaped(writer, places_inside(writer, node, [shape[axis]]), points, points[:-1])
    value = writer.emit("GatherElements", writer.read(x), transposed(writer, places, order), axis=axis)
    return transposed(writer, value, np.argsort(order))


def _of_own_points(writer: Writer, node: Node, mapped: tuple[int, ...], rest: list[int]) -> str:
    """Gathers whole rows of each item at points of its own, as in `jax.vmap(lambda x, i: x[i])`."""
    x, indices = node.inputs
    numbers = node.options["equation"].params["dimension_numbers"]
    batch, of_indices = tuple(numbers.operand_batching_dims), tuple(numbers.start_indices_batching_dims)
    last = len(writer.shape(indices)) - 1
    axes = [*of_indices, *(i for i in range(last) if i not in of_indices)]  # GatherND's result has the batch first
    places = places_inside(writer, node, [writer.shape(x)[axis] for axis in mapped])
    places = cast_to(writer, transposed(writer, places, [*axes, last]), np.int64)
    value = transposed(writer, writer.read(x), [*batch, *mapped, *rest])
    value = writer.emit("GatherND", value, places, batch_dims=len(batch))
    offsets = tuple(numbers.offset_dims)
    others = [axis for axis in range(last + len(rest)) if axis not in offsets]
    order = [0] * (last + len(rest))
    for target, source in zip((*offsets, *others), (*range(last, last + len(rest)), *np.argsort(axes)), strict=True):
        order[target] = int(source)
    return transposed(writer, value, order)


def _of_one_part(writer: Writer, node: Node, places: np.ndarray, collapsed: tuple[int, ...]) -> str:
    """Slices a single part of the array, at a known place."""
    params, x = node.options["equation"].params, node.inputs[0]
    shape, sizes = writer.shape(x), params["slice_sizes"]
    starts = dict(zip(params["dimension_numbers"].start_index_map, map(int, places), strict=True))
    parts = list[tuple[int, Any, int]]()
    for axis, (size, length) in enumerate(zip(sizes, shape, strict=True)):
        start = starts.get(axis, 0)
        if str(size) == str(length):
            parts.append((0, None, 1))
        elif is_known(length) and is_known(size):
            inside = min(max(start, 0), length - size)
            if inside != start and params["mode"] != lax.GatherScatterMode.CLIP:
                raise CannotWrite(*OUTSIDE)
            parts.append((inside, inside + size, 1))
        elif start < 0:
            raise CannotWrite("its place may lie outside of an axis whose size is not known")
        else:
            parts.append((start, start + size, 1))
    value = sliced(writer, writer.read(x), parts)
    return writer.emit("Squeeze", value, writer.int64(collapsed)) if collapsed else value
