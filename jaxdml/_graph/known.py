"""Values that depend only on constants, available while a graph is built."""

import itertools
from collections.abc import Mapping

import numpy as np

from jaxdml._graph.evaluate import ResultCheck, folded
from jaxdml._graph.graph import Graph, Node


class KnownValues:
    """Folds constants on demand, each node at most once.

    Args:
      constants: the constants, keyed by name; the mapping may grow.
      check_result: raises if a node's result is not allowed.
    """

    def __init__(self, constants: Mapping[str, np.ndarray], check_result: ResultCheck) -> None:
        self._constants, self._check_result = constants, check_result
        self._folded: dict[str, np.ndarray] = {}
        self._makers: dict[str, tuple[int, Node]] = {}  # of values that have not been requested yet
        self._places = itertools.count()

    def add(self, node: Node) -> None:
        """Adds a node, whose inputs are constants, inputs of the graph, or outputs of nodes that were added before."""
        self._makers |= dict.fromkeys(filter(None, node.outputs), (next(self._places), node))

    def get(self, name: str) -> np.ndarray | None:
        """The value of this name; None if it depends on the graph's inputs, or if NumPy's bits differ from JAX's.

        Raises:
          ModelError: if a node fails on its constants.
        """
        wanted: dict[int, Node] = {}
        asked = [name]
        while asked:
            made = self._makers.pop(asked.pop(), None)
            if made is not None and made[0] not in wanted:
                wanted[made[0]] = made[1]
                asked += made[1].inputs
        nodes = tuple(wanted[place] for place in sorted(wanted))
        read = {value for node in nodes for value in node.inputs}
        given = {each: value for each in read if (value := self._found(each)) is not None}
        self._folded |= folded(Graph(nodes, (), (name,), given), check_result=self._check_result).constants
        return self._found(name)

    def _found(self, name: str) -> np.ndarray | None:
        return self._folded[name] if name in self._folded else self._constants.get(name)
