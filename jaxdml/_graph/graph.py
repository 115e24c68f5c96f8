"""Graphs of operators, which passes transform."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Operator:
    """An operator of a graph.

    Attributes:
      name: the operator's name in the printed table.
      function: maps inputs and options to an array or a tuple of arrays; an absent optional input is None.
      kind: the node kind by which passes select rules, such as "conv"; None if no rule applies.
      known: positions of the inputs whose values JAX needs while it traces, such as a shape.
      fixed: positions of inputs that, if constant, stay in the program, so that the function sees their values.
      gives_shape: whether the result depends only on the shape of the input.
      is_exact: whether NumPy computes the same bits as JAX; the function then returns NumPy arrays for NumPy arrays.
      in_numpy: computes the operator on small constants where shapes depend on them, without a program of XLA; the last
        bits of its floats may differ from those of `function`. It need not check its inputs: `function` does, for their
        shapes and types. None: `function` computes it.
      uniform: positions of inputs, such as zero points, that a scalar may replace if all their elements are equal.
      prepare: maps positions of inputs to a function that repacks these inputs together if all of them are constant or
        absent. The function takes their arrays, None for an absent one, and the node's options. For each array it
        returns prepared weights, another array, or None to drop the array. `packing.packed` packs prepared weights that
        are not packed yet. A function of one input may return the array itself to keep it.
      is_quantized: whether the operator computes on quantized integers.
      is_pointwise: whether each element of the result depends on one element of each input, at the same place, and
        has the same bits in tensors of any shape. Inputs with one element broadcast.
      has_rule: whether `jaxdml.exact` has rules for the operator's computations on floats.
      only_selects: whether the operator computes nothing: each element of the result is an element of an input, or the
        cast of one.
      gives_bool: whether the result is bool for inputs of any type.
      typed_by: positions of the inputs in whose type the operator computes; None: of all inputs.
    """

    name: str
    function: Callable[..., Any]
    kind: str | None = None
    known: tuple[int, ...] = ()
    fixed: tuple[int, ...] = ()
    gives_shape: bool = False
    is_exact: bool = False
    in_numpy: Callable[..., Any] | None = None
    uniform: tuple[int, ...] = ()
    prepare: Mapping[tuple[int, ...], Callable[..., Any]] = field(default_factory=dict)
    is_quantized: bool = False
    is_pointwise: bool = False
    has_rule: bool = True
    only_selects: bool = False
    gives_bool: bool = False
    typed_by: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Programs that compute tables trace the inputs of pointwise operators, which therefore see no values."""
        assert not (self.is_pointwise and (self.known or self.fixed)), f"{self.name}: it may not see values of inputs"


@dataclass(frozen=True, eq=False)
class Node:
    """A node of a graph.

    Attributes:
      operator: the operator.
      inputs: names of values; "" for an absent optional input.
      outputs: names of values; "" for an unused output.
      options: keyword arguments of the operator's function.
      name: the node's name in the file or program.
      source: the operators of the file or program that the node replaces.
      remark: why the node was not fused, or another remark for the printed table.
      on: "integers" if the node computes on quantized integers, "floats", or "" for shapes and indices.
      reads_float64: whether an input in whose type the operator computes is float64 if jax_enable_x64 is on; if it is
        off, JAX makes such an input float32.
    """

    operator: Operator
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    source: tuple[str, ...] = ()
    remark: str = ""
    on: str = ""
    reads_float64: bool = False

    def replace(self, **changes: Any) -> "Node":
        """A copy of the node with changed fields."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in topological order.

    Attributes:
      nodes: the nodes.
      inputs: names of the graph's inputs.
      outputs: names of the graph's outputs.
      constants: maps names to arrays.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, np.ndarray]

    def replace(self, **changes: Any) -> "Graph":
        """A copy of the graph with changed fields."""
        return dataclasses.replace(self, **changes)

    def producers(self) -> dict[str, Node]:
        """Maps each value to the node that computes it."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    def consumers(self) -> dict[str, list[Node]]:
        """Maps each value to the nodes that read it; a node that reads a value twice is listed twice."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                if name:
                    found.setdefault(name, []).append(node)
        return found


CONVERSIONS = ("quantize_linear", "dequantize_linear", "quantize_by_range")
EXACT_CAST = "exact_cast"  # the kind of nodes that cast integers to floats that hold all of them, as uint8 to float32
ROUNDING = "rounding"  # the kind of nodes that round floats to a grid by jaxdml's own operators
INDICES = "indices"  # the kind of nodes that compute integers or bools, from such alone, that are the same everywhere
ELEMENT_WISE_INDICES = "element_wise_indices"  # those of INDICES that are elementwise: tables can replace them
OF_INDICES = (INDICES, ELEMENT_WISE_INDICES)
ELEMENT_WISE = ("element_wise", ELEMENT_WISE_INDICES, EXACT_CAST)
CHOICE = "choice"  # the kind of nodes whose first input selects the first or the second half of the other inputs
MOVERS = ("mover", "max_pool", "extreme", "order")  # kinds that return elements of their input, or indices of elements


class Names:
    """Generates names that no value of a graph has."""

    def __init__(self, graph: Graph) -> None:
        self._taken = {*graph.inputs, *graph.constants, *graph.producers()}
        self._counts: dict[str, int] = {}

    def next(self, like: str) -> str:
        """A new name: the given name if it is free, else the given name followed by a number."""
        if like not in self._taken:
            self._taken.add(like)
            return like
        # Continuing from the last number keeps the time linear in the number of values.
        numbers = itertools.count(self._counts.get(like, 0) + 1)
        number = next(number for number in numbers if f"{like}:{number}" not in self._taken)
        self._counts[like] = number
        return f"{like}:{number}"


def moves(node: Node) -> bool:
    """Whether a node only moves elements of its first input: it computes no new numbers."""
    kind, options = node.operator.kind, node.options
    if kind == "mover":
        return not options.get("extrapolates")
    if kind == "max_pool":
        return not any(node.outputs[1:]) and not may_be_padding_alone(options)
    return kind == "extreme"


def only_reading_extremes(graph: Graph) -> dict[str, Node]:
    """Maps each value that only a maximum or minimum reads, directly or through movers, to that maximum or minimum."""
    readers, found = graph.consumers(), dict[str, Node]()
    for node in reversed(graph.nodes):
        if not moves(node) or len(node.outputs) > 1:
            continue
        name, output = node.inputs[0], node.outputs[0]
        if name in graph.outputs or len(readers[name]) > 1:
            continue
        if node.operator.kind in ("extreme", "max_pool"):
            found[name] = node
        elif output in found:
            found[name] = found[output]
    return found


def may_be_padding_alone(pool: Mapping[str, Any]) -> bool:
    """Whether a pooling window may contain only padding."""
    padding = pool["padding"]
    is_padded = isinstance(padding, str) or any(map(any, padding))
    return is_padded and any(dilation != 1 for dilation in pool["dilations"])


def without_dead(graph: Graph) -> Graph:
    """Removes nodes and constants that no output depends on."""
    wanted = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if wanted.intersection(node.outputs):
            kept.append(node)
            wanted.update(node.inputs)
    constants = {name: value for name, value in graph.constants.items() if name in wanted}
    return graph.replace(nodes=tuple(reversed(kept)), constants=constants)
