"""Chooses where products of a loop are computed: before the loop, or in each step, and by which kernels.

Calling a native kernel takes longer than computing a small product of few rows. So products of a sequence, such as the
inputs of an RNN, are computed for all steps at once. In the steps, XLA compiles a small product of a single row, and
the operations around it, into a few functions that each step calls.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import jax

from jaxdml._arithmetic.kernel_call import joined_kernels
from jaxdml._arithmetic.prepared import PreparedMatrix
from jaxdml._graph.evaluate import evaluate
from jaxdml._graph.graph import CONVERSIONS, MOVERS, Node

MOST_BYTES = 2**22  # of the products of all steps; for larger ones, memory costs more than the calls of kernels
MOST_ELEMENTS = 2**14  # of each operand; computing a larger product takes longer than calling a native kernel


def ahead_of_steps(
    nodes: Sequence[Node], sequences: Mapping[str, Any], shared: Mapping[str, Any], outputs: Sequence[str]
) -> tuple[tuple[Node, ...], dict[str, Any]]:
    """The nodes that each step runs, and the products of sequences for all steps, which these nodes read.

    Args:
      nodes: the nodes of the body.
      sequences: maps names to arrays that have an element for each step.
      shared: maps names to values that all steps share, and that no step changes.
      outputs: names of the body's results.
    """
    ahead = _products_of(sequences, shared, nodes)
    rest = [node for node in nodes if node not in ahead]
    wanted = {name for node in rest for name in node.inputs}.union(outputs)

    def of_step(each: Mapping[str, Any]) -> dict[str, Any]:
        values = evaluate(ahead, {**shared, **each})
        return {name: values[name] for node in ahead for name in node.outputs if name in wanted}

    read = {name: sequences[name] for node in ahead for name in node.inputs if name in sequences}
    if not read or not _fit(jax.eval_shape(jax.vmap(of_step), read).values()):
        return tuple(map(_in_step, nodes)), {}
    return tuple(map(_in_step, rest)), jax.vmap(of_step)(read)


def _products_of(sequences: Iterable[str], shared: Mapping[str, Any], nodes: Sequence[Node]) -> list[Node]:
    """The products of sequences by prepared matrices, and the nodes that move and quantize their operands."""
    free, ahead, needed = set(sequences), list[Node](), set[str]()
    for node in nodes:
        is_free = node.operator.is_quantized or node.operator.kind in (*MOVERS, *CONVERSIONS)
        given = set(filter(None, node.inputs)) - shared.keys()
        if is_free and given and given <= free:
            free.update(node.outputs)
    for node in reversed(nodes):
        is_product = any(isinstance(shared.get(name), PreparedMatrix) for name in node.inputs)
        if free.issuperset(node.outputs) and (is_product or not needed.isdisjoint(node.outputs)):
            ahead.insert(0, node)
            needed.update(node.inputs)
    return ahead


def _fit(arrays: Iterable[Any]) -> bool:
    """Whether arrays, of known sizes, are small enough to stay in the caches of a processor."""
    sizes = [(*x.shape, x.dtype.itemsize) for x in arrays]
    return _are_known(sizes) and sum(map(math.prod, sizes)) <= MOST_BYTES


def _are_known(shapes: Iterable[Sequence[Any]]) -> bool:
    return all(isinstance(size, int) for shape in shapes for size in shape)


def _in_step(node: Node) -> Node:
    """The node for the body of a loop: XLA's kernels run it if its input is one small row. The bits are the same."""
    function = node.operator.function

    def computed(*arguments: Any, **options: Any) -> Any:
        with joined_kernels() if _is_small_row(*arguments) else nullcontext():
            return function(*arguments, **options)

    return node.replace(operator=replace(node.operator, function=computed))


def _is_small_row(x: Any = None, *others: Any) -> bool:
    """Whether x is a single row, and x and each of the others, such as a matrix of weights, have few elements."""
    shapes = [leaf.shape for leaf in jax.tree.leaves((x, others), is_leaf=lambda leaf: hasattr(leaf, "shape"))]
    if not _are_known(shapes):
        return False
    rows = [math.prod(shape[:-1]) for shape in shapes[:1]]
    return rows == [1] and max(map(math.prod, shapes)) <= MOST_ELEMENTS
