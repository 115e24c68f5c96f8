"""Converts the graph of a model and the graphs of its branches to one graph of operators."""

import itertools
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx

from jaxdml._graph.graph import Graph, Node
from jaxdml._graph.known import KnownValues
from jaxdml.errors import ModelError, ModelFileNotFoundError
from jaxdml.onnx._convert.nodes import NodeConverter, domain_of
from jaxdml.onnx._convert.order import sorted_nodes
from jaxdml.onnx._file import Reader, all_graphs
from jaxdml.onnx._table import ROWS
from jaxdml.onnx._tensors import Inferred, outputs, tensors

_UNDEFINED = "no input, initializer or node defines"


def to_graph(reader: Reader, numerics: str) -> tuple[Graph, Inferred, list[str]]:
    """The graph of a model, its types, and its problems; if there are problems, the graph is incomplete.

    Conditions are folded, so the caller must have set the limits with `limited_by`.
    """
    proto = reader.proto.graph
    problems = [text for value in proto.input if (text := _problem_of(tensors, [value]))]
    problems += [text for value in proto.output if (text := _problem_of(outputs, [value], {}))]
    if not proto.output:
        problems.append("the model has no outputs")
    problems += _duplicates("input", proto.input) + _duplicates("output", proto.output)
    converter = _GraphConverter(reader, numerics)
    scope = converter.add(proto, ChainMap({value.name: value.name for value in proto.input}), "")
    problems += converter.problems
    names = tuple(value.name for value in proto.output)
    problems += [f"no node defines output {name!r}" for name in names if name not in scope]
    (identity,) = ROWS["", "Identity"]
    passed = [  # from a branch to the model's output
        Node(identity.operator, (scope[name],), (name,), {}, name, ("If",))
        for name in names
        if scope.get(name, name) != name
    ]
    inputs = tuple(value.name for value in proto.input if value.name not in converter.constants)
    return Graph((*converter.nodes, *passed), inputs, names, converter.constants), converter.inferred, problems


Scope = ChainMap[str, str]  # maps the names of the values that a node may read to their names in the converted graph


class _GraphConverter:
    """Converts the graph of a model, and the graphs of its branches, to the nodes and constants of one graph.

    Attributes:
      nodes: the nodes in topological order.
      constants: the constants, keyed by name.
      problems: the problems found so far.
      inferred: the types that ONNX infers.
    """

    def __init__(self, reader: Reader, numerics: str) -> None:
        self._reader = reader
        self.nodes, self.constants, self.problems = list[Node](), dict[str, np.ndarray](), list[str]()
        self._known = KnownValues(self.constants, reader.budget.check_result)
        graph = reader.proto.graph
        values = (value for node in graph.node for value in node.output)
        self._taken = {*values, *(each.name for each in (*graph.input, *graph.initializer))}
        order, _ = sorted_nodes(graph.node)
        self._converter = NodeConverter(reader, numerics, [node for _, node in order])
        self.inferred = self._converter.inferred
        self._wrong_opsets = self._converter.wrong_opsets(node for each in all_graphs(graph) for node in each.node)
        self.problems += self._wrong_opsets.values()

    def add(self, graph: onnx.GraphProto, scope: Scope, prefix: str) -> Scope:
        """Adds a graph.

        Args:
          graph: the graph.
          scope: the names that the graph may read, and must not define again.
          prefix: precedes the names of a branch's nodes and values; "" for the model's own graph.

        Returns:
          The scope with the graph's own values.
        """
        if graph.sparse_initializer:
            self.problems.append("the model has sparse initializers, which are not supported")
        constants, wrong = _constants(self._reader, graph)
        self.problems += wrong
        for tensor in graph.initializer:
            if prefix and tensor.name in scope:
                self.problems.append(f"branch {prefix!r} defines {tensor.name!r}, which is defined already")
            scope[tensor.name] = name = self._named(tensor.name, prefix)
            if tensor.name in constants:
                self.constants[name] = constants[tensor.name]
        computed = {value for node in graph.node for value in node.output}
        named, wrong = sorted_nodes(graph.node)
        self.problems += [f"branch {prefix!r}: {text}" if prefix else text for text in wrong]
        for name, node in named:
            self._reader.budget.check_time()
            # A name that is not UTF-8 is a bytes object, which the f-string turns into text.
            self._add_node(node, f"{prefix}{name}", scope, computed, prefix)
        return scope

    def _add_node(self, proto: onnx.NodeProto, name: str, scope: Scope, computed: set[str], prefix: str) -> None:
        self.problems += [
            f"node {name!r} reads {value!r}, which {_UNDEFINED}"
            for value in dict.fromkeys(proto.input)
            if value and value not in scope and value not in computed
        ]
        node, values = None, dict[str, str]()
        try:
            if domain_of(proto) not in self._wrong_opsets:
                node = self._converter.node(proto, name)
                node = node.replace(inputs=tuple(scope.get(value, value) for value in node.inputs))
                if "then_branch" in node.options:
                    node, values = self._branched(node, scope)
        except ModelError as error:
            self._reader.budget.check_time()  # inside a branch the error may say that the time is up
            self.problems.append(str(error))
        for value in filter(None, proto.output):
            if value in scope:
                self.problems.append(f"node {name!r} defines {value!r}, which is defined already")
            scope[value] = values.get(value) or self._named(value, prefix)
        if node is not None:
            node = node.replace(outputs=tuple(scope.get(value, value) for value in proto.output))
            self.nodes.append(node)
            self._known.add(node)

    def _branched(self, node: Node, scope: Scope) -> tuple[Node | None, dict[str, str]]:
        """Adds both branches of an If, or only the branch that a constant condition takes.

        Returns:
          The node that chooses between the branches, and no names; or no node, and the names of one branch's outputs.
        """
        if len(node.inputs) > 1:
            raise ModelError(f"node {node.name!r} (If) has {len(node.inputs)} inputs, expected 1")
        condition = self._known.get(node.inputs[0])
        if condition is not None and condition.size == 1:
            kind = "then" if condition.item() else "else"
            return None, dict(zip(node.outputs, self._branch(node, kind, scope), strict=True))
        values = [value for kind in ("then", "else") for value in self._branch(node, kind, scope)]
        return node.replace(inputs=(node.inputs[0], *values), options={}), {}

    def _branch(self, node: Node, kind: str, scope: Scope) -> list[str]:
        """Adds a branch of an If, and returns the names of its outputs."""
        graph, prefix = node.options[f"{kind}_branch"], f"{node.name}.{kind}."
        if graph.input:
            raise ModelError(f"branch {prefix!r} has {len(graph.input)} inputs, expected none")
        if len(graph.output) != len(node.outputs):
            raise ModelError(f"branch {prefix!r} has {len(graph.output)} outputs, expected {len(node.outputs)}")
        inner = self.add(graph, scope.new_child(), prefix)
        self.problems += [
            f"branch {prefix!r}: no node defines its output {value.name!r}"
            for value in graph.output
            if value.name not in inner
        ]
        return [inner.get(value.name, value.name) for value in graph.output]

    def _named(self, value: str, prefix: str) -> str:
        """A name for a value in the converted graph: its own, or a new one for a value of a branch."""
        if not prefix:
            return value
        numbers = itertools.count(1)
        name = f"{prefix}{value}"
        while name in self._taken:
            name = f"{prefix}{value}:{next(numbers)}"
        self._taken.add(name)
        return name


def _constants(reader: Reader, graph: onnx.GraphProto) -> tuple[dict[str, np.ndarray], list[str]]:
    """The initializers, keyed by name, and the problems with them."""
    constants, problems, external = dict[str, np.ndarray](), list[str](), list[str]()
    names = Counter(tensor.name for tensor in graph.initializer)
    problems += [f"tensor {name!r} is given twice" for name, count in names.items() if count > 1]
    for tensor in graph.initializer:
        if reader.is_out_of_reach(tensor):
            external.append(tensor.name)
            continue
        try:
            constants[tensor.name] = reader.array(tensor)
        except ModelFileNotFoundError:
            raise
        except ModelError as error:
            problems.append(str(error))
    if external:
        rest = f" and {len(external) - 1} more lie in other files" if external[1:] else " lies in another file"
        problems.append(f"tensor {external[0]!r}{rest}; load the model from its path")
    return constants, problems


def _duplicates(kind: str, values: Iterable[onnx.ValueInfoProto]) -> list[str]:
    """An error for each name that is declared more than once."""
    counts = Counter(value.name for value in values)
    return [f"{kind} {name!r} is declared {count} times" for name, count in counts.items() if count > 1]


def _problem_of(declared: Callable[..., Any], *arguments: Any) -> str | None:
    """The error for the declaration of inputs or outputs, or None."""
    try:
        declared(*arguments)
    except ModelError as error:
        return str(error)
    return None
