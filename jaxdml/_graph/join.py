"""Replaces the nodes of an elementwise function of one 8-bit tensor by a table of 256 entries.

A hard swish between dequantize and quantize nodes is such a function, and so is a product of a tensor with a function
of the same tensor. The entries are the results of the nodes for every integer, so the bits stay the same.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxdml._graph.evaluate import check_fits_32_bits, evaluate
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

    program, numbers = _program(nodes, function.of, graph.constants)
    entries = partial(_entries, compute, partial(_evaluated, program, numbers), look_up)
    source = tuple(word for node in nodes for word in node.source or (node.operator.name,))
    operator = Operator("table", entries, is_quantized=True)
    return last.replace(operator=operator, inputs=(function.of,), outputs=last.outputs[:1], options={}, source=source)


def _entries(
    compute: Callable[[Array], Array], compute_all: Callable[[Array], Array], look_up: LookUp, x: Array
) -> Array:  # fmt: skip
    """compute(x), using a table if x has 8 bits. `compute_all` gives the table, which is a constant of the program.

    There is no table if the result does not have 8 bits, or if a constant of higher rank than x, such as one of shape
    [1, 1, 1], raises the rank of the result.
    """
    if x.dtype not in BYTES or x.ndim == 0:
        return compute(x)
    limits = np.iinfo(x.dtype)
    with jax.ensure_compile_time_eval():
        every = np.arange(limits.min, limits.max + 1, dtype=x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))
        table = compute_all(every)
    is_alike = table.shape == every.shape and table.dtype in BYTES
    return look_up(x, table.reshape(-1)) if is_alike else compute(x)


# Programs that compute tables ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Program:
    """Nodes of a function, whose values have canonical names. Equal programs are compiled once for all their tables.

    Attributes:
      key: what determines the results; programs with equal keys are equal.
      nodes: the nodes, in topological order; the first value is the argument, and the last output the result.
    """

    key: tuple[Any, ...]
    nodes: tuple[Node, ...] = field(compare=False)


def _program(
    nodes: Iterable[Node], argument: str, constants: Mapping[str, np.ndarray]
) -> tuple[_Program, dict[str, np.ndarray]]:  # fmt: skip
    """The program of the nodes, and its numbers, such as scales, keyed by canonical name."""
    names = {argument: _ARGUMENT}

    def named(values: Iterable[str]) -> tuple[str, ...]:
        return tuple(value and names.setdefault(value, str(len(names))) for value in values)

    renamed = tuple(node.replace(inputs=named(node.inputs), outputs=named(node.outputs)) for node in nodes)
    numbers = {name: constants[value] for value, name in names.items() if value in constants}
    for value in names.keys() & constants.keys():
        check_fits_32_bits(value, constants[value])
    key = ((id(node.operator), node.inputs, node.outputs, *map(_option, node.options.items())) for node in renamed)
    return _Program(tuple(key), renamed), numbers


_ARGUMENT = "0"


def _option(option: tuple[str, Any]) -> tuple[Any, ...]:
    """What identifies an option. The program keeps the nodes, so that no other object gets the id of an option."""
    name, value = option
    return name, repr(value) if isinstance(value, bool | int | float | str) else id(value)


@partial(jax.jit, static_argnums=0)
def _evaluated(program: _Program, numbers: dict[str, Array], x: Array) -> Array:
    values = evaluate(program.nodes, {**numbers, _ARGUMENT: x})
    return values[program.nodes[-1].outputs[0]]
