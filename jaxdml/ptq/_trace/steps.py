"""Chooses the kernels for the steps of a loop.

Calling a native kernel takes longer than computing a small product of a single row. XLA compiles such a product and the
operations around it into a few functions that each step calls.
"""

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import jax

from jaxdml._arithmetic.kernel_library import use_kernels
from jaxdml._graph.graph import Node

MOST_ELEMENTS = 2**14  # of each operand; computing a larger product takes longer than calling a native kernel


def in_steps(node: Node) -> Node:
    """The node for the body of a loop: XLA's kernels run it if its input is one small row. The bits are the same."""
    function = node.operator.function

    def computed(*arguments: Any, **options: Any) -> Any:
        with use_kernels("xla") if _is_small_row(*arguments) else nullcontext():
            return function(*arguments, **options)

    return node.replace(operator=replace(node.operator, function=computed))


def _is_small_row(x: Any = None, *others: Any) -> bool:
    """Whether x is a single row, and x and each of the others, such as a matrix of weights, have few elements."""
    shapes = [leaf.shape for leaf in jax.tree.leaves((x, others), is_leaf=lambda leaf: hasattr(leaf, "shape"))]
    if not all(isinstance(size, int) for shape in shapes for size in shape):
        return False
    rows = [math.prod(shape[:-1]) for shape in shapes[:1]]
    return rows == [1] and max(map(math.prod, shapes)) <= MOST_ELEMENTS
