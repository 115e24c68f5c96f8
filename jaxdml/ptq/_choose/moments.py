"""Chooses the contractions whose weights are rounded with second moments of the rows that they multiply."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxdml._graph.graph import Node, Operator
from jaxdml.ptq._build.operators import CONTRACTIONS
from jaxdml.ptq._build.rows import ROWS, groups_and_depth, parts
from jaxdml.ptq._choose.unit import Unit, of_body
from jaxdml.ptq._grids.moments import Moments
from jaxdml.ptq._grids.observers import Statistics
from jaxdml.ptq._trace.values import Value

MOMENTS = "moments"  # the role of the statistics of the rows from which a contraction computes its result
MOST = 8192  # the longest rows that are observed: a row of n elements has n * n moments


def moments_of(unit: Unit) -> dict[Value, Statistics]:
    """The statistics of the rows that weights multiply; those in bodies are stacked over layers."""
    found = dict[Value, Statistics]()
    for scan, each in unit.each():
        for node in _rounded(each):
            groups, depth = groups_and_depth(_weight_shape(each, node), node.options.get("group_count"))
            if depth <= MOST:
                found[Value(node.outputs[0], MOMENTS, scan)] = of_body(Moments.of(groups, depth), each.loop)
    return found


def _rounded(unit: Unit) -> Iterator[Node]:
    """Yields the contractions with known weights whose scales the function does not set."""
    constants = unit.graph.constants
    for node in unit.graph.nodes:
        if node.operator.kind in CONTRACTIONS and unit.modes[node.outputs[0]] != "float":
            weight = node.inputs[1]
            if weight in constants and str(Value(weight, "grid")) not in constants:
                yield node


def moments_node(unit: Unit, state: str, result: str, after: str) -> Node:
    """The node that adds the rows from which a contraction computes its result to the statistics `state`."""
    node = unit.graph.producers()[result]
    options = {**node.options, "shape": _weight_shape(unit, node)}
    return Node(OBSERVE_ROWS[node.operator.name], (state, node.inputs[0]), (after,), options, node.name)


def _observes(rows_of: Callable[..., Any]) -> Callable[..., Moments]:
    def observe(state: Moments, x: Any, *, shape: Sequence[int], **options: Any) -> Moments:
        def with_rows(state: Moments, part: Any) -> tuple[Moments, None]:
            return state.update(rows_of(part, shape=shape, **options)), None

        # One part after the other, because all patches of a convolution take several times the memory of its images.
        return lax.scan(with_rows, state, parts(jnp.asarray(x), shape, options.get("group_count")))[0]

    return observe


OBSERVE_ROWS = {name: Operator("observe", _observes(rows_of)) for name, rows_of in ROWS.items()}


def _weight_shape(unit: Unit, node: Node) -> tuple[int, ...]:
    """The shape of a contraction's weights; in a body, the shape for one layer."""
    shape: tuple[int, ...] = unit.graph.constants[node.inputs[1]].shape
    return shape if unit.loop is None else shape[1:]
