"""A graph in floats with quantize and dequantize nodes where values become integers: what the fusing pass reads."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdml._graph.evaluate import evaluate
from jaxdml._graph.graph import Graph, Node, without_dead
from jaxdml._quantized import directml
from jaxdml.ptq import _operators as op
from jaxdml.ptq._canonical import with_equations
from jaxdml.ptq._loops import Body, scan_node
from jaxdml.ptq._plan import CONTRACTIONS
from jaxdml.ptq._ranges import quantize_weights
from jaxdml.ptq._units import Unit

Grid = tuple[np.ndarray, np.ndarray]
MOST_STEPS = 2.0**30  # of a bias, so that products fit beside it


def with_grids(unit: Unit, grids: Mapping[str, Grid]) -> Graph:
    """The graph of a unit with quantize and dequantize nodes.

    Args:
      unit: with constants.
      grids: scale and zero point by the name of a value; those of a body are stacked, after its scan's name.
    """
    bodies = {name: _body(each, _within(name, grids)) for name, each in unit.loops.items()}
    return Quantizer(unit, unit.graph, grids, bodies).graph()


def _within(scan: str, grids: Mapping[str, Grid]) -> dict[str, Grid]:
    return {name.removeprefix(f"{scan}/"): grid for name, grid in grids.items() if name.startswith(f"{scan}/")}


def _body(unit: Unit, grids: Mapping[str, Grid]) -> tuple[Body, dict[str, np.ndarray]]:
    """The body of a scan with quantize and dequantize nodes, and its constants, stacked."""
    assert unit.loop is not None
    graphs = []
    for number in range(unit.loop.length):
        constants = {name: value[number] for name, value in unit.graph.constants.items()}
        of_layer = {name: (scale[number], zero_point[number]) for name, (scale, zero_point) in grids.items()}
        graphs.append(Quantizer(unit, unit.graph.replace(constants=constants), of_layer, {}).graph())
    first = graphs[0]
    stacked = {name: np.stack([graph.constants[name] for graph in graphs]) for name in first.constants}
    body = Body(first.nodes, unit.program.inputs, first.outputs, tuple(stacked), unit.loop.data)
    return body, stacked


class Quantizer:
    """Puts quantize and dequantize nodes into a graph."""

    def __init__(
        self, unit: Unit, graph: Graph, grids: Mapping[str, Grid], bodies: Mapping[str, tuple[Body, dict[str, Any]]]
    ) -> None:  # fmt: skip
        self._program, self._graph, self._plan, self._modes = unit.program, graph, unit.plan, unit.modes
        self._grids, self._bodies, self._reasons = grids, bodies, dict(unit.reasons)
        self._constants, self._nodes, self._makers = dict(graph.constants), list[Node](), graph.producers()
        self._places = {node: place for place, node in enumerate(graph.nodes)}
        self._number, self._ranks = unit.made.number, unit.made.rank

    def graph(self) -> Graph:
        """The graph with the nodes."""
        for owner in dict.fromkeys(self._plan.grids.values()):
            scale, zero_point = self._grids[owner]
            self._constants |= {f"{owner}:scale": scale, f"{owner}:zero_point": zero_point}
        for name in self._graph.inputs:
            self._quantized(name)
        for node in self._graph.nodes:
            if node.outputs[0] in self._plan.tables:
                self._look_up(node)
                continue
            before = self._nodes[-1] if self._nodes else node
            if before.operator is op.DYNAMIC and node.operator is op.ADD and node.inputs[0] == before.outputs[0]:
                # The operator adds the bias, too.
                self._nodes[-1] = before.replace(inputs=(*before.inputs, node.inputs[1]), outputs=node.outputs)
                self._quantized(node.outputs[0])
                continue
            reads_integers = node in self._plan.integers
            inputs = tuple(self._read(name, reads_integers) for name in node.inputs)
            mode = self._modes.get(node.outputs[0], "float") if node.operator.kind in CONTRACTIONS else "float"
            if mode == "static":
                inputs = self._with_weights(node, inputs)
            elif mode == "dynamic":
                self._append_dynamic(node, inputs)
                continue
            if node.outputs[0] in self._bodies:
                self._append_scan(node)
                continue
            remark = self._reasons.get(node.outputs[0], node.remark)
            self._nodes.append(node.replace(inputs=inputs, remark=remark))
            for name in node.outputs:
                self._quantized(name)
        outputs = tuple(self._read(name, False) for name in self._graph.outputs)
        return without_dead(self._graph.replace(nodes=tuple(self._nodes), constants=self._constants, outputs=outputs))

    def _read(self, name: str, reads_integers: bool) -> str:
        """The name of a value as a node reads it: dequantized, if integers make the value or the node runs on them."""
        is_integers = name in self._plan.owners and (reads_integers or name in self._plan.made)
        return f"{name}:dequantized" if is_integers else name

    def _quantized(self, name: str) -> None:
        if name in self._plan.owners:
            self._between(op.QUANTIZE, name, f"{name}:quantized", name)
            self._dequantized(name)

    def _dequantized(self, name: str) -> None:
        self._between(op.DEQUANTIZE, f"{name}:quantized", f"{name}:dequantized", name)

    def _between(self, operator: Any, source: str, target: str, name: str) -> None:
        owner = self._plan.owners[name]
        inputs = source, f"{owner}:scale", f"{owner}:zero_point"
        self._nodes.append(Node(operator, inputs, (target,), {"axis": 1}, name))

    def _append_scan(self, node: Node) -> None:
        name = node.outputs[0]
        body, constants = self._bodies[name]
        node = scan_node(node, body, name)
        self._nodes.append(node.replace(inputs=tuple(self._read(each, False) for each in node.inputs)))
        self._constants |= {f"{name}/{each}": value for each, value in constants.items()}
        for each in node.outputs:
            self._quantized(each)

    # Weights -----------------------------------------------------------------------------------------------------

    def _with_weights(self, node: Node, inputs: tuple[str, ...]) -> tuple[str, ...]:
        """The inputs of a contraction, its weights as integers in steps of a scale for each channel."""
        weight = node.inputs[1]
        if weight not in self._constants:
            return inputs
        axis = 0 if node.operator is op.CONVOLUTION else -1
        scale = self._grids[self._plan.grids[node.inputs[0]]][0]
        bias = self._constants.get(weight.removesuffix(":weight") + ":bias")
        integers = self._integers(node, weight, axis, None if bias is None else np.abs(bias) / (scale * MOST_STEPS))
        self._nodes.append(Node(op.DEQUANTIZE, integers, (f"{weight}:dequantized",), {"axis": axis}, node.name))
        return (inputs[0], f"{weight}:dequantized", *inputs[2:])

    def _integers(self, node: Node, weight: str, axis: int, least: np.ndarray | None) -> tuple[str, str, str]:
        """Names of a weight's integers, scale and zero point."""
        w = np.asarray(self._constants.pop(weight))
        integers, scale = quantize_weights(w, axis)
        if least is not None:
            # Zeros are exact in any scale: a channel of them has one in which the bias takes 2**20 steps.
            rest = tuple(i for i in range(w.ndim) if i != axis % w.ndim)
            scale = np.where(w.any(rest) | (least == 0), scale, least * np.float32(2**10)).astype(np.float32)
        if least is not None and (scale < least).any():
            text = "have larger weight scales, so that the bias fits int32"
            self._reasons[node.outputs[0]] = f"{int((scale < least).sum())} channels {text}"
            scale = np.maximum(scale, least).astype(np.float32)
            shape = [1] * w.ndim
            shape[axis] = -1
            integers = np.rint(w / scale.reshape(shape)).astype(np.int8)
        names = f"{weight}:quantized", f"{weight}:scale", f"{weight}:zero_point"
        self._constants |= dict(
            zip(names, (np.asarray(integers), np.asarray(scale), np.zeros(scale.shape, np.int8)), strict=True)
        )
        return names

    def _append_dynamic(self, node: Node, inputs: tuple[str, ...]) -> None:
        if node.inputs[1] in self._constants:
            inputs = inputs[0], *self._integers(node, node.inputs[1], -1, None)[:2]
        self._nodes.append(node.replace(operator=op.DYNAMIC, inputs=inputs))

    # Tables ------------------------------------------------------------------------------------------------------

    def _look_up(self, node: Node) -> None:
        name = node.outputs[0]
        root = self._plan.tables[name]
        within = self._between_values(root, name)
        self._constants[f"{name}:table"] = self._table(root, name, within)
        source = tuple(word for each in within for word in each.source)
        inputs = f"{root}:quantized", f"{name}:table"
        self._nodes.append(Node(op.TABLE, inputs, (f"{name}:quantized",), {}, node.name, source))
        self._dequantized(name)

    def _between_values(self, root: str, name: str) -> list[Node]:
        """The nodes that make a value of another, in order; numbers are made by none."""
        wanted, found = [name], dict[Node, int]()
        while wanted:
            each = wanted.pop()
            node = self._makers.get(each)
            if node is not None and each != root and node not in found and self._number(each) is None:
                found[node] = self._places[node]
                wanted += node.inputs
        return sorted(found, key=found.__getitem__)

    def _table(self, root: str, name: str, within: list[Node]) -> np.ndarray:
        """The integers that stand for the function of each integer, from the least on."""
        (x_scale, x_zero_point), (y_scale, y_zero_point) = (
            self._grids[self._plan.owners[each]] for each in (root, name)
        )  # fmt: skip
        limits = np.iinfo(x_zero_point.dtype)
        every = np.arange(limits.min, limits.max + 1).astype(x_zero_point.dtype)
        values: dict[str, Any] = {root: directml.to_floats(every, x_scale, x_zero_point, axis=0)}
        nodes = [with_equations(node, self._program) for node in within]
        made = {each for node in nodes for each in node.outputs}
        for each in {each for node in nodes for each in node.inputs} - made - {root}:
            number = self._number(each)
            assert number is not None
            values[each] = number if self._ranks(each) == 0 else np.full(every.shape, number, number.dtype)
        y = evaluate(nodes, values)[name].astype(jnp.float32)
        return np.asarray(directml.to_integers(y, y_scale, y_zero_point, axis=0, dtype=y_zero_point.dtype))
