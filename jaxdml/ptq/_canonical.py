"""A program's graph while it is made: its nodes, how values are held, and what goes into which contraction.

What is affine behind a contraction, bias or normalization or scale, goes into the weights of the contraction, because
it varies along output channels alone.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxdml._graph.evaluate import evaluate
from jaxdml._graph.graph import Graph, Node, Operator, without_dead
from jaxdml.errors import PtqError
from jaxdml.ptq import _operators as op
from jaxdml.ptq._contractions import Contraction
from jaxdml.ptq._equations import Equation, Program
from jaxdml.ptq._known import Known
from jaxdml.ptq._layouts import Layouts
from jaxdml.ptq._loops import loop_of


class Canonical:
    """A program's graph.

    Attributes:
      program: the program.
      known: what is computed from parameters alone.
      layouts: how each value is held.
      contractions: in order.
    """

    def __init__(self, program: Program) -> None:
        self.program, self.known = program, Known(program)
        self.layouts = Layouts(lambda name: program.avals[name].ndim, self._append)
        self.contractions: list[Contraction] = []
        self._nodes: list[Node | Contraction] = []
        self._behind: dict[str, Contraction] = {}  # by the graph's value that nothing but affine has followed yet
        self._readers: dict[str, list[Equation]] = {}
        self._places = {id(equation): place for place, equation in enumerate(program.equations)}
        for equation in program.equations:
            for name in equation.inputs:
                self._readers.setdefault(name, []).append(equation)

    def _append(self, node: Node | Contraction) -> None:
        self._nodes.append(node)

    def shape(self, name: str) -> tuple[Any, ...]:
        """A value's shape."""
        return tuple(self.program.avals[name].shape)

    def number(self, name: str) -> np.ndarray | None:
        """The number that a known value of the program or the graph holds throughout; None for all others."""
        own = name.partition(":")[0]  # what is behind it is said of a transposition
        return self.known.number(own) if own in self.known.names else None

    def rank(self, name: str) -> int:
        """How many dimensions a value of the program or the graph has."""
        return len(self.shape(name.partition(":")[0]))

    def is_data(self, name: str) -> bool:
        """Whether an input goes into a value."""
        return name not in self.known.names

    def only_reader(self, name: str) -> Equation | None:
        """The one equation that reads a value, once; None if there are several, or it is an output."""
        readers = self._readers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self.program.outputs else None

    def place(self, equation: Equation) -> int:
        """The equation's number."""
        return self._places[id(equation)]

    # Nodes -------------------------------------------------------------------------------------------------------

    def node(
        self, operator: Operator, inputs: Sequence[str], outputs: Sequence[str], options: Mapping[str, Any],
        equation: Equation, *, and_then: Equation | None = None, remark: str = "",
    ) -> None:  # fmt: skip
        """Appends a node that stands for an equation, and perhaps for another behind it."""
        name = equation.scope or outputs[0]
        source = (equation.name,) if and_then is None else (equation.name, and_then.name)
        self._append(Node(operator, tuple(inputs), tuple(outputs), options, name, source, remark))

    def as_it_is(self, equation: Equation, kind: str | None = None, remark: str = "") -> None:
        """Appends the equation as a node of a kind, on values in the program's layout."""
        inputs = [self.layouts.arranged(name) for name in equation.inputs]
        operator, options = op.equation(equation.name, kind), {"equation": self.place(equation)}
        self.node(operator, inputs, equation.outputs, options, equation, remark=remark)

    def moved(self, equation: Equation, places: Mapping[int, int] | None = None) -> None:
        """Appends a mover; what is affine behind it still goes into the contraction before it, if all axes are found.

        Args:
          equation: the mover.
          places: where it puts each axis of more than one element; None if axes do not keep their sizes.
        """
        data = equation.inputs[0]
        held = self.layouts.of(data)
        self.as_it_is(equation, "mover")
        contraction = self._behind.get(held.name)
        if contraction is None or places is None or self.only_reader(data) is not equation:
            return
        channels = [held.order[axis] for axis in contraction.channels]
        if all(axis in places for axis in channels):
            contraction.channels = [places[axis] for axis in channels]
            del self._behind[held.name]
            self._behind[equation.outputs[0]] = contraction

    def alias(self, equation: Equation, order: Sequence[int]) -> None:
        """The equation's result is its input, with its axes in an order.

        If others read the input, too, nothing that is behind the result may go into a contraction.
        """
        data, output = equation.inputs[0], equation.outputs[0]
        held = self.layouts.of(data)
        if self.only_reader(data) is not equation:
            self._behind.pop(held.name, None)
        self.layouts.hold(output, held.name, tuple(order))

    def contract(self, contraction: Contraction, output: str, order: Sequence[int]) -> None:
        """Appends a contraction whose result holds a value of the program, with its axes in an order."""
        self._append(contraction)
        self.contractions.append(contraction)
        self._behind[contraction.output] = contraction
        self.layouts.hold(output, contraction.output, tuple(order))

    def is_folded(self, equation: Equation, data: str, other: str | None) -> bool:
        """Whether an affine equation of a contraction's result and a known value went into the contraction."""
        held = self.layouts.of(data)
        contraction = self._behind.get(held.name)
        if contraction is None or self.only_reader(data) is not equation:
            return False
        if not contraction.takes(equation, data, other, held.order, self.known):
            return False
        self.layouts.hold(equation.outputs[0], held.name, held.order)
        return True

    # The result --------------------------------------------------------------------------------------------------

    def graph(self) -> Graph:
        """The graph; its constants are literals and what the function captured, its other inputs parameters."""
        outputs = tuple(self.layouts.arranged(name) for name in self.program.outputs)
        nodes = [each for node in self._nodes for each in (node.nodes() if isinstance(node, Contraction) else [node])]
        constants = {name: np.asarray(value) for name, value in self.program.constants.items()}
        return without_dead(Graph(tuple(nodes), self.program.inputs, outputs, constants))

    def values(self, names: Sequence[str], params: Sequence[Any]) -> list[Any]:
        """Known values of the program, of the leaves of the parameters."""
        return list(self._computed(tuple(names), self._given(params)))

    def weights(self, params: Sequence[Any]) -> dict[str, np.ndarray]:
        """Weights and biases of the contractions by name, of the leaves of the parameters.

        Raises:
          PtqError: if they hold NaN or infinity.
        """
        read = [each for each in self.contractions if each.weight]
        found = dict[str, np.ndarray]()
        for each, (weight, vectors) in zip(read, jax.device_get(self._arranged(self._given(params))), strict=True):
            found[f"{each.output}:weight"], bias = each.folded(weight, vectors)
            if each.has_bias:
                found[f"{each.output}:bias"] = bias
            if not (np.isfinite(found[f"{each.output}:weight"]).all() and np.isfinite(bias).all()):
                behind = ", with what is affine behind them," if each.steps else ""
                raise PtqError(f"the weights of {each.name!r}{behind} hold NaN or infinity: look for them in params")
        return found

    def _given(self, params: Sequence[Any]) -> dict[str, Any]:
        return {**self.program.constants, **dict(zip(self.program.params, params, strict=True))}

    @functools.cached_property
    def _arranged(self) -> Callable[[dict[str, Any]], list[tuple[Any, list[Any]]]]:
        read = [each for each in self.contractions if each.weight]
        names = [name for each in read for name in (each.weight, *(step.vector for step in each.steps if step.vector))]

        @jax.jit
        def arranged(given: dict[str, Any]) -> list[tuple[Any, list[Any]]]:
            values = iter(self._known(names, given))
            return [
                (each.arranged(next(values)).astype(np.float32), [
                    step.numbers(next(values)).astype(np.float32) for step in each.steps if step.vector
                ]) for each in read
            ]  # fmt: skip

        return arranged

    @functools.cached_property
    def _computed(self) -> Callable[[tuple[str, ...], dict[str, Any]], list[Any]]:
        return jax.jit(self._known, static_argnums=0)

    def _known(self, names: Sequence[str], given: dict[str, Any]) -> list[Any]:
        nodes = [node for node in self._nodes if isinstance(node, Node) and self.known.names.issuperset(node.inputs)]
        needed = without_dead(Graph(tuple(nodes), (), tuple(names), {}))
        values = evaluate([with_equations(node, self.program) for node in needed.nodes], given)
        return [values[name] for name in names]


def with_equations(node: Node, program: Program) -> Node:
    """The node, with the equation of a program that it runs."""
    if "equation" not in node.options:
        return node
    options = {**node.options, "equation": program.equations[node.options["equation"]]}
    body = options.get("body")
    if body is not None:
        loop = loop_of(options["equation"], program.avals, lambda place: place in body.data)
        assert loop is not None
        nodes = tuple(with_equations(each, loop.program) for each in body.nodes)
        options |= {"loop": loop, "body": dataclasses.replace(body, nodes=nodes)}
    return node.replace(options=options)
