"""Quantize and dequantize nodes, and look-up tables."""

import numpy as np

from jaxdml._graph.graph import Node
from jaxdml.onnx._write.elementwise import cast_to
from jaxdml.onnx._write.integers import grid_of
from jaxdml.onnx._write.table import operator
from jaxdml.onnx._write.writer import Writer
from jaxdml.ptq._integers.flat import Function
from jaxdml.ptq._integers.operators import DEQUANTIZE, QUANTIZE


@operator(QUANTIZE.name)
def round_to_integers(writer: Writer, node: Node) -> str:
    """QuantizeLinear. In the file, a float equal to integer - zero point stands for each 16-bit integer that a table
    reads.

    Few execution providers support QuantizeLinear for 16 bits, which ONNX added in opset 21.
    """
    value, grid = writer.read(node.inputs[0]), writer.grids[node.outputs[0]]
    if node.outputs[0] not in writer.steps:
        return writer.to_integers(value, grid, node.outputs[0])
    limits, zero_point = np.iinfo(grid[1].dtype), int(grid[1])
    steps = writer.emit("Round", writer.emit("Div", value, writer.parameters_of(grid, node.outputs[0])[0]))
    ends = (writer.float32(limit - zero_point) for limit in (limits.min, limits.max))
    return writer.emit("Clip", steps, *ends)


@operator(DEQUANTIZE.name)
def scale_to_floats(writer: Writer, node: Node) -> str:
    return writer.to_floats(node.inputs[0], grid_of(writer, node, 1))


def look_up(writer: Writer, node: Node, function: Function) -> str:
    """A table as Gather."""
    x, table = node.inputs
    value, limits, zero_point = writer.read(x), np.iinfo(function.x[1].dtype), int(function.x[1])
    if x in writer.steps:
        value = writer.emit("Add", value, writer.float32(zero_point - limits.min))
    places = cast_to(writer, value, np.int32)
    if x not in writer.steps and limits.min:
        places = writer.emit("Sub", places, writer.array(np.int32(limits.min)))
    entries = writer.parameter(table, f"{writer.name}.table", np.asarray(writer.constants[table]))
    return writer.emit("Gather", entries, places, main=True, axis=0)
