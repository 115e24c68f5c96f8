"""Rewrites a graph to its normal form: movers run on integers, and redundant clamps and quantize nodes are removed.

A mover only moves elements of its input. So finite results keep their bits if dequantize nodes are placed after movers,
and quantize nodes before movers; only NaN and infinite results may differ. Max and min count as movers, because scales
are positive. A clamp before a quantize node is removed if all integers lie within its bounds. A quantize node after a
dequantize node with equal parameters is removed, because fl(n * scale) / scale rounds to n.
"""

import jax.numpy as jnp
import numpy as np

from jaxdml._graph.graph import Graph, Names, Node, moves, without_dead
from jaxdml._graph.grids import Grid, Grids


def in_normal_form(graph: Graph) -> Graph:
    """The graph in normal form: movers run on integers."""
    for step in (_transposed_blocks, _dequantized_behind, _quantized_before, _without_pairs):
        graph = without_dead(step(graph))
    return graph


# Clamps --------------------------------------------------------------------------------------------------------------


def _is_redundant(clamp: Node, grid: Grid, grids: Grids) -> bool:
    """Whether both quantized bounds of a clamp lie at or beyond the limits of the integers."""
    bounds = bounds_of(clamp, grids) if clamp.operator.kind in ("relu", "clip") else None
    if bounds is None:
        return False
    scale, zero_point = grids.numbers(grid)
    limits = jnp.iinfo(grid.dtype)  # type: ignore[no-untyped-call] # np.iinfo has no 4-bit types
    with np.errstate(over="ignore"):
        low, high = (np.rint(np.float32(bound) / np.float32(scale)) + zero_point for bound in bounds)
    return bool(low <= limits.min and high >= limits.max)


def bounds_of(clamp: Node, grids: Grids) -> tuple[float, float] | None:
    """The bounds of a relu or clip node; None if they are not constants."""
    if clamp.operator.kind == "relu":
        return 0.0, np.inf
    ends = []
    for place, word, open_end in ((1, "min", -np.inf), (2, "max", np.inf)):
        name = clamp.inputs[place] if place < len(clamp.inputs) else ""
        value = grids.constant(name)
        if name and (value is None or value.size != 1):
            return None
        given = clamp.options.get(word) if value is None else float(value.reshape(()))
        ends.append(open_end if given is None else given)
    return ends[0], ends[1]


# Constants in blocks -------------------------------------------------------------------------------------------------


def _transposed_blocks(graph: Graph) -> Graph:
    """Transposes integers, scales and zero points of constants quantized in blocks, not the dequantized floats."""
    grids, names, constants, nodes = Grids(graph), Names(graph), dict(graph.constants), list[Node]()
    for node in graph.nodes:
        grid = grids.dequantized(node.inputs[0]) if "perm" in node.options else None
        arrays = {} if grid is None else {name: grids.constant(name) for name in grid.node.inputs if name}
        given = [array for array in arrays.values() if array is not None]
        rank, perm = (given[0].ndim if given else 0), node.options.get("perm")
        perm = tuple(perm or reversed(range(rank)))
        has_blocks = grid is not None and grid.node.options.get("block_size") and -rank <= grid.axis < rank
        is_known = len(given) == len(arrays) and all(array.ndim == rank for array in given)
        if grid is None or not has_blocks or not is_known or sorted(perm) != list(range(rank)):
            nodes.append(node)
            continue
        new = {name: names.next(f"{name}:transposed") for name in arrays}
        constants |= {new[name]: array.transpose(perm) for name, array in zip(arrays, given, strict=True)}
        options = {**grid.node.options, "axis": perm.index(grid.axis % rank)}
        inputs, source = tuple(new.get(name, "") for name in grid.node.inputs), grid.node.source + node.source
        nodes.append(grid.node.replace(inputs=inputs, outputs=node.outputs, options=options, source=source))
    return graph.replace(nodes=tuple(nodes), constants=constants)


# Movers --------------------------------------------------------------------------------------------------------------


def _dequantized_behind(graph: Graph) -> Graph:
    grids, names, nodes = Grids(graph), Names(graph), list[Node]()
    by: dict[str, Node] = {}  # maps a float value to the dequantize node that computes it
    for node in graph.nodes:
        before = by.get(node.inputs[0]) if node.inputs else None
        if node.operator.kind == "dequantize_linear" and grids.keeps_order(grids.dequantized(node.outputs[0])):
            by[node.outputs[0]] = node
        elif before is not None and node.operator.kind == "order":
            node = node.replace(inputs=(before.inputs[0], *node.inputs[1:]), on="integers")
        elif before is not None and moves(node):
            integers = tuple(name and names.next(name) for name in node.outputs)
            inputs = before.inputs[0], *node.inputs[1:]
            nodes.append(node.replace(inputs=inputs, outputs=integers, on="integers"))
            for name, integer in zip(node.outputs, integers, strict=True):
                if name:
                    by[name] = before.replace(inputs=(integer, *before.inputs[1:]), outputs=(name,))
                    nodes.append(by[name])
            continue
        nodes.append(node)
    return graph.replace(nodes=tuple(nodes))


def _quantized_before(graph: Graph) -> Graph:
    """Moves quantize nodes before movers, and drops clamps that the integers' limits make redundant."""
    grids, names, nodes = Grids(graph), Names(graph), list[Node]()
    waiting: dict[str, tuple[Node, list[Node]]] = {}  # maps a float value to its quantize node and the dropped clamps
    for node in reversed(graph.nodes):
        after, clamps = waiting.pop(node.outputs[0], (None, list[Node]()))
        source = node
        if after is not None and moves(node):  # the mover now moves integers
            integer = names.next(node.inputs[0])
            inputs = integer, *node.inputs[1:]
            nodes.append(node.replace(inputs=inputs, outputs=after.outputs, on="integers"))
            source = after.replace(inputs=(node.inputs[0], *after.inputs[1:]), outputs=(integer,))
        elif after is not None:
            clamps.append(node)
            source = after.replace(inputs=(node.inputs[0], *after.inputs[1:]))
        maker, grid = grids.producer(source.inputs[0]) if source.inputs else None, grids.quantized(source)
        if maker is not None and grid is not None and _can_go(maker, grid, grids):
            waiting[maker.outputs[0]] = source, clamps
        else:
            words = (word for each in (*reversed(clamps), source) for word in each.source)
            nodes.append(source.replace(source=tuple(words)) if clamps else source)
    return graph.replace(nodes=tuple(reversed(nodes)))


def _can_go(maker: Node, grid: Grid, grids: Grids) -> bool:
    """Whether a quantize node may move before the node that computes its input."""
    if not grids.keeps_order(grid) or grids.only_reader(maker) is None:
        return False
    return len(maker.outputs) == 1 and (moves(maker) or _is_redundant(maker, grid, grids))


# Pairs ---------------------------------------------------------------------------------------------------------------


def _without_pairs(graph: Graph) -> Graph:
    """Drops quantize nodes that undo a dequantize node with equal parameters."""
    grids, same, nodes = Grids(graph), dict[str, str](), list[Node]()
    outputs = frozenset(graph.outputs)
    given_out: dict[str, str] = {}  # maps the name of an integer value to the graph output whose name it takes
    for node in graph.nodes:
        after = grids.quantized(node)
        before = grids.dequantized(node.inputs[0]) if after else None
        if not (before and after and _are_one(before, after, grids)):
            nodes.append(node)
            continue
        name, integers = node.outputs[0], same.get(before.value, before.value)
        if name not in outputs:
            same[name] = integers
        elif grids.producer(integers) and integers not in given_out and integers not in outputs:
            given_out[integers] = name
        else:
            nodes.append(node)

    def named(names: tuple[str, ...]) -> tuple[str, ...]:
        plain = (same.get(name, name) for name in names)
        return tuple(given_out.get(name, name) for name in plain)

    renamed = (node.replace(inputs=named(node.inputs), outputs=named(node.outputs)) for node in nodes)
    return graph.replace(nodes=tuple(renamed))


def _are_one(before: Grid, after: Grid, grids: Grids) -> bool:
    return grids.are_equal(before, after) and grids.keeps_order(after)
