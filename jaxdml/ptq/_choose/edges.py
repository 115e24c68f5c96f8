"""Finds the channels of a float graph that can be scaled without changing the function.

Channels are divided by scales where they are computed, and the weights applied to them are multiplied by the scales.
Such channels form an edge from a maker to its readers. There are two kinds of edges:

- from a contraction: its weights and bias are divided, and all operators between it and the readers, such as relu, a
  transposition or a pooling, commute with a positive factor of a channel;
- from a value in floats, which is divided for the contractions that read it, and stays as it is for all others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxdml._graph.evaluate import evaluate
from jaxdml._graph.graph import Graph, Node, moves
from jaxdml.ptq._build import operators as op
from jaxdml.ptq._build.affine import Contraction
from jaxdml.ptq._choose.modes import STATIC, STATIC16
from jaxdml.ptq._choose.unit import Unit
from jaxdml.ptq._trace.scans import bound, each_layer

LINEAR = ("mean", "pad", "window_mean")  # kinds, besides movers and relu, that commute with a factor of a channel


@dataclass(frozen=True, eq=False)
class ChannelReader:
    """A contraction that reads scaled channels.

    Attributes:
      weight: name of its weights.
      value: name of the value that it reads.
      axis: the value's axis of channels.
      groups: the number of groups of a convolution; None for a product.
      channels: for each channel that it reads, the index of the channel in the edge.
      bits: how many bits the value has when it is read.
    """

    weight: str
    value: str
    axis: int
    groups: int | None
    channels: np.ndarray
    bits: int = 8


@dataclass(frozen=True, eq=False)
class Edge:
    """Channels that can be scaled.

    Attributes:
      count: the number of channels.
      readers: all contractions that read the channels as integers.
      maker: the contraction that makes the channels; None if they belong to a value in floats.
      shape: the shape of the factors of the value in floats, with size 1 along all axes but that of the channels; () if
        there is a maker.
    """

    count: int
    readers: tuple[ChannelReader, ...]
    maker: Contraction | None = None
    shape: tuple[int, ...] = ()


def edges_of(unit: Unit) -> list[Edge]:
    """The edges of a unit with constants: first those from floats, then the others, each in the order of execution."""
    finder = _Finder(unit)
    found = list(finder.from_contractions())
    scaled = {reader.value for edge in found for reader in edge.readers}
    return [*(edge for edge in finder.from_floats() if edge.readers[0].value not in scaled), *found]


class _Finder:
    def __init__(self, unit: Unit) -> None:
        self._unit, self._plan = unit, unit.plan
        self._graph = unit.graph if unit.loop is None else each_layer(unit.graph)[0]
        self._nodes = dict(zip(self._graph.nodes, bound(self._graph.nodes, unit.program), strict=True))
        self._readers, self._shapes = self._graph.consumers(), _shapes(unit, self._graph, list(self._nodes.values()))
        self._weights = {
            each.weight_name: each for each in unit.builder.contractions
            if each.weight and each.weight_name in self._graph.constants
            and each.grid_name not in self._graph.constants
        }  # fmt: skip

    def from_contractions(self) -> Iterator[Edge]:
        """Yields the edges from contractions."""
        for node in self._graph.nodes:
            maker = self._maker(node)
            if maker is None:
                continue
            start, axis = node.outputs[0], _axis(node)
            shape = self._shapes[start].shape
            count = shape[axis]
            ends = self._ends(start, maker)
            if not ends:
                continue
            along = [1] * len(shape)
            along[axis] = count
            numbers = np.broadcast_to(np.arange(1, count + 1, dtype=np.float32).reshape(along), shape)
            readers = self._numbered(start, numbers, *ends)
            if readers is not None:
                yield Edge(count, readers, maker)

    def _maker(self, node: Node) -> Contraction | None:
        """The contraction of a node, if it is static or dynamic, and the function does not set its weights' scales."""
        if node.operator.kind not in op.CONTRACTIONS or self._unit.modes.get(node.outputs[0]) not in QUANTIZED:
            return None
        return self._weights.get(node.inputs[1])

    def _ends(self, start: str, maker: Contraction) -> tuple[list[Node], list[Node]] | None:
        """The nodes between a contraction and its readers, and the readers; None if anything else reads channels."""
        pending, between, readers = [start], list[Node](), list[Node]()
        while pending:
            name = pending.pop()
            if name in self._graph.outputs:
                return None
            for node in self._readers.get(name, []):
                if self._maker(node) is not None:
                    readers.append(node)
                elif node.inputs[0] == name and self._passes(node, maker):
                    between.append(node)
                    pending += node.outputs
                else:
                    return None
        return sorted(between, key=list(self._nodes).index), readers

    def _passes(self, node: Node, maker: Contraction) -> bool:
        """Whether a node's result is scaled like its first input, given that the maker's bias is scaled, too."""
        kind, others = node.operator.kind, node.inputs[1:]
        if kind == "clip":
            return dict(node.options) == {"min": 0.0}
        if kind == "add":
            return others == (maker.bias_name,)
        return (moves(node) or kind in LINEAR) and all(name in self._graph.constants for name in others)

    def _numbered(
        self, start: str, numbers: np.ndarray, between: list[Node], readers: list[Node]
    ) -> tuple[ChannelReader, ...] | None:
        """The readers; None if one of them reads several channels as one.

        The nodes in between are linear in each channel for positive factors. They are evaluated on ones, and on the
        numbers of the channels: the ratio of the two results is a channel's number, or 0 / 0 in padding.
        """
        names = {node.inputs[0] for node in readers}
        is_linear = {node: node.operator.kind in ("clip", "add") for node in between}
        same = {node.outputs[0]: node.inputs[0] for node in between if is_linear[node]}

        def source(name: str) -> str:
            return source(same[name]) if name in same else name

        nodes = [self._nodes[node] for node in between if not is_linear[node]]
        nodes = [node.replace(inputs=tuple(map(source, node.inputs))) for node in nodes]
        constants = {name: self._graph.constants[name] for node in nodes for name in node.inputs[1:]}

        def computed(x: Any) -> dict[str, Any]:
            values = evaluate(nodes, {**constants, start: x})
            return {name: values[source(name)] for name in names}

        compute = jax.jit(computed) if nodes else computed
        ones, ratios = jax.device_get((compute(np.ones_like(numbers)), compute(numbers)))
        found = []
        for node in readers:
            value, axis = node.inputs[0], _axis(node)
            one, many = (np.moveaxis(x[value], axis, -1).reshape(-1, x[value].shape[axis]) for x in (ones, ratios))
            read = np.rint(np.divide(many, one, out=np.zeros_like(many), where=one != 0))
            number = read.max(0, initial=0)
            if ((read != number) & (one != 0)).any() or not number.all():
                return None
            found.append(self._reader(node, number.astype(int) - 1))
        return tuple(found)

    def from_floats(self) -> Iterator[Edge]:
        """Yields the edges from values in floats."""
        roots = set(self._plan.tables.values())
        made = [name for node in self._graph.nodes if not moves(node) for name in node.outputs]
        for name in (*self._graph.inputs, *made):  # names of movers' results may differ for inputs of other sizes
            nodes = self._readers.get(name, [])
            takers = [node for node in nodes if self._maker(node) is not None]
            if not takers or name in self._plan.results or name in roots:
                continue
            others = [
                node for node in nodes if node not in takers
                and (node in self._plan.nodes or (moves(node) and not self._plan.in_floats.isdisjoint(node.outputs)))
            ]  # fmt: skip
            is_own = self._plan.ranges.get(name, name) == name
            shape = self._shapes[name].shape
            axes = {_axis(node) % len(shape) for node in takers}
            if others or not is_own or len(axes) > 1:
                continue
            (axis,) = axes
            along = tuple(size if place == axis else 1 for place, size in enumerate(shape))
            yield Edge(shape[axis], tuple(self._reader(node, np.arange(shape[axis])) for node in takers), shape=along)

    def _reader(self, node: Node, channels: np.ndarray) -> ChannelReader:
        bits = 16 if node.inputs[0] in self._plan.read_wide and self._unit.modes[node.outputs[0]] == STATIC16 else 8
        return ChannelReader(
            node.inputs[1], node.inputs[0], _axis(node), node.options.get("group_count"), channels, bits
        )


QUANTIZED = (*STATIC, "dynamic")  # modes whose values are rounded


def _axis(node: Node) -> int:
    """The axis of the channels that a contraction reads, and of those that it makes."""
    return 1 if node.operator is op.CONVOLUTION else -1


def _shapes(unit: Unit, graph: Graph, nodes: list[Node]) -> Mapping[str, Any]:
    """Shapes and types of all values for the sizes of the program's inputs."""
    names = graph.inputs if unit.loop is None else (*graph.inputs, *unit.loop.shared)
    inputs = {name: jax.ShapeDtypeStruct(unit.program.avals[name].shape, unit.program.avals[name].dtype)
              for name in names}  # fmt: skip
    found: Mapping[str, Any] = jax.eval_shape(lambda values: evaluate(nodes, values), {**graph.constants, **inputs})
    return found
