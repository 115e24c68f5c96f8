"""A graph of operators: what passes read and write."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Operator:
    """What a node computes.

    Attributes:
      name: what the printed table calls the operator.
      function: from inputs and options to an array, or to a tuple of arrays; an absent optional input is None.
      kind: what the fusing pass takes the operator for, such as "conv"; None if the pass knows nothing of it.
      known: the places of the inputs whose values must be known while JAX traces, such as a shape.
      gives_shape: the function reads the shape of its input, and none of its values.
      is_exact: NumPy computes the same bits: the function gives NumPy arrays for NumPy arrays.
      uniform: the places of inputs of which one element may stand for all, where all are equal, such as zero points.
      prepare: by the place of an input, what repacks a constant input once; it takes the array and the node's options,
        and gives the array back where nothing is to be repacked.
      is_quantized: the operator computes on integers that stand for floats.
    """

    name: str
    function: Callable[..., Any]
    kind: str | None = None
    known: tuple[int, ...] = ()
    gives_shape: bool = False
    is_exact: bool = False
    uniform: tuple[int, ...] = ()
    prepare: Mapping[int, Callable[[np.ndarray, Mapping[str, Any]], Any]] = field(default_factory=dict)
    is_quantized: bool = False


@dataclass(frozen=True, eq=False)
class Node:
    """One use of an operator.

    Attributes:
      operator: what the node computes.
      inputs: names of values, "" for an absent optional one.
      outputs: names of values, "" for one that nobody wants.
      options: the keyword arguments of the operator's function.
      name: what the file or the program calls the node.
      source: the operators of the file or program that the node stands for.
      remark: why the node was not fused, or what is to be said of it.
      on: "integers" that stand for floats, or "floats"; "" for shapes, places and the like.
    """

    operator: Operator
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    source: tuple[str, ...] = ()
    remark: str = ""
    on: str = ""

    def replace(self, **changes: Any) -> "Node":
        """The node with other fields."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in an order in which each value is made before it is read.

    Attributes:
      nodes: the nodes.
      inputs: the names of what the graph takes.
      outputs: the names of what the graph gives.
      constants: arrays by name.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, np.ndarray]

    def replace(self, **changes: Any) -> "Graph":
        """The graph with other fields."""
        return dataclasses.replace(self, **changes)

    def producers(self) -> dict[str, Node]:
        """The node that makes each value."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    def consumers(self) -> dict[str, list[Node]]:
        """The nodes that read each value; a node that reads a value twice comes twice."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                if name:
                    found.setdefault(name, []).append(node)
        return found


class Names:
    """New names of values in a graph."""

    def __init__(self, graph: Graph) -> None:
        self._taken = {*graph.inputs, *graph.constants, *graph.producers()}
        self._counts: dict[str, int] = {}

    def next(self, like: str) -> str:
        """A name that no value has: the given one if it is free."""
        if like not in self._taken:
            self._taken.add(like)
            return like
        # From the last number on, so that many values of one name take no quadratic time.
        numbers = itertools.count(self._counts.get(like, 0) + 1)
        number = next(number for number in numbers if f"{like}:{number}" not in self._taken)
        self._counts[like] = number
        return f"{like}:{number}"


def moves(node: Node) -> bool:
    """Whether each output of a node has elements of its first input, in whatever order, and nothing else."""
    kind, options = node.operator.kind, node.options
    if kind == "mover":
        return not options.get("extrapolates")
    if kind == "max_pool":
        return not any(node.outputs[1:]) and not may_be_padding_alone(options)
    return kind == "extreme"


def may_be_padding_alone(pool: Mapping[str, Any]) -> bool:
    """Whether a window of a pool, of these options, may have no element of the input."""
    padding = pool["padding"]
    is_padded = isinstance(padding, str) or any(map(any, padding))
    return is_padded and any(dilation != 1 for dilation in pool["dilations"])


def without_dead(graph: Graph) -> Graph:
    """The graph without the nodes and constants that no output depends on."""
    wanted = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if wanted.intersection(node.outputs):
            kept.append(node)
            wanted.update(node.inputs)
    constants = {name: value for name, value in graph.constants.items() if name in wanted}
    return graph.replace(nodes=tuple(reversed(kept)), constants=constants)
