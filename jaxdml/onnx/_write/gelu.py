"""Finds arithmetic that computes gelu, so that the file has ONNX's operators for gelu."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxdml._graph.evaluate import evaluate
from jaxdml._graph.graph import Node, Operator
from jaxdml.onnx._write.table import operator
from jaxdml.onnx._write.writer import Writer

GELU = Operator("Gelu", lambda x: x)
MARKS = ("erf", "erfc", "tanh")  # primitives, one of which computes the CDF in a gelu
# A function built from only these is smooth, because none of them bounds, selects or rounds. Its values at POINTS
# identify it.
ARITHMETIC = {
    *MARKS, "add", "copy", "div", "integer_pow", "mul", "neg", "pow", "square", "sub"
}  # fmt: skip
FAR = np.logspace(1, 38, 371)
POINTS = np.concatenate([-FAR[::-1], np.linspace(-10, 10, 2001), FAR]).astype(np.float32)
NEAR = 1e-5  # the tolerance: absolute for values up to 1, relative beyond


def with_gelu(nodes: Sequence[Node], constants: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[Node]:
    """The nodes, with one node in place of the nodes of each gelu."""
    roots, made = _roots(nodes, constants), {name: node for node in nodes for name in node.outputs}
    found = dict[str, Node]()
    for place, node in enumerate(nodes):
        equation = node.options.get("equation")
        root = roots.get(node.outputs[0]) if equation is not None and equation.name in MARKS else None
        if root is None:
            continue
        for after in nodes[place + 1 :]:
            result = after.outputs[0]
            if roots.get(result) != root or not _depends(made, result, node.outputs[0], root):
                continue
            form = _form(_between(made, root, result, constants), constants, root, result)
            if form is not None:
                found[result] = Node(GELU, (root,), after.outputs, {"approximate": form}, after.name, after.source)
                break
    wanted, kept = set(outputs), list[Node]()
    for node in reversed(nodes):
        node = found.get(node.outputs[0], node)
        if not wanted.isdisjoint(node.outputs):
            kept.append(node)
            wanted.update(node.inputs)
    return kept[::-1]


def _roots(nodes: Sequence[Node], constants: Mapping[str, np.ndarray]) -> dict[str, str]:
    """For each value that arithmetic computes from numbers and one other value, its root, the name of the root.

    The result of any other node, such as a clip, is itself a root, so that the file keeps that node.
    """
    roots = dict[str, str]()
    for node in nodes:
        data = {name for name in node.inputs if name not in constants}
        numbers = all(np.size(constants[name]) == 1 for name in node.inputs if name in constants)
        if not _is_arithmetic(node) or not numbers or not data:
            continue
        found = {roots.get(name, name) for name in data}
        if len(found) == 1:
            roots[node.outputs[0]] = found.pop()
        elif len(data) == 2 and len(found) == 2:  # a function of f(root) and of the root
            known = {roots[name] for name in data if name in roots}
            if len(known) == 1 and known <= data:
                roots[node.outputs[0]] = known.pop()
    return roots


def _is_arithmetic(node: Node) -> bool:
    equation = node.options.get("equation")
    if equation is None:
        return node.operator.kind in ("add", "mul") and not node.operator.is_quantized
    return equation.name in ARITHMETIC


def _depends(made: Mapping[str, Node], result: str, on: str, root: str) -> bool:
    """Whether the value `on` is on a path from the root to the result."""
    pending = [result]
    while pending:
        name = pending.pop()
        if name == on:
            return True
        if name != root and name in made:
            pending += made[name].inputs
    return False


def _between(made: Mapping[str, Node], root: str, result: str, constants: Mapping[str, Any]) -> list[Node]:
    """The nodes that compute the result from the root, in order."""
    pending, found = [result], dict[str, Node]()
    while pending:
        name = pending.pop()
        if name != root and name not in constants:
            found[name] = made[name]
            pending += made[name].inputs
    places = {name: place for place, name in enumerate(made)}
    return sorted(set(found.values()), key=lambda node: places[node.outputs[0]])


def _form(nodes: Sequence[Node], constants: Mapping[str, np.ndarray], root: str, result: str) -> str | None:
    """The form of gelu that the nodes compute: "none" (the error function) or "tanh"; None if neither."""
    read = {name for node in nodes for name in node.inputs}
    numbers = {name: np.asarray(constants[name]).reshape(()) for name in read if name in constants}
    y = np.asarray(evaluate(nodes, {**numbers, root: POINTS})[result])
    for form, approximate in (("none", False), ("tanh", True)):
        exact = np.asarray(jax.nn.gelu(POINTS, approximate=approximate))
        if y.shape == exact.shape and (np.abs(y - exact) <= NEAR * np.maximum(1, np.abs(exact))).all():
            return form
    return None


@operator("Gelu")
def gelu(writer: Writer, node: Node) -> str:
    """The operator Gelu, or operators that execution providers fuse into a Gelu."""
    x, number, form = writer.read(node.inputs[0]), writer.float32, node.options["approximate"]
    if writer.options.has_gelu:
        return writer.emit("Gelu", x, main=True, approximate=None if form == "none" else form)
    if form == "none":
        total = writer.emit("Add", writer.emit("Erf", writer.emit("Div", x, number(np.sqrt(2)))), number(1))
        return writer.emit("Mul", writer.emit("Mul", x, number(0.5)), total, main=True)
    cube = writer.emit("Mul", writer.emit("Pow", x, number(3)), number(0.044715))
    inner = writer.emit("Mul", writer.emit("Add", x, cube), number(np.sqrt(2 / np.pi)))
    total = writer.emit("Add", writer.emit("Tanh", inner), number(1))
    return writer.emit("Mul", writer.emit("Mul", x, number(0.5)), total, main=True)
