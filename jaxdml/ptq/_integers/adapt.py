"""Adapts a quantized graph to the equations that its float function has for inputs of other sizes."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import jax

from jaxdml._graph.graph import Graph
from jaxdml.errors import PtqError
from jaxdml.ptq._build.builder import Builder
from jaxdml.ptq._choose.modes import modes_as
from jaxdml.ptq._choose.unit import Unit, unit_of
from jaxdml.ptq._integers.fuse import on_integers
from jaxdml.ptq._integers.insert import quantized_graph
from jaxdml.ptq._trace.equations import Program
from jaxdml.ptq._trace.scans import LAYERS, body_of
from jaxdml.ptq._trace.values import Value


@dataclass(frozen=True, eq=False)
class Adapted:
    """The graphs of a quantized function for inputs of some sizes.

    Attributes:
      builder: the builder of the float graph; None if the equations are those that were quantized.
      graph: the graph of float operators with quantize and dequantize nodes.
      fused: the graph of quantized operators.
    """

    builder: Builder | None
    graph: Graph
    fused: Graph


def adapted(unit: Unit, graph: Graph, params: Mapping[str, Any], program: Program) -> Adapted:
    """The graphs for another trace of the same function, with the quantized weights and the calibrated ranges.

    Args:
      unit: the unit of the program that was quantized.
      graph: its graph with quantize and dequantize nodes.
      params: parameters of the model.
      program: the program of the other trace.

    Raises:
      PtqError: if the program has other inputs, contractions or quantized values than the quantized program.
    """
    try:
        return _adapted(unit, graph, params, program)
    except _Differs as difference:
        raise PtqError(
            f"apply cannot run on these inputs as it was quantized: {difference}. Quantize with batches "
            "of these shapes and types, or write apply so that the sizes of inputs do not change its layers"
        ) from None


class _Differs(Exception):  # noqa: N818 # a reason, not an error
    """How a program differs from the one that was quantized."""


def _adapted(unit: Unit, graph: Graph, params: Mapping[str, Any], program: Program) -> Adapted:
    for number, (was, now) in enumerate(zip_longest(*map(_inputs, (unit.program, program)))):
        if was != now:
            raise _Differs(f"input {number} is {now}, but was {was}")
    modes = {scan: each.modes for scan, each in unit.each()}
    constants = {"": graph.constants}
    constants |= {n.outputs[0]: body_of(n, graph.constants).constants for n in graph.nodes if n.operator is LAYERS}
    other = unit_of(program, functools.partial(modes_as, modes), like=unit).with_shared(constants)
    for scan, each in other.each():
        _check(dict(unit.each()).get(scan), each, constants.get(scan, {}))
    inserted = quantized_graph(other, {})
    fused, own = on_integers(inserted, params)
    _check_complete(fused, own)
    constants_of_sizes = {name: value for name, value in own.items() if name not in params}
    return Adapted(other.builder, inserted, fused.replace(constants={**fused.constants, **constants_of_sizes}))


def _inputs(program: Program) -> list[str]:
    avals = (program.avals[name] for name in program.inputs)
    return [f"{aval.dtype} of {aval.ndim} dimensions" for aval in avals]


def _check(unit: Unit | None, other: Unit, constants: Mapping[str, Any]) -> None:
    """Checks that two units differ only in sizes."""
    if unit is None:
        raise _Differs("it has a new scan over layers that can be quantized")
    was, now = ({each.output: each for each in both.builder.contractions} for both in (unit, other))
    for output in [*(name for name in now if name not in was), *(name for name in was if name not in now)]:
        found, where = (now[output], "has the new") if output in now else (was[output], "lacks the")
        raise _Differs(f"it {where} layer {found.name!r} ({' + '.join(found.source)})")
    for output in was:
        if was[output].source != now[output].source:
            parts = (" + ".join(each[output].source) for each in (now, was))
            raise _Differs("layer {!r} is {}, but was {}".format(was[output].name, *parts))
    for name, root in other.plan.tables.items():
        if unit.plan.tables.get(name) != root:
            raise _Differs(f"{other.described(Value(name))} is computed from other values than in calibration")
    for each in now.values():
        quantized = constants.get(str(Value(each.weight_name, "quantized")))
        if each.weight and quantized is not None:
            shape = jax.eval_shape(each.arranged, other.program.avals[each.weight]).shape
            before = quantized.shape[quantized.ndim - len(shape) :]
            if before != shape:
                raise _Differs(f"the weights of layer {each.name!r} have the shape {shape}, but had {before}")


def _check_complete(graph: Graph, params: Mapping[str, Any]) -> None:
    found = {*graph.inputs, *graph.constants, *params, *graph.producers(), ""}
    missing = (name for node in graph.nodes for name in node.inputs if name not in found)
    for name in missing:
        raise _Differs(f"{name.replace('/', '.')} is read, but was not in calibration")
