"""Which values become integers: those that convolutions and products read, and what leads there on integers alone.

From each contraction back: what it reads becomes integers; so do the inputs of additions, poolings, tables and the like
whose results become integers, if what makes these inputs can give integers. A value that only float operators read
stays a float.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from jaxdml._graph.graph import Graph, Node, moves
from jaxdml.ptq._operators import PRODUCT

CONTRACTIONS = ("conv", "dot")
JOINS = ("add", "concat", "mean", "mul", "pad", "window_mean")
REGION = ("element_wise", "clip", "add", "mul")
RENEWING = (*CONTRACTIONS, "add", "concat", "window_mean")


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


def plan_of(
    graph: Graph, modes: Mapping[str, str], is_float: Mapping[str, bool], number: Callable[[str], Any]
) -> Plan:  # fmt: skip
    """The plan of a graph.

    Args:
      graph: the graph.
      modes: "static", "dynamic" or "float", by the result of each contraction's node.
      is_float: whether each input of the graph is of a float type.
      number: the number that a value holds throughout; None if it holds others, too.
    """
    return _Planner(graph, modes, is_float, number).plan


class _Planner:
    def __init__(
        self, graph: Graph, modes: Mapping[str, str], is_float: Mapping[str, bool], number: Callable[[str], Any]
    ) -> None:  # fmt: skip
        self.graph, self.modes, self.number, self.plan = graph, modes, number, Plan()
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
        owner = {name: name for name in graph.inputs}
        for node in graph.nodes:
            # Behind movers and paddings a value has the grid of their input.
            shares = node in self.plan.integers and (moves(node) or node.operator.kind == "pad")
            owner |= {name: owner[node.inputs[0]] if shares else name for name in node.outputs}
        self.plan.grids = {name: own for name, own in owner.items() if name in read or name in self.plan.owners}
        self.plan.owners = {name: own for name, own in owner.items() if name in self.plan.owners}

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
        if any(self.number(name) is None for name in others):
            return (output,)
        chains = [self.roots.get(name, (name,)) for name in data]
        common = tuple(root for root in chains[0] if all(root in chain for chain in chains))
        is_clamped_value = node.operator.kind == "clip" and common[:1] == (data[0],)
        return (output, *common) if is_clamped_value or not common else common

    def _root(self, node: Node) -> str | None:
        """The value that can be made on integers of which a table gives the node's result."""
        output = node.outputs[0]
        for root in self.roots.get(output, ()):
            maker = self.makers.get(root)
            # A clamp that is no part of another operator would itself be a table; its own root serves as well.
            is_table = maker is not None and maker.operator.kind == "clip" and not self._is_made_for(maker)
            if root != output and root in self.can and not is_table:
                return root
        return None

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
        asked = {name for name in node.outputs if name in self.wanted or name in self.by_tables}
        is_attached = output in self.attached
        if kind in CONTRACTIONS and self.modes[output] == "static":
            self.plan.integers.add(node)
            self.wanted.update(data)
        if not (is_attached or asked) or not data:
            return
        if moves(node):
            self.plan.integers.add(node)
            (self.attached if is_attached else self.wanted).add(data[0])
            return
        if not is_attached:
            self.plan.owners |= {name: name for name in asked}
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
        is_operator = maker is not None and maker.operator.kind in kinds and self._root(maker) is None
        return is_operator and self._is_read_once(name)

    def _is_read_once(self, name: str) -> bool:
        return len(self.readers.get(name, [])) == 1 and name not in self.graph.outputs


def is_float(dtype: Any) -> bool:
    """Whether a type is one of floats."""
    return bool(jnp.issubdtype(dtype, jnp.floating))
