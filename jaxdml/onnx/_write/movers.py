"""Nodes that move elements: reshapes, transpositions, slices, paddings, concatenations."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jaxdml._graph.graph import Node
from jaxdml.onnx._write.dimensions import is_known
from jaxdml.onnx._write.table import CannotWrite, equation, operator
from jaxdml.onnx._write.writer import Writer, data_type, stored_type
from jaxdml.ptq._build.phases import interleaving

Sizes = Sequence[Any]
BITS = {"float32": (8, 23), "float64": (11, 52)}  # of exponent and mantissa
END = np.iinfo(np.int64).max


def reshaped(writer: Writer, value: str, before: Sizes | None, after: Sizes) -> str:
    """A value of the file in another shape.

    Args:
      writer: collects the nodes.
      value: the value.
      before: its shape, which saves a node or the computation of sizes; None if the caller does not know the shape.
      after: the shape of the result.
    """
    if before is not None and tuple(map(str, before)) == tuple(map(str, after)):
        return value
    before = before or ()
    unknown = [place for place, size in enumerate(after) if not is_known(size)]
    if len(unknown) > 1:  # sizes that stay where they are need not be computed
        kept = [place for place in unknown if place < len(before) and str(before[place]) == str(after[place])]
        unknown = [place for place in unknown if place not in kept]
    else:
        kept = []
    has_zero = any(is_known(size) and size == 0 for size in after)
    if len(unknown) > 1 or (unknown and has_zero):
        return writer.emit("Reshape", value, writer.dimensions.shape(after))
    sizes = [0 if i in kept else -1 if i in unknown else int(size) for i, size in enumerate(after)]
    return writer.emit("Reshape", value, writer.int64(sizes), allowzero=1 if has_zero else None)


def transposed(writer: Writer, value: str, permutation: Iterable[int]) -> str:
    """A value of the file with its axes in another order."""
    order = list(map(int, permutation))
    return value if order == sorted(order) else writer.emit("Transpose", value, perm=order)


def sliced(writer: Writer, value: str, parts: Sequence[tuple[int, Any, int]]) -> str:
    """A slice of a value of the file: start, limit and step for each axis; a limit of None means the end."""
    cut = [(axis, *part) for axis, part in enumerate(parts) if part != (0, None, 1)]
    if not cut:
        return value
    axes, starts, limits, steps = zip(*cut, strict=True)
    ends = writer.dimensions.shape([END if limit is None else limit for limit in limits])
    return writer.emit("Slice", value, writer.int64(starts), ends, writer.int64(axes), writer.int64(steps))


def padded(writer: Writer, value: str, shape: Sizes, config: Sequence[tuple[int, int, int]], fill: str) -> str:
    """A value of the file, padded before, after and between its elements; negative padding crops.

    Args:
      writer: collects the nodes.
      value: the value.
      shape: its shape.
      config: how much to pad along each axis.
      fill: a scalar of the file.
    """
    if not all(is_known(number) for each in config for number in each):
        raise CannotWrite("it pads by numbers that depend on the sizes of the inputs")
    rank, shape = len(shape), list(shape)
    for axis, (_, _, gap) in enumerate(config):
        if not gap:
            continue
        # Each element becomes a row, which is padded; the last row's padding is cut off.
        size = shape[axis]
        value = writer.emit("Unsqueeze", value, writer.int64([axis + 1]))
        pads = [0] * (2 * rank + 2)
        pads[rank + 1 + axis + 1] = gap
        value = writer.emit("Pad", value, writer.int64(pads), fill)
        rows = [*shape[:axis], size, gap + 1, *shape[axis + 1 :]]
        shape[axis] = size * (gap + 1)
        value = reshaped(writer, value, rows, shape)
        shape[axis] = shape[axis] - gap
        value = sliced(writer, value, [(0, -gap if i == axis else None, 1) for i in range(rank)])
    cuts = [(max(-low, 0), high if high < 0 else None, 1) for low, high, _ in config]
    value = sliced(writer, value, cuts)
    pads = [max(each[place], 0) for place in (0, 1) for each in config]
    return writer.emit("Pad", value, writer.int64(pads), fill, main=True) if any(pads) else value


def expanded(writer: Writer, value: str, before: Sizes, after: Sizes) -> str:
    """A value of the file with axes of size 1 repeated; `before` has the rank of `after`."""
    if tuple(map(str, before)) == tuple(map(str, after)):
        return value
    sizes = [1 if str(one) == str(other) else other for one, other in zip(before, after, strict=True)]
    return writer.emit("Expand", value, writer.dimensions.shape(sizes))


# Operators of the graph ----------------------------------------------------------------------------------------------


@operator("transpose")
def transpose(writer: Writer, node: Node) -> str:
    return transposed(writer, writer.read(node.inputs[0]), node.options["permutation"])


@operator("merge", "split", "expand")
@equation("reshape", "squeeze", "expand_dims")
def reshape(writer: Writer, node: Node) -> str:
    equation = node.options.get("equation")
    if equation is not None and equation.params.get("dimensions") is not None and equation.name == "reshape":
        raise CannotWrite("it reshapes with its axes in another order")
    before, after = writer.shape(node.inputs[0]), writer.shape(node.outputs[0])
    return reshaped(writer, writer.read(node.inputs[0]), before, after)


@operator("interleave")
def interleave(writer: Writer, node: Node) -> str:
    """Phases [N, gaps * O, *sizes] as the image [N, O, *(size * gap)], without its surplus."""
    gaps, surplus = node.options["gaps"], node.options["surplus"]
    batch, channels, *sizes = writer.shape(node.inputs[0])
    channels, order = channels // math.prod(gaps), interleaving(len(gaps))
    phases = [batch, *gaps, channels, *sizes]
    value = reshaped(writer, writer.read(node.inputs[0]), None, phases)
    image = [batch, channels, *(size * gap for size, gap in zip(sizes, gaps, strict=True))]
    value = reshaped(writer, transposed(writer, value, order), [phases[axis] for axis in order], image)
    return sliced(writer, value, [(0, -cut if cut else None, 1) for cut in (0, 0, *surplus)])


@operator("index")
def index(writer: Writer, node: Node) -> str:
    """An element of a sequence, along the first axis."""
    at = writer.array(np.int64(node.options["at"]))
    return writer.emit("Gather", writer.read(node.inputs[0]), at, axis=0)


@operator("stack")
def stack(writer: Writer, node: Node) -> str:
    rows = [writer.emit("Unsqueeze", writer.read(name), writer.int64([0])) for name in node.inputs]
    return rows[0] if len(rows) == 1 else writer.emit("Concat", *rows, axis=0)


@operator("cast")
@equation("convert_element_type", "copy", "copy_p", "name", "stop_gradient")
def cast(writer: Writer, node: Node) -> str:
    before, after = (stored_type(writer.dtype(name)) for name in (node.inputs[0], node.outputs[0]))
    value = writer.read(node.inputs[0])
    return value if before == after else writer.emit("Cast", value, to=data_type(after))


@equation("reduce_precision")
def reduce_precision(writer: Writer, node: Node) -> str:
    params, own = node.options["equation"].params, BITS.get(stored_type(writer.dtype(node.inputs[0])).name)
    exponent, mantissa = params["exponent_bits"], params["mantissa_bits"]
    if own is None or exponent < own[0] or mantissa < own[1]:
        raise CannotWrite(f"it rounds to floats of {exponent} bits of exponent and {mantissa} of mantissa")
    return writer.read(node.inputs[0])


@operator("concatenate")
def concatenation(writer: Writer, node: Node) -> str:
    values = [writer.read(name) for name in node.inputs]
    return values[0] if len(values) == 1 else writer.emit("Concat", *values, axis=node.options["axis"])


@operator("pad")
def pad_zeros(writer: Writer, node: Node) -> str:
    x = node.inputs[0]
    fill = writer.array(np.zeros((), stored_type(writer.dtype(x))))
    return padded(writer, writer.read(x), writer.shape(x), node.options["config"], fill)


# Equations -----------------------------------------------------------------------------------------------------------


@equation("transpose")
def transpose_equation(writer: Writer, node: Node) -> str:
    return transposed(writer, writer.read(node.inputs[0]), node.options["equation"].params["permutation"])


@equation("broadcast_in_dim")
def broadcast(writer: Writer, node: Node) -> str:
    if len(node.inputs) > 1:
        raise CannotWrite("its sizes depend on data")
    x, places = node.inputs[0], node.options["equation"].params["broadcast_dimensions"]
    before, after = writer.shape(x), writer.shape(node.outputs[0])
    rows = [before[places.index(axis)] if axis in places else 1 for axis in range(len(after))]
    return expanded(writer, reshaped(writer, writer.read(x), before, rows), rows, after)


@equation("concatenate")
def concatenate(writer: Writer, node: Node) -> str:
    values = [writer.read(name) for name in node.inputs]
    axis = node.options["equation"].params["dimension"]
    return values[0] if len(values) == 1 else writer.emit("Concat", *values, axis=axis)


@equation("split")
def split(writer: Writer, node: Node) -> tuple[str, ...]:
    params, value = node.options["equation"].params, writer.read(node.inputs[0])
    if len(node.outputs) == 1:
        return (value,)
    sizes = writer.dimensions.shape(params["sizes"])
    return writer.emit_many("Split", (value, sizes), len(node.outputs), axis=params["axis"])


@equation("slice")
def slice_equation(writer: Writer, node: Node) -> str:
    params, shape = node.options["equation"].params, writer.shape(node.inputs[0])
    starts, limits = params["start_indices"], params["limit_indices"]
    steps = params["strides"] or [1] * len(starts)
    if not all(map(is_known, starts)):
        raise CannotWrite("it starts at a place that depends on the sizes of the inputs")
    ends = [None if str(limit) == str(size) else limit for limit, size in zip(limits, shape, strict=True)]
    return sliced(writer, writer.read(node.inputs[0]), [*zip(starts, ends, steps, strict=True)])


@equation("rev")
def reverse(writer: Writer, node: Node) -> str:
    axes = node.options["equation"].params["dimensions"]
    starts, ends = (writer.int64([each] * len(axes)) for each in (-1, -END))
    steps = writer.int64([-1] * len(axes))
    return writer.emit("Slice", writer.read(node.inputs[0]), starts, ends, writer.int64(axes), steps)


@equation("pad")
def pad(writer: Writer, node: Node) -> str:
    x, fill = node.inputs
    config = node.options["equation"].params["padding_config"]
    return padded(writer, writer.read(x), writer.shape(x), config, writer.read(fill))


@equation("tile")
def tile(writer: Writer, node: Node) -> str:
    counts = writer.dimensions.shape(node.options["equation"].params["reps"])
    return writer.emit("Tile", writer.read(node.inputs[0]), counts)


@equation("iota")
def iota(writer: Writer, node: Node) -> str:
    """The numbers along an axis for symbolic sizes; with known sizes, the numbers are constants."""
    output, axis = node.outputs[0], node.options["equation"].params["dimension"]
    shape = writer.shape(output)
    last = writer.emit("Squeeze", writer.dimensions.value(shape[axis]), writer.int64([0]))
    numbers = writer.emit("Range", writer.array(np.int64(0)), last, writer.array(np.int64(1)))
    rows = [-1 if i == axis else 1 for i in range(len(shape))]
    value = writer.emit("Cast", numbers, to=data_type(writer.dtype(output)))
    value = writer.emit("Reshape", value, writer.int64(rows)) if len(shape) > 1 else value
    return expanded(writer, value, [size if i == axis else 1 for i, size in enumerate(shape)], shape)


@equation("dim_as_value")
def size_as_value(writer: Writer, node: Node) -> str:
    value = writer.dimensions.value(node.options["equation"].params["dim"])
    value = writer.emit("Squeeze", value, writer.int64([0]))
    return writer.emit("Cast", value, to=data_type(writer.dtype(node.outputs[0])))
