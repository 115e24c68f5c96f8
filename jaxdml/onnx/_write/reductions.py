"""Reductions along axes: sums, means, extremes, the indices of extremes, cumulative sums, the largest elements."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from jaxdml._graph.graph import Node
from jaxdml.onnx._write.elementwise import cast_to
from jaxdml.onnx._write.table import CannotWrite, equation, operator
from jaxdml.onnx._write.writer import Writer, data_type

KINDS = {"reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_prod": "ReduceProd"}
AXES_ARE_INPUTS = 18  # the first opset in which the axes are an input; for ReduceSum, it is 13


def reduced(writer: Writer, kind: str, value: str, axes: Sequence[int], *, keep: bool = False) -> str:
    """A reduction of a value of the file."""
    axes = sorted(map(int, axes))
    if not axes:
        return value
    if kind == "ReduceSum" or writer.options.opset >= AXES_ARE_INPUTS:
        return writer.emit(kind, value, writer.int64(axes), keepdims=int(keep))
    return writer.emit(kind, value, axes=axes, keepdims=int(keep))


@equation(*KINDS)
def reduce(writer: Writer, node: Node) -> str:
    equation = node.options["equation"]
    if writer.dtype(node.inputs[0]) == np.bool_:
        raise CannotWrite("it reduces booleans")
    return reduced(writer, KINDS[equation.name], writer.read(node.inputs[0]), equation.params["axes"])


@equation("reduce_and", "reduce_or")
def reduce_logical(writer: Writer, node: Node) -> str:
    equation = node.options["equation"]
    if writer.dtype(node.inputs[0]) != np.bool_:
        raise CannotWrite("it works on the bits of integers")
    kind = "ReduceMin" if equation.name == "reduce_and" else "ReduceMax"
    value = cast_to(writer, writer.read(node.inputs[0]), jnp.int32)
    return cast_to(writer, reduced(writer, kind, value, equation.params["axes"]), jnp.bool_)


@operator("mean")
def mean(writer: Writer, node: Node) -> str:
    return reduced(writer, "ReduceMean", writer.read(node.inputs[0]), node.options["axes"])


@equation("argmax", "argmin")
def place_of_extreme(writer: Writer, node: Node) -> str:
    equation, kind = node.options["equation"], {"argmax": "ArgMax", "argmin": "ArgMin"}[node.options["equation"].name]
    (axis,), value = equation.params["axes"], writer.read(node.inputs[0])
    if writer.dtype(node.inputs[0]) == np.bool_:
        value = cast_to(writer, value, jnp.int32)
    place = writer.emit(kind, value, axis=int(axis), keepdims=0)
    return cast_to(writer, place, writer.dtype(node.outputs[0]))


@equation("cumsum")
def running_sum(writer: Writer, node: Node) -> str:
    params = node.options["equation"].params
    axis = writer.array(np.int64(params["axis"]))
    return writer.emit("CumSum", writer.read(node.inputs[0]), axis, reverse=int(params["reverse"]))


@equation("top_k")
def largest(writer: Writer, node: Node) -> tuple[str, str]:
    params, rank = node.options["equation"].params, writer.rank(node.inputs[0])
    axis = params.get("axis", rank - 1) % rank
    count = writer.int64([params["k"]])
    values, places = writer.emit_many("TopK", (writer.read(node.inputs[0]), count), 2, axis=axis)
    return values, writer.emit("Cast", places, to=data_type(writer.dtype(node.outputs[1])))


@equation("sort")
def sort(writer: Writer, node: Node) -> tuple[str, ...]:
    """Sorts by the last key, then by the one before: TopK orders equal numbers by their index, like a stable sort."""
    params, arrays = node.options["equation"].params, [writer.read(name) for name in node.inputs]
    axis = params["dimension"]
    count = writer.dimensions.value(writer.shape(node.inputs[0])[axis])

    def ordered(array: str, places: str) -> str:
        return writer.emit("GatherElements", array, places, axis=axis) if places else array

    values = places = ""
    for name, key in reversed([*zip(node.inputs, arrays, strict=True)][: params["num_keys"]]):
        is_bool = writer.dtype(name) == jnp.bool_
        number = cast_to(writer, key, jnp.int32) if is_bool else key
        values, order = writer.emit_many("TopK", (ordered(number, places), count), 2, axis=axis, largest=0)
        values = cast_to(writer, values, jnp.bool_) if is_bool else values
        places = ordered(places, order) if places else order
    return values, *(ordered(array, places) for array in arrays[1:])
