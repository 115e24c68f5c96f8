"""Look-up tables of elementwise functions, and the ranges of the values that index them."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdml._graph.evaluate import evaluate
from jaxdml._graph.floats import EXACT, with_floats
from jaxdml._graph.graph import Graph, Node
from jaxdml._quantized import directml
from jaxdml.ptq._choose.unit import Unit
from jaxdml.ptq._grids.ranges import scale_and_zero_point
from jaxdml.ptq._trace.equations import bind
from jaxdml.ptq._trace.scans import each_layer
from jaxdml.ptq._trace.values import Value

ROLES = "scale", "zero_point"
Parameters = tuple[np.ndarray, np.ndarray]  # scale and zero point


def nodes_between(
    makers: Mapping[str, Node], root: str, name: str, number: Callable[[str], np.ndarray | None]
) -> set[Node]:
    """The nodes between a root and a value; `number` returns a constant's number, and None for other values."""
    pending, found = [name], set[Node]()
    while pending:
        each = pending.pop()
        node = makers.get(each)
        if node is not None and each != root and node not in found and number(each) is None:
            found.add(node)
            pending += node.inputs
    return found


def constants_of(parameters: Mapping[Value, Parameters], scan: str) -> dict[str, np.ndarray]:
    """Maps the names of constants to the scales and zero points of a unit."""
    own = {str(Value(value.base, value.role)): pair for value, pair in parameters.items() if value.scan == scan}
    return {str(Value(name, role)): x for name, pair in own.items() for role, x in zip(ROLES, pair, strict=True)}


def narrowed(unit: Unit, parameters: Mapping[Value, Parameters]) -> dict[Value, Parameters]:
    """The parameters, with ranges that leave out ends in which no table changes.

    For large negative values, all results of a swish round to 0. If a table has one result for all integers up to some
    integer, the range of the value that indexes the table begins a few steps below this integer, so that the other
    values have more steps; likewise at the end of the range.

    Args:
      unit: a unit with constants.
      parameters: maps each calibrated value to its scale and zero point, stacked over layers in a scan's body.
    """
    found = dict(parameters)
    for scan, each in unit.each():
        graph = each.graph.replace(constants={**each.graph.constants, **constants_of(parameters, scan)})
        layers, tables = [graph] if each.loop is None else each_layer(graph), Tables(each, graph)
        own = (name for name in each.plan.only_tables_read if Value(name, scan=scan) in parameters)
        for root in filter(tables.may_narrow, own):
            pairs = [tables.narrowed(root, layer.constants) for layer in layers]
            scale, zero_point = pairs[0] if each.loop is None else map(np.stack, zip(*pairs, strict=True))
            found[Value(root, scan=scan)] = scale, zero_point
    return found


class Tables:
    """The tables of a unit, or of one layer of a unit."""

    def __init__(self, unit: Unit, graph: Graph) -> None:
        self._unit, self._plan, self._graph = unit, unit.plan, graph
        self._makers, self._readers = graph.producers(), graph.consumers()
        self._places = {node: place for place, node in enumerate(graph.nodes)}

    def within(self, name: str) -> list[Node]:
        """The nodes between the value that indexes a table and the table's result, in order."""
        found = nodes_between(self._makers, self._plan.tables[name], name, self._unit.builder.number)
        return sorted(found, key=self._places.__getitem__)

    def table(self, name: str, constants: Mapping[str, Any]) -> np.ndarray:
        """The quantized result for each integer of the index's type in ascending order.

        Args:
          name: the table's result.
          constants: the scales and zero points, and other constants.
        """
        root, number, rank = self._plan.tables[name], self._unit.builder.number, self._unit.builder.rank
        x_scale, x_zero_point = self._parameters(root, constants)
        y_scale, y_zero_point = self._parameters(name, constants)
        every = _every(x_zero_point)
        values: dict[str, Any] = {}
        nodes = [bind(node, self._unit.program) for node in self.within(name)]
        computed = {each for node in nodes for each in node.outputs}
        for each in {each for node in nodes for each in node.inputs} - computed - {root}:
            constant = number(each)
            assert constant is not None
            values[each] = constant if rank(each) == 0 else np.full(every.shape, constant, constant.dtype)

        def compute(x: Any) -> Any:
            return evaluate(nodes, {**values, root: x})[name].astype(jnp.float32)

        # With exact floats, a table does not depend on the processor that computes it, whatever the model's `floats`.
        y = with_floats(compute, EXACT)(directml.to_floats(every, x_scale, x_zero_point, axis=0))
        return np.asarray(directml.to_integers(y, y_scale, y_zero_point, axis=0, dtype=y_zero_point.dtype))

    def narrowed(self, root: str, constants: Mapping[str, Any]) -> Parameters:
        """The scale and zero point of a value, for a range that leaves out ends in which no table changes."""
        names = [name for name, index in self._plan.tables.items() if index == root]
        whole = scale, zero_point = self._parameters(root, constants)
        tables = [self.table(name, constants) for name in names]
        last = len(tables[0]) - 1
        below, above = (min(_run(table[::way]) for table in tables) for way in (1, -1))
        if below > last:
            return whole  # one result everywhere, with which no range could begin
        levels = directml.to_floats(_every(zero_point), scale, zero_point, axis=0)
        for margin in (2, 4, 8, 16, 32, 64, 128):
            first, end = max(below - margin, 0), last - max(above - margin, 0)
            if (first, end) == (0, last):
                break
            low, high = np.minimum(levels[first], np.float32(0)), np.maximum(levels[end], np.float32(0))
            narrow_scale, narrow_zero_point = map(np.asarray, scale_and_zero_point(low, high, zero_point.dtype))
            pair = dict(zip(self._names(root), (narrow_scale, narrow_zero_point), strict=True))
            after = [self.table(name, {**constants, **pair}) for name in names]
            # The many values beyond an end have the result of the end, which may change: the zero point is rounded,
            # which moves the ends, and a swish has a minimum, which may lie between two steps of the whole range.
            begins = first == 0 or [table[0] for table in after] == [table[0] for table in tables]
            ends = end == last or [table[-1] for table in after] == [table[-1] for table in tables]
            if begins and ends:
                return narrow_scale, narrow_zero_point
        return whole

    def may_narrow(self, root: str) -> bool:
        """Whether nothing but tables depends on a value that only tables read as integers, and the value has 8 bits."""
        if root in self._plan.wide:
            return False
        names = [name for name, index in self._plan.tables.items() if index == root]
        nodes = {node for name in names for node in self.within(name)}
        computed = {root, *(name for node in nodes for name in node.outputs)}.difference(self._plan.tables)
        readers = {node for name in computed for node in self._readers.get(name, [])}
        return readers <= nodes and computed.isdisjoint(self._graph.outputs)

    def _parameters(self, name: str, constants: Mapping[str, Any]) -> Parameters:
        scale, zero_point = (constants[each] for each in self._names(name))
        return scale, zero_point

    def _names(self, name: str) -> list[str]:
        """The names of a value's scale and zero point."""
        return [str(Value(self._plan.ranges[name], role)) for role in ROLES]


def _every(zero_point: np.ndarray) -> np.ndarray:
    """All integers of a zero point's type in ascending order."""
    limits = np.iinfo(zero_point.dtype)
    return np.arange(limits.min, limits.max + 1).astype(zero_point.dtype)


def _run(table: np.ndarray) -> int:
    """How many numbers at the beginning of a table are equal."""
    differs = table != table[0]
    return int(differs.argmax()) if differs.any() else len(table)
