"""Adapts a quantized graph to the equations that its float function has for inputs of other sizes."""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import jax

from jaxdml._graph.graph import Graph
from jaxdml.errors import PtqError
from jaxdml.ptq._choose.modes import modes_as
from jaxdml.ptq._choose.unit import Unit, unit_of
from jaxdml.ptq._integers.fuse import on_integers
from jaxdml.ptq._integers.insert import quantized_graph
from jaxdml.ptq._integers.tables import nodes_between
from jaxdml.ptq._trace.equations import Program
from jaxdml.ptq._trace.scans import LOOP, body_of
from jaxdml.ptq._trace.values import Value


@dataclass(frozen=True, eq=False)
class Adapted:
    """The graphs of a quantized function for inputs of some sizes.

    Attributes:
      unit: the unit of the function; None if the function has the same equations as when it was quantized.
      graph: the graph of float operators with quantize and dequantize nodes.
      fused: the graph of quantized operators.
    """

    unit: Unit | None
    graph: Graph
    fused: Graph


def adapted(unit: Unit, graph: Graph, params: Mapping[str, Any], program: Program, numerics: str) -> Adapted:
    """The graphs for another trace of the same function, with the quantized weights and the calibrated ranges.

    Args:
      unit: the unit of the program that was quantized.
      graph: its graph with quantize and dequantize nodes.
      params: parameters of the model.
      program: the program of the other trace.
      numerics: a key of `INTEGERS`, which selects the formulas of the quantized operators.

    Raises:
      PtqError: if the program's inputs, contractions or quantized values differ from those of the quantized program.
    """
    other = unit_of_trace(unit, graph, program)
    inserted = quantized_graph(other, {})
    fused, own = on_integers(inserted, numerics, params)
    with _refused():
        _check_complete(fused, own)
    constants_of_sizes = {name: value for name, value in own.items() if name not in params}
    return Adapted(other, inserted, fused.replace(constants={**fused.constants, **constants_of_sizes}))


def unit_of_trace(unit: Unit, graph: Graph, program: Program) -> Unit:
    """The unit of another trace of the same function; arguments and errors are those of `adapted`."""
    constants = {"": graph.constants}
    constants |= {n.outputs[0]: body_of(n, graph.constants).constants for n in graph.nodes if n.operator is LOOP}
    return alike(unit, constants, program)


def alike(unit: Unit, constants: Mapping[str, Mapping[str, Any]], program: Program) -> Unit:
    """The unit of another trace of the same function.

    Args:
      unit: the unit of the program that was planned.
      constants: maps "" (the function) and each scan to its constants, which the new unit shares.
      program: the program of the other trace.

    Raises:
      PtqError: as for `adapted`.
    """
    with _refused():
        for number, (was, now) in enumerate(zip_longest(*map(_inputs, (unit.program, program)))):
            if was != now:
                has_other_type = was is not None and now is not None and was.rank == now.rank
                remedy = f"convert it by .astype(jnp.{was.dtype})" if has_other_type else SAME_LAYERS
                raise _Differs(f"input {number} is {now}, but was {was}", remedy)
        modes = {scan: each.modes for scan, each in unit.each()}
        other = unit_of(program, functools.partial(modes_as, modes), like=unit).with_shared(constants)
        _check_scans(unit, other)
        for scan, each in other.each():
            _check(unit.bodies.get(scan, unit), each, constants.get(scan, {}))
        for scan in other.bodies:
            _check_scan(unit, other, scan, constants.get(scan, {}))
        return other


SAME_LAYERS = "write apply so that the sizes of inputs do not change its layers"
LONGEST_OR_ONE_EXAMPLE = (
    "multiply by the matrix of the longest input and slice the result (if the product sums over the length, first pad "
    "the other operand with zeros), if a length differs, or "
    "quantize the function of one example under jax.vmap, if only the batch size differs: "
    "lambda params, x: jax.vmap(lambda one: apply(params, one[None])[0])(x)"
)


class _Differs(Exception):  # noqa: N818 # a reason, not an error
    """How a program differs from the one that was planned, and what to write in apply."""

    def __init__(self, text: str, remedy: str = SAME_LAYERS) -> None:
        super().__init__(text)
        self.remedy = remedy


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    """Turns a difference into an error with its remedy."""
    try:
        yield
    except _Differs as difference:
        raise PtqError(
            f"apply cannot run on these inputs as it was quantized: {difference}. Quantize another model with batches "
            f"of these shapes and types, or {difference.remedy}"
        ) from None


class _Input(NamedTuple):
    """What traces of a function may not change in an input."""

    dtype: Any
    rank: int

    def __str__(self) -> str:
        return f"{self.dtype} of {self.rank} dimensions"


def _inputs(program: Program) -> list[_Input]:
    return [_Input(program.avals[name].dtype, program.avals[name].ndim) for name in program.inputs]


def _check_scans(unit: Unit, other: Unit) -> None:
    """Checks that two traces have the same scans with contractions."""
    was, now = (list(each.scans_with_products()) for each in (unit, other))
    for name in (each for each in was if each not in now):
        raise _Differs(f"it lacks the scan {name!r}, or this scan reads other values than in calibration")
    if len(now) > len(was):
        raise _Differs("it has a new scan with convolutions or matrix products")


def _check(unit: Unit, other: Unit, constants: Mapping[str, Any]) -> None:
    """Checks that two units differ only in sizes."""
    was, now = ({each.output: each for each in both.builder.contractions} for both in (unit, other))
    for output in [*(name for name in now if name not in was), *(name for name in was if name not in now)]:
        found, where = (now[output], "has the new") if output in now else (was[output], "lacks the")
        if sorted(each.name for each in was.values()) == sorted(each.name for each in now.values()):
            raise _Differs(f"layer {found.name!r} reads values from other equations than in calibration")
        raise _Differs(f"it {where} layer {found.name!r} ({' + '.join(found.source)})")
    for output in was:
        if was[output].source != now[output].source:
            parts = (" + ".join(each[output].source) for each in (now, was))
            raise _Differs("layer {!r} is {}, but was {}".format(was[output].name, *parts))
    for each in now.values():
        weights = (str(Value(each.weight_name, "quantized")), each.weight_name)
        quantized = next((constants[name] for name in weights if name in constants), None)
        if each.weight and quantized is not None:
            shape = jax.eval_shape(each.arranged, other.program.avals[each.weight]).shape
            before = quantized.shape[quantized.ndim - len(shape) :]
            if before != shape:
                text = f"the weights of layer {each.name!r}, computed from params and sizes, have the shape {shape}"
                raise _Differs(f"{text}, but had {before}", LONGEST_OR_ONE_EXAMPLE)
    # Movers, such as a split into heads, may have other names, so the value that indexes a table is identified by the
    # value whose range it takes.
    before, after = (
        {name: both.plan.ranges[root] for name, root in both.plan.tables.items()} for both in (unit, other)
    )
    for name, source in after.items():
        if before.get(name) != source:
            raise _Differs(f"{other.described(Value(name))} is computed from different values than in calibration")
    for name in _held(other):
        if unit.texts.operations.get(name) != other.texts.operations[name]:
            text = (
                "has literals or arrays that depend on the sizes of the inputs, "
                "and the model's integers were computed from the literals and arrays of the calibration"
            )
            raise _Differs(f"the equation of {name!r} {text}")


def _check_scan(unit: Unit, other: Unit, scan: str, constants: Mapping[str, Any]) -> None:
    """Checks the values around a scan that go into the layers, weights and scales of its body."""
    was, now = (both.bodies[scan] for both in (unit, other))
    assert was.loop is not None
    assert now.loop is not None
    if now.loop.layers and now.loop.length != was.loop.length:
        raise _Differs(f"the scan {scan!r} has {now.loop.length} layers, but had {was.loop.length}")
    if _integers_of(was, constants) != _integers_of(now, constants):
        raise _Differs(
            f"the scan {scan!r} has layers, weights or scales that depend on the sizes of the inputs, "
            "and the model's integers were computed from those of the calibration"
        )


def _integers_of(body: Unit, constants: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Maps each param of a scan's body that goes into layers, weights, scales or constants to the text and shape of its
    value around the scan.
    """
    assert body.loop is not None
    makers, held = {name: each for each in body.program.equations for name in each.outputs}, set(constants)
    for output in _held(body):
        held.update(leaf for name in makers[output].inputs for leaf in body.builder.fixed.leaves(name))
    of_layers = set(body.params).difference(body.loop.shared)
    return {name: (known.text, known.shape) for name, known in body.params.items() if name in held | of_layers}


def _held(unit: Unit) -> Iterator[str]:
    """Yields results of equations whose literals and arrays went into weights, biases, tables, scales or ranges."""
    yield from (each.output for each in unit.builder.contractions)
    yield from unit.builder.folded
    makers = unit.graph.producers()
    for name, root in unit.plan.tables.items():
        yield from (each.outputs[0] for each in nodes_between(makers, root, name, unit.builder.number))
    yield from (each.outputs[0] for each in unit.plan.nodes if each.operator.kind in ("clip", "fake_quantize"))


def _check_complete(graph: Graph, params: Mapping[str, Any]) -> None:
    found = {*graph.inputs, *graph.constants, *params, *graph.producers(), ""}
    missing = (name for node in graph.nodes for name in node.inputs if name not in found)
    for name in missing:
        raise _Differs(f"{name.replace('/', '.')} is read, but was not in calibration")
