"""Splits a graph's constants into parameters of its function and constants of the program, and repacks weights.

A constant stays in the program if JAX needs its value to trace, or if it is a single number, such as a scale. All other
constants become parameters.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from jaxdml._arithmetic.prepared import Prepared
from jaxdml._graph.graph import Graph, Names
from jaxdml.errors import ModelError


def with_weights(
    graph: Graph, check_time: Callable[[], None] = lambda: None, known: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Graph, dict[str, Any]]:
    """The graph with only the constants of the program, and a dict of the parameters.

    Args:
      graph: the graph.
      check_time: called between constants; it raises if the time is up.
      known: maps names to parameters that need not be computed again.

    Raises:
      ModelError: if a 64-bit integer does not fit 32 bits, and JAX's 64-bit types are disabled.
    """
    fresh = Names(graph)
    graph = _with_numbers(graph, fresh)
    staying = _needed_while_tracing(graph) | {name for name, value in graph.constants.items() if value.size <= 1}
    nodes, params, names = [], dict[str, Any](), dict[tuple[Any, ...], str]()
    for node in graph.nodes:
        inputs = list(node.inputs)
        for place, repack in node.operator.prepare.items():
            name = inputs[place] if place < len(inputs) else ""
            if name not in graph.constants or name in staying:
                continue
            key = (name, repack, *sorted((option, str(value)) for option, value in node.options.items()))
            if key not in names:
                check_time()
                prepared = fresh.next(f"{name}:prepared")
                value = known[prepared] if prepared in known else repack(graph.constants[name], node.options)
                if not isinstance(value, Prepared):
                    continue
                names[key], params[prepared] = prepared, value
            inputs[place] = names[key]
        nodes.append(node.replace(inputs=tuple(inputs)))
    read = {name for node in nodes for name in node.inputs} | set(graph.outputs)
    for name, value in graph.constants.items():
        if name in read and name not in staying:
            check_time()
            params[name] = known[name] if name in known else _as_array(name, value)
    kept = {name: value for name, value in graph.constants.items() if name in staying}
    return graph.replace(nodes=tuple(nodes), constants=kept), params


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
    dtype = jax.dtypes.canonicalize_dtype(value.dtype)
    if value.dtype.kind in "iu" and dtype != value.dtype and value.size:
        limits = np.iinfo(dtype)
        if value.min() < limits.min or value.max() > limits.max:
            raise ModelError(f"tensor {name!r} has integers of more than 32 bits; set jax_enable_x64")
    return jax.device_put(np.array(value, dtype))  # copies; jnp.asarray would compile a program for each shape
