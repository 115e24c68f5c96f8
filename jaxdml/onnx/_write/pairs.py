"""Pairs of QuantizeLinear and DequantizeLinear after nodes that move int8 elements, for onnxruntime in opset 21.

onnxruntime adds these pairs where they are missing. In opset 21 it gives them the attribute output_dtype, then changes
the zero points of int8 activations to uint8, but not the attribute, and refuses the file.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper

from jaxdml.onnx._write.writer import Writer

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
FIRST = 21  # the first opset in which QuantizeLinear has the attribute output_dtype
MOVING = {"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}  # after which onnxruntime adds pairs


def add_pairs(writer: Writer) -> None:
    """Adds a pair after each node that moves dequantized int8 elements, unless only QuantizeLinear reads the result.

    No value changes, because the pair has the scale and zero point of the elements.
    """
    if writer.options.opset < FIRST:
        return
    nodes, writer.nodes = writer.nodes, []
    readers, grids = defaultdict[str, set[str]](set), dict[str, Sequence[str]]()
    for node in nodes:
        for name in node.input:
            readers[name].add(node.op_type)
    for node in nodes:
        writer.nodes.append(node)
        value, result = node.input[0], node.output[0]
        if node.op_type == DEQUANTIZE and _is_int8(writer, node):
            grids[result] = node.input[1:]
        elif node.op_type in MOVING and value in grids and readers[result] != {QUANTIZE}:
            node.output[0], grids[result] = writer.fresh(f"{node.name}:moved"), grids[value]
            with writer.layer(node.name):
                integers = writer.emit(QUANTIZE, node.output[0], *grids[value])
            name = writer.fresh(f"{node.name}/{DEQUANTIZE}")
            writer.nodes.append(helper.make_node(DEQUANTIZE, [integers, *grids[value]], [result], name))


def _is_int8(writer: Writer, node: onnx.NodeProto) -> bool:
    """Whether DequantizeLinear reads int8 elements that have a zero point."""
    return len(node.input) > 2 and writer.initializers[node.input[2]].dtype == np.int8
