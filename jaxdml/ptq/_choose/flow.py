"""How data flows through a float graph, as far as planning needs it."""

from collections.abc import Callable
from typing import Any

from jaxdml._graph.graph import Graph, Node, moves
from jaxdml.ptq._build.operators import CONTRACTIONS, PRODUCT


class Flow:
    """A float graph, with the nodes that compute and read its values.

    Attributes:
      graph: the graph.
      data: the values that depend on the graph's inputs.
      data_nodes: the nodes that read data, in order.
    """

    def __init__(self, graph: Graph, number: Callable[[str], Any]) -> None:
        """`number` maps literals to their numbers, and all other fixed values to None."""
        self.graph, self._number = graph, number
        self._makers, self._readers = graph.producers(), graph.consumers()
        self.data = set(graph.inputs)
        self.data_nodes = list[Node]()
        for node in graph.nodes:
            if self.data.intersection(node.inputs):
                self.data.update(node.outputs)
                self.data_nodes.append(node)

    def data_inputs(self, node: Node) -> list[str]:
        """A node's inputs that depend on data."""
        return [name for name in node.inputs if name in self.data]

    def has_only_numbers_beside_data(self, node: Node) -> bool:
        """Whether each input of a node depends on data or is a literal."""
        return all(self._number(name) is not None for name in node.inputs if name not in self.data)

    def maker(self, name: str) -> Node | None:
        """The node that computes a value."""
        return self._makers.get(name)

    def readers(self, name: str) -> list[Node]:
        """The nodes that read a value."""
        return self._readers.get(name, [])

    def is_read_once(self, name: str) -> bool:
        """Whether a value is read exactly once, and is not an output of the graph."""
        return len(self.readers(name)) == 1 and name not in self.graph.outputs

    def is_bias(self, node: Node) -> bool:
        """Whether a node adds the bias of a product."""
        maker = self._makers.get(node.inputs[0])
        is_sum = node.operator.kind == "add" and node.inputs[1] not in self.data
        return is_sum and maker is not None and maker.operator is PRODUCT

    def is_product(self, name: str) -> bool:
        """Whether a value is the result of a product, with or without a bias."""
        node = self._makers.get(name)
        return node is not None and (node.operator.kind == "dot" or self.is_bias(node))


def is_on_own_grid(maker: Callable[[str], Node | None], name: str) -> bool:
    """Whether the function itself quantizes a value to 8 bits; movers may follow. `maker` returns a value's node."""
    node = maker(name)
    while node is not None and moves(node):
        node = maker(node.inputs[0])
    return node is not None and node.operator.kind == "fake_quantize"


def wide_readers(graph: Graph) -> set[str]:
    """The results of contractions that can read 16 bits: those with an input that the function does not quantize to
    8 bits itself.
    """
    data, makers, found = set(graph.inputs), graph.producers(), set[str]()
    for node in graph.nodes:
        read = data.intersection(node.inputs)
        data.update(node.outputs if read else ())
        if node.operator.kind in CONTRACTIONS and not all(is_on_own_grid(makers.get, name) for name in read):
            found.add(node.outputs[0])
    return found
