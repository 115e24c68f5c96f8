"""The function, and the body of each scan over layers: what is planned, calibrated and quantized as one.

A body has the constants of all its layers, stacked; its ranges are those of all layers, too.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from jaxdml._graph.graph import Graph, Node, without_dead
from jaxdml.errors import PtqError
from jaxdml.ptq._canonical import Canonical
from jaxdml.ptq._conversions import canonical
from jaxdml.ptq._equations import Program
from jaxdml.ptq._loops import SCAN, Loop, loop_of
from jaxdml.ptq._observers import Observer, observer_of
from jaxdml.ptq._plan import CONTRACTIONS, Plan, is_float, plan_of
from jaxdml.ptq._rule import Rule

CONTROL_FLOW = {"cond": "its branches run in floats", "while": "its body runs in floats"}
CONTRACT = ("conv_general_dilated", "dot_general")


@dataclass(eq=False)
class Unit:
    """A program, how its contractions run, and which values become integers.

    Attributes:
      made: its graph while it was made.
      graph: its graph in floats.
      modes: "static", "dynamic" or "float", by the result of each contraction.
      reasons: why contractions and scans stay in floats, by their result.
      plan: what becomes integers.
      loop: of a body.
      loops: the bodies of its scans over layers, by the first result of each.
    """

    made: Canonical
    graph: Graph
    modes: dict[str, str]
    reasons: dict[str, str]
    plan: Plan
    loop: Loop | None = None
    loops: dict[str, "Unit"] = field(default_factory=dict)

    @property
    def program(self) -> Program:
        """The program."""
        return self.made.program

    @property
    def is_quantized(self) -> bool:
        """Whether a contraction runs on integers."""
        return any(mode != "float" for mode in self.modes.values())

    def layers(self) -> list[Node]:
        """The contractions, those of bodies among them."""
        own = [node for node in self.graph.nodes if _is_contraction(node)]
        return own + [node for each in self.loops.values() for node in each.layers()]

    def told(self) -> dict[str, str]:
        """Why each contraction and scan stays in floats, by the name of the layer."""
        names = {node.outputs[0]: node.name for node in self.graph.nodes}
        own = {names[output]: reason for output, reason in self.reasons.items() if output in names}
        return own | {name: reason for each in self.loops.values() for name, reason in each.told().items()}

    def with_constants(self, leaves: Sequence[Any]) -> "Unit":
        """The unit whose graph has weights and parameters, of the leaves of the parameters."""
        constants = {**self.made.weights(leaves), **dict(zip(self.program.params, leaves, strict=True))}
        arrays = {name: np.asarray(value) for name, value in constants.items()}
        graph = without_dead(self.graph.replace(constants={**self.graph.constants, **arrays}))
        loops = {}
        for node in self.graph.nodes:
            if node.outputs[0] in self.loops:
                loops[node.outputs[0]] = self._with_layers(node, leaves)
        return replace(self, graph=graph, loops=loops)

    def _with_layers(self, node: Node, leaves: Sequence[Any]) -> "Unit":
        """The body of a scan, with the constants of all layers stacked."""
        body = self.loops[node.outputs[0]]
        assert body.loop is not None
        loop, equation = body.loop, self.program.equations[node.options["equation"]]
        places = sorted((*loop.fixed, *loop.layers))
        given = jax.device_get(self.made.values([equation.inputs[place] for place in places], leaves))
        each = [
            body.with_constants(
                [x[number] if place in loop.layers else x for place, x in zip(places, given, strict=True)]
            )
            for number in range(loop.length)
        ]
        stacked = {name: np.stack([unit.graph.constants[name] for unit in each]) for name in each[0].graph.constants}
        return replace(body, graph=each[0].graph.replace(constants=stacked))

    def observers(self, default: Observer, rules: Sequence[Rule]) -> dict[str, Observer]:
        """The observer of each value that has a grid; in a body, one for each layer."""
        chosen = dict.fromkeys(self.plan.grids.values(), default)
        for rule in reversed(rules):
            for node in self.plan.integers:
                if rule.observer and _is_contraction(node) and re.search(rule.pattern, node.name):
                    named = observer_of(rule.observer)
                    chosen |= {self.plan.grids[name]: named for name in node.inputs if name in self.plan.grids}
        if self.loop is None:
            return chosen
        length = self.loop.length
        return {name: jax.tree.map(lambda x: np.stack([x] * length), each) for name, each in chosen.items()}


def unit_of(program: Program, products: str, rules: Sequence[Rule], loop: Loop | None = None) -> Unit:
    """The unit of a program, with the bodies of its scans over layers."""
    made = canonical(program)
    graph = made.graph()
    modes, reasons = _modes(graph, products, rules)
    loops = {}
    for node in graph.nodes:
        if not any(map(made.is_data, node.inputs)):
            continue
        if node.operator.name in CONTROL_FLOW:
            reasons[node.outputs[0]] = CONTROL_FLOW[node.operator.name]
        if node.operator.name != SCAN:
            continue
        inner = None if loop is not None else _loop_of(made, node)
        if inner is None:
            text = "is inside of a scan" if loop is not None else "has no parameters stacked over layers, or reads data"
            reasons[node.outputs[0]] = f"it {text}: its body runs in floats"
            continue
        body = unit_of(inner.program, products, rules, inner)
        if body.is_quantized:
            loops[node.outputs[0]] = body
        else:
            reasons |= {node.outputs[0]: "its body has nothing to quantize"}
    floats = {name: is_float(program.avals[name].dtype) for name in program.inputs}
    return Unit(made, graph, modes, reasons, plan_of(graph, modes, floats, made.number), loop, loops)


def _loop_of(made: Canonical, node: Node) -> Loop | None:
    equation = made.program.equations[node.options["equation"]]
    return loop_of(
        equation, made.program.avals, lambda place: made.is_data(equation.inputs[place]),
        lambda place: _path(made, equation.inputs[place]),
    )  # fmt: skip


def _path(made: Canonical, name: str) -> tuple[str, ...]:
    """The path of the parameter that a known value is computed from."""
    leaves = made.known.leaves(name)
    return made.program.params[leaves[0]] if leaves else (name,)


def _is_contraction(node: Node) -> bool:
    return node.operator.kind in CONTRACTIONS or node.operator.name in CONTRACT


def _modes(graph: Graph, products: str, rules: Sequence[Rule]) -> tuple[dict[str, str], dict[str, str]]:
    """How each contraction runs, and why some stay in floats, by their result."""
    modes, reasons = dict[str, str](), dict[str, str]()
    for node in filter(_is_contraction, graph.nodes):
        output = node.outputs[0]
        matching = [rule for rule in rules if re.search(rule.pattern, node.name)]
        kept = next((rule for rule in matching if rule.keep), None)
        asked = next((rule.products for rule in matching if rule.products), products)
        if node.operator.kind not in CONTRACTIONS:
            reasons[output] = node.remark
        elif kept is not None:
            modes[output], reasons[output] = "float", f"kept in floats by Rule({kept.pattern!r})"
        else:
            modes[output] = "dynamic" if asked == "dynamic" and node.operator.kind == "dot" else "static"
    return modes, reasons


def check_matches(unit: Unit, rules: Sequence[Rule]) -> None:
    """Refuses a rule that matches no layer, or none that it could change.

    Raises:
      PtqError: if there is one; the error lists the layers.
    """
    names = list(dict.fromkeys(node.name for node in unit.layers()))
    products = [node.name for node in unit.layers() if node.operator.kind == "dot"]
    for rule in rules:
        if rule.products == "dynamic" and any(re.search(rule.pattern, name) for name in names) and not (
            any(re.search(rule.pattern, name) for name in products)
        ):  # fmt: skip
            raise PtqError(f"Rule({rule.pattern!r}) matches no product, and convolutions have no dynamic form")
        if not any(re.search(rule.pattern, name) for name in names):
            listed = ", ".join(map(repr, names)) or "none"
            raise PtqError(f"Rule({rule.pattern!r}) matches no layer; the layers are {listed}")
