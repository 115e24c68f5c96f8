"""Why an operator without a fusion rule stays in floats."""

from typing import NoReturn

import jax.numpy as jnp

from jaxdml._graph.graph import MOVERS, Node, may_be_padding_alone
from jaxdml._graph.grids import Grid, Grids
from jaxdml._graph.normal_form import bounds_of
from jaxdml._graph.operands import StaysFloat, grid_of, output_of


def stays(node: Node, grids: Grids) -> NoReturn:
    """Raises the reason why a node without a rule stays in floats.

    Raises:
      StaysFloat: always.
    """
    if node.operator.kind in ("relu", "clip"):
        _clamp(node, grids)
    if node.operator.kind in MOVERS:
        _mover(node, grids)
    raise StaysFloat(f"there is no quantized {node.operator.name}")


def _clamp(node: Node, grids: Grids) -> NoReturn:
    grid, _ = output_of(grids, node)
    _check_order(grid, grids, "its result")
    if bounds_of(node, grids) is None:
        raise StaysFloat("its bounds are not constants")
    scale, zero_point = grids.numbers(grid)
    limits = jnp.iinfo(grid.dtype)  # type: ignore[no-untyped-call] # np.iinfo has no 4-bit types
    low, high = ((limit - zero_point) * scale for limit in (limits.min, limits.max))
    raise StaysFloat(f"{node.operator.name} has a bound inside of the quantized range [{low:g}, {high:g}]")


def _mover(node: Node, grids: Grids) -> NoReturn:
    maker = grids.producer(node.inputs[0])
    if maker is not None and maker.operator.kind == "dequantize_linear":
        _check_order(grid_of(grids, node.inputs[0], None), grids, node.inputs[0])
    else:
        if len(node.outputs) > 1:
            raise StaysFloat(f"{node.inputs[0]} is a float")
        _check_order(output_of(grids, node)[0], grids, "its result")
    if any(node.outputs[1:]):
        raise StaysFloat("its output of indices is used, too")
    if node.operator.kind == "max_pool" and may_be_padding_alone(node.options):
        raise StaysFloat("its windows have dilations, and one may contain nothing but padding")
    raise StaysFloat("its fill value outside of the image is a float")


def _check_order(grid: Grid, grids: Grids, name: str) -> None:
    if not grids.keeps_order(grid):
        scale = grids.numbers(grid)[0]
        raise StaysFloat(f"{name} has the scale {scale:g}, with which {grid.dtype} values are not ordered like floats")
