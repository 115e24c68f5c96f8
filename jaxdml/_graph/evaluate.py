"""A graph's values: those known from constants and shapes in NumPy, the others in JAX."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxdml._graph.graph import Graph, Node
from jaxdml.errors import ModelError

LARGE = 2**24  # elements
Limit = Callable[[Node, Any], None]


def evaluate(
    nodes: Iterable[Node], values: Mapping[str, Any], *, limit: Limit = lambda node, value: None
) -> dict[str, Any]:
    """Every value of the nodes, and those given, by name.

    Args:
      nodes: in an order in which each value is made before it is read.
      values: inputs and constants. NumPy arrays are known while JAX traces.
      limit: raises where a node's result may not be.

    Raises:
      ModelError: if a node cannot compute with its inputs; the error names the node.
    """
    found = dict(values)
    for node in nodes:
        for name, value in zip(node.outputs, results(node, found, limit), strict=False):
            limit(node, value)
            found[name] = value
    return found


def results(node: Node, values: Mapping[str, Any], limit: Limit) -> tuple[Any, ...]:
    """What a node computes."""
    arguments = [values[name] if name else None for name in node.inputs]
    for place in node.operator.known:
        if place < len(arguments) and not (arguments[place] is None or isinstance(arguments[place], np.ndarray)):
            raise ModelError(_unknown(node, place))
    if _may_be_large(arguments):
        for shape in _tried(node, arguments, _shapes):
            limit(node, shape)
    computed = _tried(node, arguments, _computed)
    if any(node.outputs[len(computed) :]):
        raise ModelError(f"{described(node)} has {len(node.outputs)} outputs, the operator makes {len(computed)}")
    return computed


def unknown_shapes(graph: Graph) -> list[str]:
    """A sentence for each input that JAX must know to trace the graph, and that is computed from the graph's inputs."""
    data, found = set(graph.inputs), []
    for node in graph.nodes:
        found += [_unknown(node, place) for place in node.operator.known if data.intersection(node.inputs[place:][:1])]
        if not node.operator.gives_shape and data.intersection(node.inputs):
            data.update(node.outputs)
    return found


def _unknown(node: Node, place: int) -> str:
    text = "depends on data, and JAX needs its value to know shapes; make it an initializer"
    return f"{described(node)}: input {node.inputs[place]!r} {text}"


def _tried(node: Node, arguments: Sequence[Any], compute: Callable[[Node, Sequence[Any]], Any]) -> tuple[Any, ...]:
    """What is computed of a node, as a tuple."""
    try:
        with np.errstate(all="ignore"):
            computed = compute(node, arguments)
    except ModelError as error:
        raise ModelError(f"{described(node)}: {error}") from error
    except Exception as error:  # whatever a malformed file makes NumPy or JAX say, its reader learns the node
        shapes = ", ".join(shown(argument) for argument in arguments)
        raise ModelError(f"{described(node)} with inputs ({shapes}): {error}") from error
    return computed if isinstance(computed, tuple) else (computed,)


def _computed(node: Node, arguments: Sequence[Any]) -> Any:
    return node.operator.function(*arguments, **node.options)


def _may_be_large(arguments: Sequence[Any]) -> bool:
    """Whether NumPy may make a large array of smaller ones, which broadcast, or are joined, or pick from another."""
    shapes = [argument.shape for argument in arguments if isinstance(argument, np.ndarray)]
    count = 1
    for size in (size for shape in shapes for size in shape):
        count *= max(size, 1)
        if count > LARGE:
            return not any(isinstance(argument, jax.Array) for argument in arguments)
    return False


def _shapes(node: Node, arguments: Sequence[Any]) -> Any:
    """Shapes and types of what a node would compute; JAX tells them without computing."""
    places = [
        place
        for place, argument in enumerate(arguments)
        if place not in node.operator.known and isinstance(argument, np.ndarray) and argument.dtype != object
    ]

    def computed(*given: Any) -> Any:
        traced = dict(zip(places, given, strict=True))
        return _computed(node, [traced.get(place, argument) for place, argument in enumerate(arguments)])

    with jax.enable_x64(True):
        return jax.eval_shape(computed, *(arguments[place] for place in places))


def folded(graph: Graph, *, limit: Limit = lambda node, value: None) -> Graph:
    """The graph with nodes of constants computed, where NumPy gives the bits that JAX would."""
    constants, kept = dict(graph.constants), []
    for node in graph.nodes:
        is_known = all(name in constants for name in node.inputs if name)
        if not (is_known and node.operator.is_exact):
            kept.append(node)
            continue
        for name, value in zip(node.outputs, map(np.asarray, results(node, constants, limit)), strict=False):
            limit(node, value)
            if name:
                constants[name] = value
    return graph.replace(nodes=tuple(kept), constants=constants)


def described(node: Node) -> str:
    """A node for an error: its name and operator."""
    return f"node {node.name!r} ({' + '.join(node.source) or node.operator.name})"


def shown(value: Any) -> str:
    """A value's type and shape."""
    if value is None:
        return "none"
    return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
