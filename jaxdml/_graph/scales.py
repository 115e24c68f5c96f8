"""Joins products and convolutions of integers with the nodes after them that scale the sums.

`jaxdml.onnx.save` writes such nodes where float operators read the result of a product: MatMulInteger, Cast, Mul, and
Add of a bias. The joined operator computes the same operations in the same order.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxdml._graph.graph import Graph, Node, Operator, without_dead
from jaxdml._graph.grids import BYTES, Grid, Grids

PRODUCT, CONVOLUTION = "integer_product", "integer_convolution"
ONE = "one"


class _Joined(NamedTuple):
    """The nodes that an operator replaces, and its kind and inputs. The operator's result is that of the last node."""

    nodes: Sequence[Node]
    kind: str
    inputs: tuple[str, ...]


def with_scales(graph: Graph, quantized: Mapping[str, Operator]) -> Graph:
    """The graph with operators of `quantized` in place of integer products and the nodes that scale their results."""
    grids, found = Grids(graph), dict[int, _Joined]()
    for node in graph.nodes:
        join = JOIN.get(node.operator.kind or "")
        joined = None if join is None else join(grids, node)
        if joined is not None:
            found[id(joined.nodes[-1])] = joined
    gone = {id(node) for joined in found.values() for node in joined.nodes}
    nodes = []
    for node in graph.nodes:
        joined = found.get(id(node))
        if joined is not None:
            first, source = joined.nodes[0], tuple(word for each in joined.nodes for word in each.source)
            operator, options = quantized[joined.kind], {} if joined.kind == "gemm" else first.options
            nodes.append(Node(operator, joined.inputs, node.outputs[:1], options, first.name, source))
        elif id(node) not in gone:
            nodes.append(node)
    return without_dead(graph.replace(nodes=tuple(nodes), constants={**graph.constants, **grids.added}))


def _constant_beside(grids: Grids, name: str, node: Node | None, kind: str, dtype: type) -> np.ndarray | None:
    """The operand other than `name` of a node of kind `kind`, if it is a constant of type `dtype`; None otherwise."""
    if node is None or node.operator.kind != kind or len(node.inputs) != 2:
        return None
    others = [each for each in node.inputs if each != name]
    value = grids.constant(others[0]) if len(others) == 1 else None
    return value if value is not None and value.dtype == dtype else None


def _scaled(grids: Grids, total: Node) -> tuple[list[Node], np.ndarray] | None:
    """The nodes that convert int32 sums to floats and scale them, and the scale; None if other nodes read the sums."""
    cast = grids.only_reader(total)
    if cast is None or cast.operator.kind != "cast" or cast.options.get("dtype") != np.float32:
        return None
    scaling = grids.only_reader(cast)
    scale = _constant_beside(grids, cast.outputs[0], scaling, "mul", np.float32)
    return None if scaling is None or scale is None else ([cast, scaling], scale)


def _with_bias(grids: Grids, node: Node) -> tuple[list[Node], np.ndarray | None]:
    """The node, with the int32 addition that reads its result if there is one, and the added constants or None."""
    addition = grids.only_reader(node)
    bias = _constant_beside(grids, node.outputs[0], addition, "add", np.int32)
    return ([node], None) if addition is None or bias is None else ([node, addition], bias)


def _is_scaled_already(grids: Grids, grid: Grid) -> bool:
    """Whether a grid has 8-bit integers and the scale 1; the product's scale then includes the scale of the result."""
    return grid.dtype in BYTES and grids.is_one_number(grid) and bool(grids.numbers(grid)[0] == 1)


def _vector(value: np.ndarray, axis: int, size: int) -> np.ndarray | None:
    """A single element as a scalar, an array along one axis as a vector; else None. `axis` counts from the end."""
    if value.size == 1:
        return value.reshape(())
    shape = [1] * max(value.ndim, axis)
    shape[-axis] = size
    return value.reshape(size) if list(value.shape) == shape[-value.ndim :] else None


def _product(grids: Grids, node: Node) -> _Joined | None:
    a, b, a_zero_point, b_zero_point = node.inputs[:4]
    matrix = grids.constant(b)
    nodes, bias = _with_bias(grids, node)
    scaled = _scaled(grids, nodes[-1])
    columns = None if matrix is None or matrix.ndim != 2 else matrix.shape[1]
    if scaled is None or (columns is None and (scaled[1].size != 1 or bias is not None)):
        return None
    more, value = scaled
    scale = _vector(value, 1, columns or 1)
    if scale is None or grids.constant(a_zero_point) is None:
        return None
    one, scale_name = grids.add(ONE, np.ones((), np.float32)), grids.add(f"{node.outputs[0]}_scale", scale)
    nodes = [*nodes, *more]
    if bias is None:
        addition = grids.only_reader(nodes[-1])
        added = _constant_beside(grids, nodes[-1].outputs[0], addition, "add", np.float32)
        inputs = (a, b, one, scale_name, a_zero_point, b_zero_point)
        if addition is None or added is None or added.shape != (columns,):
            return _Joined(nodes, "dot_to_float", inputs)
        return _Joined([*nodes, addition], "dot_to_float", (*inputs, grids.add(f"{node.outputs[0]}_bias", added)))
    after = grids.only_reader(nodes[-1])
    grid = grids.quantized(after)
    if after is None or grid is None or bias.shape != (columns,) or not _is_scaled_already(grids, grid):
        return None
    of_bias = grids.add(f"{node.outputs[0]}_bias", bias)
    of_y = grid.scale, grids.zero_point_of(grid)
    return _Joined([*nodes, after], "gemm", (a, one, a_zero_point, b, scale_name, b_zero_point, of_bias, *of_y))


def _convolution(grids: Grids, node: Node) -> _Joined | None:
    x, w, x_zero_point, w_zero_point = node.inputs[:4]
    filters = grids.constant(w)
    nodes, bias = _with_bias(grids, node)
    scaled = _scaled(grids, nodes[-1])
    if filters is None or filters.ndim < 3 or scaled is None or grids.constant(x_zero_point) is None:
        return None
    more, value = scaled
    channels, axis = filters.shape[0], filters.ndim - 1
    scale = _vector(value, axis, channels)
    offset = None if bias is None else _vector(bias, axis, channels)
    if scale is None or (bias is not None and offset is None):
        return None
    one, scale_name = grids.add(ONE, np.ones((), np.float32)), grids.add(f"{node.outputs[0]}_scale", scale)
    inputs = (x, one, x_zero_point, w, scale_name, w_zero_point)
    of_bias = () if offset is None else (grids.add(f"{node.outputs[0]}_bias", np.broadcast_to(offset, (channels,))),)
    return _Joined([*nodes, *more], "conv_to_float", (*inputs, *of_bias))


JOIN: Mapping[str, Callable[[Grids, Node], _Joined | None]] = {PRODUCT: _product, CONVOLUTION: _convolution}
