"""Grids: the quantization parameters that quantize and dequantize nodes give to values."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdml._graph.graph import Graph, Names, Node, moves

BYTES = (np.dtype(np.uint8), np.dtype(np.int8))
WORDS = (np.dtype(np.uint16), np.dtype(np.int16))
NIBBLES = (np.dtype(jnp.uint4), np.dtype(jnp.int4))
_BYTE_OF = dict(zip(NIBBLES, BYTES, strict=True))


@dataclass(frozen=True)
class Grid:
    """The integers of a quantized float value, and their parameters.

    Attributes:
      value: name of the integers.
      scale: name of the scale, a constant.
      zero_point: name of the zero point, a constant; "" means 0.
      dtype: type of the integers.
      axis: the axis of a scale with several elements.
      node: the quantize or dequantize node.
    """

    value: str
    scale: str
    zero_point: str
    dtype: np.dtype[Any]
    axis: int
    node: Node


class Grids:
    """The grids of a graph.

    Attributes:
      graph: the graph.
      added: new constants that quantized operators read.
    """

    def __init__(self, graph: Graph, check_result: Callable[[Node, Any], None] = lambda node, value: None) -> None:
        """The grids of `graph`; `check_result` raises if a constant of `in_bytes` is not allowed."""
        self.graph = graph
        self._check_result = check_result
        self.added: dict[str, np.ndarray] = {}
        self._producers, self._consumers = graph.producers(), graph.consumers()
        self._names, self._outputs = Names(graph), frozenset(graph.outputs)
        self._zero_points: dict[tuple[str, np.dtype[Any]], str] = {}
        self._bytes: dict[str, str] = {}  # maps 4-bit constants to 8-bit ones
        self._dtypes: dict[str, np.dtype[Any]] = {}  # types of the results of quantize nodes, and of movers after them
        for node in graph.nodes:
            grid = self.quantized(node)
            dtype = grid.dtype if grid else self._dtypes.get(node.inputs[0]) if node.inputs and moves(node) else None
            if dtype is not None:
                self._dtypes |= dict.fromkeys(filter(None, node.outputs), dtype)

    def constant(self, name: str) -> np.ndarray | None:
        """The values of a constant; None for a computed value or an empty name."""
        found = self.graph.constants.get(name)
        return self.added.get(name) if found is None else found

    def add(self, name: str, value: np.ndarray) -> str:
        """Adds a constant, and returns its name: the given name, followed by a number if that name is taken."""
        name = self._names.next(name)
        self.added[name] = value
        return name

    def producer(self, name: str) -> Node | None:
        """The node that computes a value."""
        return self._producers.get(name)

    def readers(self, name: str) -> list[Node]:
        """The nodes that read a value."""
        return self._consumers.get(name, [])

    def only_reader(self, node: Node) -> Node | None:
        """The only reader of a node's result; None if there are several readers, or if the graph returns the result."""
        name = node.outputs[0]
        readers = self.readers(name)
        return readers[0] if len(readers) == 1 and name not in self._outputs else None

    def dequantized(self, name: str) -> Grid | None:
        """The grid of a value that a dequantize node with constant parameters computes; None for other values."""
        node = self._producers.get(name)
        return self._grid(node, node.inputs[0]) if node and node.operator.kind == "dequantize_linear" else None

    def quantized(self, node: Node | None) -> Grid | None:
        """The grid to which a quantize node with constant parameters quantizes; None for other nodes."""
        return self._grid(node, node.outputs[0]) if node and node.operator.kind == "quantize_linear" else None

    def is_beside_integers(self, node: Node) -> bool:
        """Whether a node reads a dequantized value or packed integers, or a quantize node reads its result."""
        makers = (self._producers.get(name) for name in node.inputs)
        reads = any(maker is not None and maker.operator.kind == "dequantize_linear" for maker in makers)
        return (
            reads
            or node.operator.kind == "packed_dot"
            or any(reader.operator.kind == "quantize_linear" for name in node.outputs for reader in self.readers(name))
        )

    def _grid(self, node: Node, value: str) -> Grid | None:
        scale, zero_point = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else ""
        offset, steps, integers = map(self.constant, (zero_point, scale, value))
        if steps is None or (zero_point and offset is None) or steps.dtype != np.float32:
            return None
        if steps.size == 0 or (offset is not None and offset.size != steps.size):
            return None
        is_to_integers = node.operator.kind == "quantize_linear"
        if not is_to_integers and node.options.get("dtype") not in (None, np.float32):
            return None
        if offset is not None:
            dtype = offset.dtype
        elif integers is not None:
            dtype = integers.dtype
        elif is_to_integers:
            dtype = np.dtype(node.options.get("dtype") or np.uint8)
        else:
            moved = self._dtypes.get(value)
            if moved is None:
                return None
            dtype = moved
        return Grid(value, scale, zero_point, dtype, node.options.get("axis", 1), node)

    def is_one_number(self, grid: Grid) -> bool:
        """Whether the whole tensor has one scale."""
        scale: Any = self.constant(grid.scale)
        return bool(scale.size == 1)

    def keeps_order(self, grid: Grid | None) -> bool:
        """Whether integers are ordered like their floats. This needs at most 16 bits, and one scale in a safe range."""
        if grid is None or not self.is_one_number(grid) or grid.dtype.itemsize > 2:
            return False
        return bool(np.finfo(np.float32).tiny <= self.numbers(grid)[0] < 2.0**96)

    def numbers(self, grid: Grid) -> tuple[float, int]:
        """The scale and the zero point of a grid that has one scale."""
        scale, zero_point = self.constant(grid.scale), self.constant(grid.zero_point)
        assert scale is not None
        return float(scale.reshape(())), 0 if zero_point is None else int(zero_point.reshape(-1)[0])

    def are_equal(self, one: Grid, other: Grid) -> bool:
        """Whether two grids have one scale each and represent the same values by the same integers."""
        both = self.is_one_number(one) and self.is_one_number(other) and one.dtype == other.dtype
        return both and self.numbers(one) == self.numbers(other)

    def zero_point_of(self, grid: Grid) -> str:
        """The name of the zero point. If it is missing, one is added, because operators take the type from it."""
        key = grid.scale, grid.dtype
        if not grid.zero_point and key not in self._zero_points:
            self._zero_points[key] = self.add(f"{grid.scale}_zero_point", np.zeros((), grid.dtype))
        return grid.zero_point or self._zero_points[key]

    def in_bytes(self, grid: Grid) -> Grid:
        """A grid of 4-bit constants as one of 8-bit constants with the same integers; other grids stay as they are."""
        integers = self.constant(grid.value)
        if grid.dtype not in NIBBLES or integers is None or integers.dtype != grid.dtype:
            return grid
        value, zero_point = (name and self._bytes_of(name, grid.node) for name in (grid.value, grid.zero_point))
        return replace(grid, value=value, zero_point=zero_point, dtype=_BYTE_OF[grid.dtype])

    def _bytes_of(self, name: str, node: Node) -> str:
        """The name of a 4-bit constant that `node` dequantizes, as bytes."""
        if name not in self._bytes:
            nibbles = np.asarray(self.constant(name))
            integers = nibbles.astype(_BYTE_OF[nibbles.dtype])
            self._check_result(node, integers)
            self._bytes[name] = self.add(f"{name}:bytes", integers)
        return self._bytes[name]
