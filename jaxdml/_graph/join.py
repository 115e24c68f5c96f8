"""Replaces the nodes of an elementwise function of one 8-bit tensor by a table of 256 entries.

A hard swish between dequantize and quantize nodes is such a function, and so is a product of a tensor with a function
of the same tensor. The entries are the results of the nodes for every integer, so the bits stay the same.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._graph.evaluate import evaluate
from jaxdml._graph.graph import Graph, Node, Operator
from jaxdml._graph.grids import BYTES

Array = Any
LookUp = Callable[[Array, Array], Array]


class _Function(NamedTuple):
    """A value as a function of the elements of another value.

    Attributes:
      of: the name of the other value, which may have any type.
      nodes: the positions in the graph of the nodes that compute the function.
    """

    of: str
    nodes: frozenset[int]


def joined(graph: Graph, wanted: Iterable[str], look_up: LookUp) -> tuple[Node, ...]:
    """The nodes that compute the wanted values; tables replace the nodes of elementwise functions of one tensor.

    Args:
      graph: the graph; its constants are those that are known while JAX traces.
      wanted: names of values.
      look_up: (x, table) -> the entries of the table at x; the table begins with the entry of the least integer.
    """
    functions = _functions(graph)
    needed, kept = set(wanted), list[Node]()
    for node in reversed(graph.nodes):
        if needed.isdisjoint(filter(None, node.outputs)):
            continue
        function = functions.get(node.outputs[0])
        if function and len(function.nodes) > 1 and _gives_integers(node):
            node = _table(graph, node, function, look_up)
        kept.append(node)
        needed.update(node.inputs)
    return tuple(reversed(kept))


def _functions(graph: Graph) -> dict[str, _Function]:
    """Maps values that depend on one other value to their functions. A function's first node reads integers."""
    functions: dict[str, _Function] = {}
    for place, node in enumerate(graph.nodes):
        given = {name for name in node.inputs if name and name not in graph.constants}
        numbers = (graph.constants[name] for name in node.inputs if name in graph.constants)
        if not node.operator.is_pointwise or any(np.size(number) != 1 for number in numbers):
            continue
        known = [functions[name] for name in given if name in functions]
        roots = {function.of for function in known} or (given if _takes_integers(node) else set())
        if len(roots) == 1 and given - functions.keys() <= roots:
            nodes = frozenset({place}).union(*(function.nodes for function in known))
            functions[node.outputs[0]] = _Function(roots.pop(), nodes)
    return functions


def _takes_integers(node: Node) -> bool:
    return node.operator.is_quantized or node.operator.kind == "dequantize_linear"


def _gives_integers(node: Node) -> bool:
    return node.operator.is_quantized or node.operator.kind == "quantize_linear"


def _table(graph: Graph, last: Node, function: _Function, look_up: LookUp) -> Node:
    """The node of a table that replaces the nodes of a function; `last` is the last of them."""
    nodes = [graph.nodes[place] for place in sorted(function.nodes)]

    def compute(x: Array) -> Array:
        values = {**graph.constants, function.of: x}
        return evaluate(nodes, values)[last.outputs[0]]

    operator = Operator("table", partial(_entries, compute, look_up), is_quantized=True)
    source = tuple(word for node in nodes for word in node.source or (node.operator.name,))
    return last.replace(operator=operator, inputs=(function.of,), outputs=last.outputs[:1], options={}, source=source)


def _entries(compute: Callable[[Array], Array], look_up: LookUp, x: Array) -> Array:
    """compute(x), using a table if x has 8 bits. The table is a constant of the program.

    There is no table if the result does not have 8 bits, or if a constant of higher rank than x, such as one of shape
    [1, 1, 1], raises the rank of the result.
    """
    if x.dtype not in BYTES or x.ndim == 0:
        return compute(x)
    limits = np.iinfo(x.dtype)
    with jax.ensure_compile_time_eval():
        every = jnp.arange(limits.min, limits.max + 1, dtype=x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))
        table = compute(every)
    is_alike = table.shape == every.shape and table.dtype in BYTES
    return look_up(x, table.reshape(-1)) if is_alike else compute(x)
