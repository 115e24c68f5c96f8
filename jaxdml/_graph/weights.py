"""Splits a graph's constants into parameters of its function and constants of the program, and repacks weights.

A constant stays in the program if JAX needs its value to trace, if an operator checks it, or if it is a single number,
such as a scale. All other constants become parameters.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from jaxdml._arithmetic.packing import packed
from jaxdml._arithmetic.prepared import Prepared
from jaxdml._graph.evaluate import check_fits_32_bits, described
from jaxdml._graph.graph import Graph, Names, Node
from jaxdml.errors import ModelError


def with_weights(
    graph: Graph, check_time: Callable[[], None] = lambda: None, known: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Graph, dict[str, Any]]:
    """The graph with only the constants of the program, and a dict of the parameters.

    Args:
      graph: the graph.
      check_time: called between constants; raises if time is up.
      known: maps names to parameters that need not be computed again.

    Raises:
      ModelError: if a 64-bit integer does not fit 32 bits, and JAX's 64-bit types are disabled.
    """
    fresh = Names(graph)
    graph = _with_numbers(graph, fresh)
    staying = _needed_while_tracing(graph) | {name for name, value in graph.constants.items() if value.size <= 1}
    staying |= {name for node in graph.nodes for place in node.operator.fixed for name in node.inputs[place:][:1]}
    nodes, params, repacked = [], dict[str, Any](), dict[tuple[Any, ...], list[str]]()
    for node in graph.nodes:
        inputs = list(node.inputs)
        for places, repack in node.operator.prepare.items():
            given = [inputs[place] if place < len(inputs) else "" for place in places]
            if given[0] in staying or not (given[0] and graph.constants.keys() >= set(filter(None, given))):
                continue
            key = (*given, repack, *sorted((option, str(value)) for option, value in node.options.items()))
            if key not in repacked:
                check_time()
                repacked[key], values = _repacked(node, given, repack, graph, fresh, known)
                params |= values
            for place, name in zip(places, repacked[key], strict=True):
                if place < len(inputs):
                    inputs[place] = name
        nodes.append(node.replace(inputs=tuple(inputs)))
    read = {name for node in nodes for name in node.inputs} | set(graph.outputs)
    for name, value in graph.constants.items():
        if name in read and name not in staying:
            check_time()
            params[name] = known[name] if name in known else _as_array(name, value)
    kept = {name: value for name, value in graph.constants.items() if name in staying}
    found = packed(params, check_time)  # which sorts the names
    return graph.replace(nodes=tuple(nodes), constants=kept), {name: found[name] for name in params}


def _repacked(
    node: Node, given: list[str], repack: Callable[..., Any], graph: Graph, fresh: Names, known: Mapping[str, Any]
) -> tuple[list[str], dict[str, Any]]:  # fmt: skip
    """Repacks constants; returns the names of the results, "" for an absent one, and a dict from new names to values.

    Raises:
      ModelError: if the constants do not match each other; the error names the node.
      TypeError: if `repack` keeps one of several arrays; `known` does not distinguish kept arrays from dropped ones.
    """
    arrays = [graph.constants.get(name) for name in given]
    names = [name and fresh.next(f"{name}:prepared") for name in given]
    if names[0] in known:
        values: Any = [known.get(name) for name in names]
    else:
        try:
            values = repack(*arrays, node.options)
        except ModelError as error:
            raise ModelError(f"{described(node)}: {error}") from error
        values = values if isinstance(values, tuple) else (values,)
    new_names, params = list(given), dict[str, Any]()
    for place, (array, name, value) in enumerate(zip(arrays, names, values, strict=True)):
        if value is None:
            new_names[place] = ""
        elif value is array:
            if len(given) > 1:
                raise TypeError(f"{described(node)}: a function that prepares several inputs must keep none of them")
        else:
            new_names[place], params[name] = name, value if isinstance(value, Prepared) else _as_array(name, value)
    return new_names, params


def _with_numbers(graph: Graph, fresh: Names) -> Graph:
    """Replaces constants whose elements are all equal by scalars, where the operator allows it."""
    nodes, constants, numbers = [], dict(graph.constants), dict[str, str]()
    for node in graph.nodes:
        inputs = list(node.inputs)
        for place in node.operator.uniform:
            name = inputs[place] if place < len(inputs) else ""
            value = constants.get(name)
            if value is not None and value.size > 1 and (value == value.flat[0]).all():
                if name not in numbers:
                    numbers[name] = fresh.next(f"{name}:number")
                    constants[numbers[name]] = value.reshape(-1)[0].reshape(())
                inputs[place] = numbers[name]
        nodes.append(node.replace(inputs=tuple(inputs)))
    return graph.replace(nodes=tuple(nodes), constants=constants)


def _needed_while_tracing(graph: Graph) -> set[str]:
    """The constants that determine shapes, axes and other values that JAX needs while it traces."""
    needed: set[str] = set()
    for node in reversed(graph.nodes):
        if node.operator.gives_shape:
            continue
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
        needed.update(node.inputs[place] for place in node.operator.known if place < len(node.inputs))
    return needed.intersection(graph.constants)


def _as_array(name: str, value: np.ndarray) -> jax.Array:
    """The array on a device; 64-bit types are narrowed if JAX has them disabled."""
    check_fits_32_bits(name, value)
    dtype = jax.dtypes.canonicalize_dtype(value.dtype)
    return jax.device_put(np.array(value, dtype))  # copies; jnp.asarray would compile a program for each shape
