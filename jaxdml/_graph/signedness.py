"""Converts int8 values to uint8 in graphs that have both, because a quantized operator requires a single type."""

import numpy as np

from jaxdml._graph.graph import Graph, Names, Node
from jaxdml._graph.grids import Grids

INT8, UINT8 = np.dtype(np.int8), np.dtype(np.uint8)


def of_one_signedness(graph: Graph) -> Graph:
    """The graph with uint8 in place of int8, if its nodes quantize to both; constants stay as they are.

    128 is added to each integer and to its zero point, so all floats stay the same. The new integers get a new name.
    Integers stay int8 if a node other than DequantizeLinear reads them, or if the graph returns them.
    """
    grids = Grids(graph)
    dtypes = {grid.value: grid.dtype for node in graph.nodes if (grid := grids.quantized(node)) is not None}
    if not {INT8, UINT8} <= set(dtypes.values()):
        return graph
    names = Names(graph)
    renamed = {
        name: names.next(f"{name}:unsigned")
        for name, dtype in dtypes.items()
        if dtype == INT8 and _has_only_dequantized(name, grids)
    }
    zero_points = dict[tuple[str, str], str]()

    def unsigned(node: Node) -> Node:
        is_to_integers = node.operator.kind == "quantize_linear"
        grid = grids.quantized(node) if is_to_integers else grids.dequantized(node.outputs[0])
        if grid is None or grid.value not in renamed:
            return node
        key = grid.scale, grid.zero_point
        if key not in zero_points:
            offset = grids.constant(grid.zero_point)
            offset = np.zeros_like(grids.constant(grid.scale), INT8) if offset is None else offset
            shifted = (offset.astype(np.int16) + 128).astype(UINT8)
            zero_points[key] = grids.add(f"{grid.zero_point or grid.scale}:unsigned", shifted)
        value, scale, *_ = node.inputs
        inputs = renamed.get(value, value), scale, zero_points[key]
        return node.replace(inputs=inputs, outputs=tuple(renamed.get(name, name) for name in node.outputs))

    nodes = tuple(map(unsigned, graph.nodes))
    return graph.replace(nodes=nodes, constants={**graph.constants, **grids.added})


def _has_only_dequantized(name: str, grids: Grids) -> bool:
    """Whether all readers of an int8 value dequantize it as int8."""
    found = [grids.dequantized(reader.outputs[0]) for reader in grids.readers(name)]
    is_fit = all(grid is not None and (grid.value, grid.dtype) == (name, INT8) for grid in found)
    return is_fit and name not in grids.graph.outputs
