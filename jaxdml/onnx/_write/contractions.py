"""Float matrix products."""

import string

from jaxdml._graph.graph import Node
from jaxdml.onnx._write.movers import reshaped
from jaxdml.onnx._write.table import equation, operator
from jaxdml.onnx._write.writer import Writer


def by_rows(writer: Writer, node: Node, value: str) -> str:
    """The left operand of a product. If several axes after the batch hold the rows, they are merged into one."""
    rows, shape = node.options.get("rows", 1), writer.shape(node.inputs[0])
    if rows == 1:
        return value
    batch = shape[: -1 - rows]
    count = shape[-1 - rows]
    for size in shape[-rows:-1]:
        count = count * size
    return reshaped(writer, value, shape, (*batch, count, shape[-1]))


def unmerged(writer: Writer, node: Node, value: str) -> str:
    """The result of a product whose left operand `by_rows` merged."""
    if node.options.get("rows", 1) == 1:
        return value
    return reshaped(writer, value, None, writer.shape(node.outputs[0]))


@operator("product")
def product(writer: Writer, node: Node) -> str:
    """A product that stays in floats."""
    a, b = node.inputs
    right = writer.read(b)
    y = writer.emit("MatMul", by_rows(writer, node, writer.read(a)), right, main=True)
    alpha = node.options.get("alpha", 1.0)
    y = y if alpha == 1.0 else writer.emit("Mul", y, writer.float32(alpha))
    return unmerged(writer, node, y)


@equation("dot_general")
def dot_general(writer: Writer, node: Node) -> str:
    """MatMul if the axes are in MatMul's order, otherwise Einsum."""
    (contract_a, contract_b), (batch_a, batch_b) = node.options["equation"].params["dimension_numbers"]
    a, b = node.inputs
    ranks = writer.rank(a), writer.rank(b)
    leading = tuple(range(len(batch_a)))
    is_matmul = (
        tuple(batch_a) == tuple(batch_b) == leading
        and tuple(contract_a) == (ranks[0] - 1,) and tuple(contract_b) == (len(leading),)
        and ranks[1] == len(leading) + 2 and (ranks[0] == len(leading) + 2 or not leading)
    )  # fmt: skip
    if is_matmul:
        return writer.emit("MatMul", writer.read(a), writer.read(b), main=True)
    letters = iter(string.ascii_letters)
    left = [next(letters) for _ in range(ranks[0])]
    right = [""] * ranks[1]
    for mine, theirs in zip((*batch_a, *contract_a), (*batch_b, *contract_b), strict=True):
        right[theirs] = left[mine]
    right = [letter or next(letters) for letter in right]
    free_a = [x for i, x in enumerate(left) if i not in (*batch_a, *contract_a)]
    free_b = [x for i, x in enumerate(right) if i not in (*batch_b, *contract_b)]
    result = "".join([*(left[i] for i in batch_a), *free_a, *free_b])
    text = f"{''.join(left)},{''.join(right)}->{result}"
    return writer.emit("Einsum", writer.read(a), writer.read(b), main=True, equation=text)
