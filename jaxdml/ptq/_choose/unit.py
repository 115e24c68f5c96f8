"""A unit is the function, or the body of a scan. It is planned, calibrated and quantized as a whole."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._graph.evaluate import described
from jaxdml._graph.graph import Graph, Node, without_dead
from jaxdml.ptq._build.affine import Contraction
from jaxdml.ptq._build.builder import Builder
from jaxdml.ptq._build.conversions import build
from jaxdml.ptq._build.operators import FAKE_QUANTIZE
from jaxdml.ptq._choose.flow import Flow, wide_readers
from jaxdml.ptq._choose.modes import Mode, Modes, is_contraction
from jaxdml.ptq._choose.plan import Plan, plan_of
from jaxdml.ptq._choose.rule import Rule
from jaxdml.ptq._grids.observers import Observer, Statistics, observer_of
from jaxdml.ptq._trace.correspondence import Known, Texts, corresponding, named_like, texts_of
from jaxdml.ptq._trace.equations import PRODUCT_PRIMITIVES, Program
from jaxdml.ptq._trace.scans import SCAN, Loop, loop_of, stacked
from jaxdml.ptq._trace.signature import primitives_in
from jaxdml.ptq._trace.values import Value

CONTROL_FLOW = {
    "cond": "its branches run in floats: quantize each branch, or compute both and write jnp.where",
    "while": "its body runs in floats: write lax.fori_loop with a number of steps, or quantize a function of one step",
}
INNER_SCAN = "a scan inside of a scan runs in floats: write one of the two as a Python loop"


@dataclass(frozen=True, eq=False)
class Unit:
    """A program with its float graph, and the plan for quantizing it.

    Attributes:
      builder: the builder of the float graph.
      graph: the float graph; in a body its constants are stacked over layers.
      modes: maps the result of each contraction, and of each sum in floats, to its mode.
      plan: which values are quantized.
      texts: texts that identify the program's values.
      params: maps each param of the program to what identifies it in other traces.
      loop: the scan, if the unit is the body of a scan; else None.
      bodies: maps the first result of each scan with contractions to the unit of its body.
    """

    builder: Builder
    graph: Graph
    modes: dict[str, Mode]
    plan: Plan
    texts: Texts
    params: Mapping[str, Known]
    loop: Loop | None = None
    bodies: dict[str, "Unit"] = field(default_factory=dict)

    @property
    def program(self) -> Program:
        """The program."""
        return self.builder.program

    def each(self) -> Iterator[tuple[str, "Unit"]]:
        """Yields ("", unit) for the function, and (first result of the scan, unit) for each body."""
        yield "", self
        yield from self.bodies.items()

    def layers(self) -> list[Node]:
        """All contractions."""
        return [node for _, unit in self.each() for node in unit.graph.nodes if is_contraction(node)]

    def scans_with_products(self) -> Iterator[str]:
        """Yields the first result of each scan with contractions, also of those that run in floats."""
        for node in self.graph.nodes:
            is_float = node.operator.name == SCAN and not set(PRODUCT_PRIMITIVES).isdisjoint(node.source)
            if node.outputs[0] in self.bodies or is_float:
                yield node.outputs[0]

    def with_weights(self) -> set[str]:
        """The names of the contractions that multiply by known weights."""
        return {layer.name for _, unit in self.each() for layer in unit.builder.contractions if layer.weight}

    def has_rounded_weights(self, contraction: Contraction) -> bool:
        """Whether the function applies `fake_quantize` to a contraction's weights, in the unit or around the scan."""
        weight = contraction.weight
        return self.builder.is_rounded(weight) or any(
            self.params[leaf].is_rounded for leaf in self.builder.fixed.leaves(weight)
        )

    def can_read_wide(self) -> set[str]:
        """The names of the contractions that can read 16 bits."""
        readers = ((unit.graph.producers(), wide_readers(unit.graph)) for _, unit in self.each())
        return {makers[name].name for makers, found in readers for name in found}

    def reasons_by_layer(self) -> dict[str, str]:
        """Maps the names of contractions and loops that stay in floats to the reasons."""
        return {
            node.name: unit.plan.reasons[node.outputs[0]]
            for _, unit in self.each() for node in unit.graph.nodes if node.outputs[0] in unit.plan.reasons
            if is_contraction(node) or node.operator.name in (SCAN, *CONTROL_FLOW)
        }  # fmt: skip

    def with_constants(self, leaves: Sequence[Any]) -> "Unit":
        """The unit with weights and params added to the constants of its graph, given the leaves of the params."""
        arrays = {name: np.asarray(value) for name, value in self.builder.constants(leaves).items()}
        graph = without_dead(self.graph.replace(constants={**self.graph.constants, **arrays}))
        graph = graph.replace(constants={**graph.constants, **self._own_grids(arrays, leaves)})
        bodies = dict(self.bodies)
        for node in self.graph.nodes:
            if node.outputs[0] in bodies:
                bodies[node.outputs[0]] = self._with_layers(node, leaves)
        return replace(self, graph=graph, bodies=bodies)

    def _own_grids(self, arrays: Mapping[str, np.ndarray], leaves: Sequence[Any]) -> dict[str, np.ndarray]:
        """Maps names to scales and zero points with which the function itself quantizes weights and values."""
        found = {
            each.grid_name: arrays[each.grid_name] for each in self.builder.contractions if each.grid_name in arrays
        }
        for node in self.graph.nodes:
            if node.operator is FAKE_QUANTIZE:
                scale, *zero_point = jax.device_get(self.builder.values(node.inputs[1:], leaves))
                dtype = np.dtype(node.options["dtype"])
                found[str(Value(node.outputs[0], "scale"))] = np.asarray(scale, np.float32).reshape(())
                zero = np.asarray(zero_point[0] if zero_point else 0, dtype).reshape(())
                found[str(Value(node.outputs[0], "zero_point"))] = zero
        return found

    def with_shared(self, constants: Mapping[str, Mapping[str, Any]]) -> "Unit":
        """The unit with further constants; `constants` maps "" to the function's, and each scan to its body's."""
        graph = self.graph.replace(constants={**constants[""], **self.graph.constants})
        bodies = {name: body._with_stacked(constants.get(name, {})) for name, body in self.bodies.items()}
        return replace(self, graph=graph, bodies=bodies)

    def _with_stacked(self, constants: Mapping[str, Any]) -> "Unit":
        """The body with further constants, and with its own constants repeated for each layer."""
        assert self.loop is not None
        own = {name: np.stack([value] * self.loop.copies) for name, value in self.graph.constants.items()}
        return replace(self, graph=self.graph.replace(constants={**constants, **own}))

    def _with_layers(self, node: Node, leaves: Sequence[Any]) -> "Unit":
        body = self.bodies[node.outputs[0]]
        loop = body.loop
        assert loop is not None
        values = jax.device_get(self.builder.values(_around(self.builder, node, loop), leaves))
        layers = [body.with_constants(loop.of_layer(i, values)).graph for i in range(loop.copies)]
        layers = [
            graph.replace(constants={name: x for name, x in graph.constants.items() if name not in loop.shared})
            for graph in layers
        ]
        return replace(body, graph=stacked(layers, node.name))

    def observers(self, default: Observer, rules: Sequence[Rule]) -> dict[Value, Observer]:
        """The observer of each calibrated value; observers in bodies are stacked over layers."""
        return {
            Value(name, scan=scan): of_body(observer, unit.loop)
            for scan, unit in self.each() for name, observer in unit.own_observers(default, rules).items()
        }  # fmt: skip

    def own_observers(self, default: Observer, rules: Sequence[Rule]) -> dict[str, Observer]:
        """Maps the names of this unit's calibrated values to observers, which are not stacked."""
        given = {node.outputs[0] for node in self.graph.nodes if node.operator is FAKE_QUANTIZE}
        observers = {name: default for name in self.plan.ranges.values() if name not in given}
        for rule in reversed(rules):
            for node in self.plan.nodes:
                if rule.observer and is_contraction(node) and re.search(rule.pattern, node.name):
                    named = observer_of(rule.observer)
                    sources = {self.plan.ranges[name] for name in node.inputs if name in self.plan.ranges}
                    observers |= dict.fromkeys(sources - given, named)
        return observers

    def is_wide(self, value: Value) -> bool:
        """Whether a value is quantized to 16 bits for tables."""
        return value.base in dict(self.each())[value.scan].plan.wide

    def is_read_wide(self, value: Value) -> bool:
        """Whether contractions quantize a value, or the result of movers that read it, to 16 bits."""
        plan = dict(self.each())[value.scan].plan
        return any(plan.ranges[name] == value.base for name in plan.read_wide)

    def described(self, value: Value) -> str:
        """A value in words, for errors."""
        maker = dict(self.each())[value.scan].graph.producers().get(value.base)
        if maker is None:
            return f"an input of the body of {value.scan!r}" if value.scan else value.base.replace("_", " ")
        return f"the result of {described(maker)}"


def of_body(statistics: Statistics, loop: Loop | None) -> Any:
    """Statistics of a value in the body of a scan, stacked over layers; unchanged if there is no scan."""
    if loop is None:
        return statistics
    one = statistics if loop.layers else statistics.over_steps()
    return jax.tree.map(lambda x: np.stack([x] * loop.copies), one)


def unit_of(
    program: Program, choose: Callable[[Graph, str], Modes], *, like: Unit | None = None,
    params: Mapping[str, Known] | None = None, scan: str = "", loop: Loop | None = None,
) -> Unit:  # fmt: skip
    """Builds and plans a program, and the bodies of its scans.

    Args:
      program: the program.
      choose: returns the modes and reasons of a float graph, given the graph and `scan`.
      like: the unit of another trace of the function; the new unit uses its names, and folds the same equations.
      params: the params; None if the program is the function.
      scan: the name of the first result of the scan whose body is the program; "" if the program is the function.
      loop: the analysis of this scan; None if the program is the function.
    """
    params = {name: Known((name,)) for name in program.params} if params is None else params
    if like is not None:
        program = named_like(program, like.program, corresponding(params, like.params))
        params = dict(zip(program.params, params.values(), strict=True))
        loop = None if loop is None else replace(loop, program=program)
    builder, texts = build(program, None if like is None else like.builder.folded), texts_of(program)
    graph = builder.graph()
    modes, reasons = choose(graph, scan)
    bodies = {}
    for node in graph.nodes:
        if not any(map(builder.is_data, node.inputs)):
            continue
        if node.operator.name in CONTROL_FLOW:
            reasons[node.outputs[0]] = CONTROL_FLOW[node.operator.name]
        if node.operator.name != SCAN:
            continue
        name = node.outputs[0]
        if loop is not None:
            reasons[name] = INNER_SCAN
            continue
        inner = _loop_of(builder, node)
        old = None if like is None else like.bodies.get(name)
        around = zip(inner.program.params.items(), _around(builder, node, inner), strict=True)
        known = {
            each: Known(
                (each in inner.shared, path),
                texts.contents[value],
                program.avals[value].shape,
                builder.is_rounded(value),
            )
            for (each, path), value in around
        }
        body = unit_of(inner.program, choose, like=old, params=known, scan=name, loop=inner)
        if any(mode != "float" for mode in body.modes.values()):
            bodies[name] = body
        else:
            reasons[name] = next(iter(body.reasons_by_layer().values()), "its body has nothing to quantize")
    graph = graph.replace(nodes=tuple(_with_products(node, program, reasons) for node in graph.nodes))
    floats = [name for name in program.inputs if jnp.issubdtype(program.avals[name].dtype, jnp.floating)]
    plan = plan_of(Flow(graph, builder.number), modes, reasons, floats, floats if loop is None else ())
    return Unit(builder, graph, modes, plan, texts, params, loop, bodies)


def _with_products(node: Node, program: Program, reasons: Mapping[str, str]) -> Node:
    """The node; if it is a loop or condition in floats, its `source` also lists the convolutions and products in its
    jaxprs.
    """
    if node.operator.name not in (SCAN, *CONTROL_FLOW) or node.outputs[0] not in reasons:
        return node
    primitives = primitives_in(list(program.equations[node.options["equation"]].params.values()))
    return node.replace(source=(*node.source, *(name for name in primitives if name in PRODUCT_PRIMITIVES)))


def _loop_of(builder: Builder, node: Node) -> Loop:
    equation, avals = builder.program.equations[node.options["equation"]], builder.program.avals

    def is_data(name: str) -> bool:  # a random key cannot be an array among the constants of a body
        return builder.is_data(name) or jnp.issubdtype(avals[name].dtype, jax.dtypes.prng_key)

    return loop_of(
        equation, avals, lambda place: is_data(equation.inputs[place]),
        lambda place: _path(builder, equation.inputs[place]),
    )  # fmt: skip


def _around(builder: Builder, node: Node, loop: Loop) -> list[str]:
    """The values around a scan that its body reads as params, each whole or one step at a time, in order."""
    equation = builder.program.equations[node.options["equation"]]
    return [equation.inputs[place] for place in loop.fixed_places]


def _path(builder: Builder, name: str) -> tuple[str, ...] | str:
    """The path of the parameter from which a fixed value is computed, or a word if it is not computed from any."""
    leaves = builder.fixed.leaves(name)
    if leaves:
        return builder.program.params[leaves[0]]
    return "captured" if name in builder.program.constants else "computed"
