"""Products whose operands are quantized when the model runs: each row of the left operand by its own range.

ONNX's DynamicQuantizeLinear has one range for a whole array, and ONNX's integer products have one zero point. So float
operators quantize the rows as `jaxdml.ptq` does, and the zero points are subtracted after the product.
"""

import numpy as np

from jaxdml._graph.graph import Node
from jaxdml.onnx._write.contractions import by_rows, unmerged
from jaxdml.onnx._write.elementwise import cast_to
from jaxdml.onnx._write.integers import integer_weights
from jaxdml.onnx._write.reductions import reduced
from jaxdml.onnx._write.table import integers
from jaxdml.onnx._write.writer import Writer

SMALLEST = np.finfo(np.float32).smallest_normal  # the smallest scale
MOST, MOST_SIGNED, MIDDLE = 255, 127, 128


@integers("dynamic")
def product(writer: Writer, node: Node) -> str:
    a, b, *rest = node.inputs
    rank, alpha = writer.rank(b), np.float32(node.options.get("alpha", 1.0))
    rows = node.options.get("rows", 1) if rank > 2 else 1
    left = by_rows(writer, node, writer.read(a)) if rows > 1 else writer.read(a)
    integers_of_a, scale_of_a, zero_points = _rows(writer, left)
    if b in writer.constants and writer.dtype(b) == np.int8:
        scale, *rest = rest
        scales = np.asarray(writer.constants[scale]).astype(np.float32)
        weights, _, zero_point = integer_weights(writer, b, (scales, np.zeros((), np.int8)))
        right = writer.parameter(b, f"{writer.name}.weight", weights)
        middle = np.asarray(zero_point.reshape(-1)[0])
        sums = np.sum(weights.astype(np.int32) - np.int32(middle), -2, dtype=np.int32, keepdims=True)
        sums_of_b = writer.array(sums if rank > 2 else sums[0], f"{writer.name}.weight_sums")
        scale_of_b = writer.array(scales * alpha, f"{writer.name}.weight_scale")
    else:
        right, scale_of_b, sums_of_b = _columns(writer, writer.read(b))
        scale_of_b = writer.emit("Mul", scale_of_b, writer.float32(alpha)) if alpha != 1 else scale_of_b
        middle = np.asarray(MIDDLE, np.uint8)
    of_a = writer.array(np.zeros((), np.uint8), "zero_point")
    of_b = writer.alone(middle, f"{writer.name}.weight_zero_point")
    total = writer.emit("MatMulInteger", integers_of_a, right, of_a, of_b, main=True)
    total = writer.emit("Sub", total, writer.emit("Mul", zero_points, sums_of_b))
    y = writer.emit("Mul", cast_to(writer, total, np.float32), writer.emit("Mul", scale_of_a, scale_of_b))
    for bias in rest:
        values = np.asarray(writer.constants[bias]).astype(np.float32)
        y = writer.emit("Add", y, writer.parameter(bias, f"{writer.name}.bias", values))
    return unmerged(writer, node, y) if rows > 1 else y


def _rows(writer: Writer, value: str) -> tuple[str, str, str]:
    """Rows as uint8; their scales; and their zero points as int32."""
    emit, number = writer.emit, writer.float32
    zero, most = number(0), number(MOST)
    low = emit("Min", reduced(writer, "ReduceMin", value, [-1], keep=True), zero)
    high = emit("Max", reduced(writer, "ReduceMax", value, [-1], keep=True), zero)
    scale = emit("Max", emit("Div", emit("Sub", high, low), most), number(SMALLEST))
    zero_point = emit("Clip", emit("Round", emit("Sub", zero, emit("Div", low, scale))), zero, most)
    steps = emit("Add", emit("Round", emit("Div", value, scale)), zero_point)
    integers_of_rows = cast_to(writer, emit("Clip", steps, zero, most), np.uint8)
    return integers_of_rows, scale, cast_to(writer, zero_point, np.int32)


def _columns(writer: Writer, value: str) -> tuple[str, str, str]:
    """Columns as uint8 with the zero point 128; their scales; and the sums of (integer - 128)."""
    emit, number = writer.emit, writer.float32
    greatest = reduced(writer, "ReduceMax", emit("Abs", value), [-2], keep=True)
    scale = emit("Max", emit("Div", greatest, number(MOST_SIGNED)), number(SMALLEST))
    steps = emit("Add", emit("Round", emit("Div", value, scale)), number(MIDDLE))
    integers_of_columns = cast_to(writer, emit("Clip", steps, number(0), number(MOST)), np.uint8)
    signed = emit("Sub", cast_to(writer, integers_of_columns, np.int32), writer.array(np.int32(MIDDLE)))
    return integers_of_columns, scale, reduced(writer, "ReduceSum", signed, [-2], keep=True)
