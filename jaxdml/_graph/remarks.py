"""Which nodes run on integers, and why others between dequantize and quantize nodes do not."""

from typing import NoReturn

import jax.numpy as jnp
import numpy as np

from jaxdml._graph.graph import Graph, Node, may_be_padding_alone
from jaxdml._graph.grids import Grid, Grids
from jaxdml._graph.normal_form import bounds_of
from jaxdml._graph.rules import Kept, grid_of, output_of

CONVERSIONS = ("quantize_linear", "dequantize_linear", "quantize_by_range")
CLAMPS = ("relu", "clip")
MOVERS = ("mover", "max_pool", "extreme", "order")  # give elements of their input, or their places


# Why a node stays in floats ------------------------------------------------------------------------------------------


def stays(node: Node, grids: Grids) -> NoReturn:
    """Says why a node stays in floats that no rule is about.

    Raises:
      Kept: always.
    """
    if node.operator.kind in CLAMPS:
        _clamp(node, grids)
    if node.operator.kind in MOVERS:
        _mover(node, grids)
    raise Kept(f"there is no quantized {node.operator.name}")


def _clamp(node: Node, grids: Grids) -> NoReturn:
    grid, _ = output_of(grids, node)
    _check_order(grid, grids, "its result")
    if bounds_of(node, grids) is None:
        raise Kept("its bounds are not constants")
    scale, zero_point = grids.numbers(grid)
    limits = jnp.iinfo(grid.dtype)  # type: ignore[no-untyped-call] # NumPy knows none of 4 bits
    low, high = ((limit - zero_point) * scale for limit in (limits.min, limits.max))
    raise Kept(f"{node.operator.name} clamps within the grid [{low:g}, {high:g}]")


def _mover(node: Node, grids: Grids) -> NoReturn:
    maker = grids.producer(node.inputs[0])
    if maker is not None and maker.operator.kind == "dequantize_linear":
        _check_order(grid_of(grids, node.inputs[0], None), grids, node.inputs[0])
    else:
        if len(node.outputs) > 1:
            raise Kept(f"{node.inputs[0]} is not dequantized")
        _check_order(output_of(grids, node)[0], grids, "its result")
    if any(node.outputs[1:]):
        raise Kept("the places of its elements are asked for, too")
    if node.operator.kind == "max_pool" and may_be_padding_alone(node.options):
        raise Kept("its windows have dilations, and one may have padding alone")
    raise Kept("what lies outside of its image is a float")


def _check_order(grid: Grid, grids: Grids, name: str) -> None:
    if not grids.keeps_order(grid):
        scale = grids.numbers(grid)[0]
        raise Kept(f"{name} has a scale of {scale:g}: the order of {grid.dtype} is not that of floats")


# What runs on integers -----------------------------------------------------------------------------------------------


def with_places(graph: Graph) -> Graph:
    """The graph whose nodes tell what they run on."""
    of_shapes = {name for name, value in graph.constants.items() if value.dtype.kind in "iub"}
    integers = {name for name, value in graph.constants.items() if _may_be_quantized(value)}
    for node in reversed(graph.nodes):
        is_read = node.operator.kind in MOVERS and not integers.isdisjoint(filter(None, node.outputs))
        if is_read or node.operator.is_quantized or node.operator.kind == "dequantize_linear":
            integers.add(node.inputs[0])
    nodes = []
    for node in graph.nodes:
        on, inputs = node.on or "floats", list(filter(None, node.inputs))
        if node.operator.is_quantized or (node.operator.kind in MOVERS and node.inputs[0] in integers):
            on = "integers"
        elif node.operator.gives_shape or (inputs and of_shapes.issuperset(inputs)):
            on = ""
        if on == "" or node.operator.kind == "order":
            of_shapes.update(node.outputs)
        elif node.operator.kind == "quantize_linear" or (on == "integers" and not _gives_floats(node)):
            integers.update(node.outputs)
        nodes.append(node.replace(on=on))
    return graph.replace(nodes=tuple(nodes))


def _may_be_quantized(value: np.ndarray) -> bool:
    return value.dtype.itemsize <= 2 and bool(jnp.issubdtype(value.dtype, jnp.integer))


def _gives_floats(node: Node) -> bool:
    """Whether a node on integers gives floats: a product without a scale of its result."""
    kind = node.operator.kind
    return kind == "float_product" or (kind == "quantized_gemm" and not any(node.inputs[7:]))
