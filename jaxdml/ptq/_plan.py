"""Which values become integers: those that convolutions and products read, and what leads there on integers alone.

From each contraction back: what it reads becomes integers; so do the inputs of additions, poolings, tables and the like
whose results become integers, if what makes these inputs can give integers. A value that only float operators read
stays a float.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from jaxdml._graph.graph import Graph, Node, moves
from jaxdml.ptq._operators import PRODUCT

CONTRACTIONS = ("conv", "dot")
JOINS = ("add", "concat", "mean", "mul", "pad", "window_mean")
REGION = ("element_wise", "clip", "add", "mul")
RENEWING = (*CONTRACTIONS, "add", "concat", "window_mean")
NUMBER_STAYS = ("broadcast_in_dim", "convert_element_type", "reshape", "squeeze", "transpose")


@dataclass
class Plan:
    """What becomes integers.

    Attributes:
      owners: by each value that is quantized, the value whose range tells its grid.
      tables: by a value that a table gives, the value of which it is a function.
      integers: the nodes that run on integers.
      made: the values that such nodes make.
      grids: by each value that such nodes read, the value whose range tells its grid.
      wide: results of products that tables alone read: those have 16 bits.
    """

    owners: dict[str, str] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    integers: set[Node] = field(default_factory=set)
    made: set[str] = field(default_factory=set)
    grids: dict[str, str] = field(default_factory=dict)
    wide: set[str] = field(default_factory=set)


def plan_of(graph: Graph, modes: Mapping[str, str], is_float: Mapping[str, bool]) -> Plan:
    """The plan of a graph.

    Args:
      graph: the graph.
      modes: "static", "dynamic" or "float", by the result of each contraction's node.
      is_float: whether each input of the graph is of a float type.
    """
    return _Planner(graph, modes, is_float).plan


class _Planner:
    def __init__(self, graph: Graph, modes: Mapping[str, str], is_float: Mapping[str, bool]) -> None:
        self.graph, self.modes, self.plan = graph, modes, Plan()
        self.makers, self.readers = graph.producers(), graph.consumers()
        self.data = set(graph.inputs)
        for node in graph.nodes:
            if self.data.intersection(node.inputs):
                self.data.update(node.outputs)
        self.roots: dict[str, tuple[str, ...]] = {}
        self.of_means = set[str]()  # what is made of a mean, as what normalizes is; 8 bits are too few for that
        self.can: set[str] = {name for name in graph.inputs if is_float[name]}
        for node in graph.nodes:
            self._forward(node)
        self.wanted: set[str] = set()
        self.by_tables: set[str] = set()
        self.attached: set[str] = set()  # made on the way to a value behind it, which is quantized in its place
        for node in reversed(graph.nodes):
            self._back(node)
        for name in graph.inputs:
            if name in self.wanted | self.by_tables:
                self.plan.owners[name] = name
        makers = {name: self.makers[name] for name in self.by_tables - self.wanted if name in self.makers}
        self.plan.wide = {name for name, node in makers.items() if node.operator.kind == "dot" or self._is_bias(node)}
        read = {name for node in self.plan.integers for name in node.inputs if name in self.data}
        in_order = (*graph.inputs, *(name for node in graph.nodes for name in node.outputs))
        self.plan.grids = {
            name: self._owner(name) for name in in_order if name in read or name in self.plan.owners
        }  # fmt: skip
        self.plan.owners = {name: self._owner(name) for name in in_order if name in self.plan.owners}

    # What can be made on integers --------------------------------------------------------------------------------

    def _forward(self, node: Node) -> None:
        output = node.outputs[0]
        data = [name for name in node.inputs if name in self.data]
        if not data:
            return
        self.roots[output] = self._roots_of(node, data)
        kind = node.operator.kind
        if kind == "mean" or (kind not in RENEWING and not self.of_means.isdisjoint(data)):
            self.of_means.update(node.outputs)
        if kind in CONTRACTIONS:
            can = self.modes[output] == "static"
        elif moves(node) or self._is_bias(node) or kind == "clip":
            can = data[0] in self.can
        elif kind == "mul":
            can = len(data) > 1 and self.can.issuperset(data) and self.of_means.isdisjoint(data)
        elif kind in JOINS:
            can = len(data) == len(node.inputs) and all(name in self.can for name in data)
        else:
            can = False
        if can or self._root(node) is not None:
            self.can.update(node.outputs)

    def _roots_of(self, node: Node, data: list[str]) -> tuple[str, ...]:
        """The values that a node's result is an element-wise function of, alone and with numbers; the nearest first."""
        output = node.outputs[0]
        if node.operator.kind not in REGION:
            return (output,)
        others = [name for name in node.inputs if name not in self.data]
        if any(number_of(name, self.graph, self.makers) is None for name in others):
            return (output,)
        chains = [self.roots.get(name, (name,)) for name in data]
        common = tuple(root for root in chains[0] if all(root in chain for chain in chains))
        is_clamped_value = node.operator.kind == "clip" and common[:1] == (data[0],)
        return (output, *common) if is_clamped_value or not common else common

    def _root(self, node: Node) -> str | None:
        """The value that can be made on integers of which a table gives the node's result."""
        output = node.outputs[0]
        return next((root for root in self.roots.get(output, ()) if root != output and root in self.can), None)

    def _is_bias(self, node: Node) -> bool:
        """Whether a node adds a product's bias."""
        maker = self.makers.get(node.inputs[0])
        return node.operator.kind == "add" and node.inputs[1] not in self.data and (
            maker is not None and maker.operator is PRODUCT
        )  # fmt: skip

    # What is wanted on integers ----------------------------------------------------------------------------------

    def _back(self, node: Node) -> None:
        kind, output = node.operator.kind, node.outputs[0]
        data = [name for name in node.inputs if name in self.data]
        is_attached, asked = output in self.attached, self.wanted | self.by_tables
        if kind in CONTRACTIONS and self.modes[output] == "static":
            self.plan.integers.add(node)
            self.wanted.update(data)
        if not (is_attached or asked.intersection(node.outputs)) or not data:
            return
        if moves(node):
            self.plan.integers.add(node)
            (self.attached if is_attached else self.wanted).add(data[0])
            return
        if not is_attached:
            self.plan.owners |= {name: name for name in node.outputs if name in asked}
        if output not in self.can:
            return
        self.plan.integers.add(node)
        self.plan.made.add(output)
        root = self._root(node)
        if self._is_bias(node) or (kind == "clip" and self._is_made_for(node)):
            self.attached.add(data[0])
        elif kind in JOINS and (root is None or kind == "pad") and kind not in CONTRACTIONS:
            self.wanted.update(data)
        elif root is not None and kind not in CONTRACTIONS:
            self.plan.tables[output] = root
            self.plan.owners[root] = root
            self.by_tables.add(root)

    def _is_made_for(self, clamp: Node) -> bool:
        """Whether a clamp's input is made on integers for the clamp alone."""
        name, maker = clamp.inputs[0], self.makers.get(clamp.inputs[0])
        while maker is not None and self._is_read_once(name) and len(maker.outputs) == 1 and (
            moves(maker) or maker.operator.kind == "clip"
        ):  # fmt: skip
            name, maker = maker.inputs[0], self.makers.get(maker.inputs[0])
        kinds = {*CONTRACTIONS, *JOINS} - {"pad"}
        return maker is not None and self._is_read_once(name) and maker.operator.kind in kinds

    def _is_read_once(self, name: str) -> bool:
        return len(self.readers.get(name, [])) == 1 and name not in self.graph.outputs

    def _owner(self, name: str) -> str:
        """The value whose grid a value has: that of the input, behind movers and paddings."""
        maker = self.makers.get(name)
        if maker is not None and maker in self.plan.integers and (moves(maker) or maker.operator.kind == "pad"):
            return self._owner(maker.inputs[0])
        return name


def number_of(name: str, graph: Graph, makers: Mapping[str, Node]) -> float | None:
    """The number that a value holds throughout; None if it is no such value."""
    constant, maker = graph.constants.get(name), makers.get(name)
    if constant is not None:
        return float(constant.reshape(())) if constant.size == 1 else None
    return number_of(maker.inputs[0], graph, makers) if maker and maker.operator.name in NUMBER_STAYS else None


def is_float(dtype: Any) -> bool:
    """Whether a type is one of floats."""
    return bool(jnp.issubdtype(dtype, jnp.floating))
