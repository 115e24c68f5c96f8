"""Builds the float graph of a program: nodes, layouts of values, and contractions with folded affine equations.

An affine equation after a contraction (bias, normalization, scale) is folded into the contraction's weights if its
fixed operand varies only along output channels.
"""

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._arithmetic.integers import are_same
from jaxdml._graph.evaluate import evaluate
from jaxdml._graph.graph import ELEMENT_WISE_INDICES, INDICES, Graph, Node, Operator, without_dead
from jaxdml._operators.fake_quantize import NAME_IN_JAXPRS
from jaxdml.errors import PtqError
from jaxdml.ptq._build import operators as op
from jaxdml.ptq._build.affine import Contraction
from jaxdml.ptq._build.layouts import Layouts
from jaxdml.ptq._build.names import LayerNames
from jaxdml.ptq._trace.equations import PRODUCT_PRIMITIVES, Equation, Program, bind, run
from jaxdml.ptq._trace.fixed import FixedValues

# Primitives that only move, repeat or cast weights: each weight keeps its scale.
WEIGHT_MOVERS = (
    "broadcast_in_dim", "convert_element_type", "expand_dims", "reshape", "rev", "slice", "squeeze", "transpose",
)  # fmt: skip
QUOTIENTS = ("div", "rem")


class Builder:
    """Builds a program's float graph, and computes its weights.

    Attributes:
      program: the program.
      fixed: the values that do not depend on the program's inputs.
      layouts: maps each value of the program to its name and order of axes in the graph.
      contractions: the contractions, in order of execution.
      folded: the results of equations that were folded into contractions.
      names: names the layers.
    """

    def __init__(self, program: Program, foldable: Set[str] | None = None) -> None:
        """Only equations whose results are in `foldable` are folded; None allows all equations."""
        self.program, self.fixed = program, FixedValues(program)
        self.names = LayerNames(program, self.fixed)
        self.layouts = Layouts(lambda name: program.avals[name].ndim, self._append)
        self.contractions: list[Contraction] = []
        self.folded, self._foldable = set[str](), foldable
        self._nodes: list[Node | Contraction] = []
        # Maps a value of the graph to the contraction into which affine equations of that value can still be folded.
        self._open: dict[str, Contraction] = {}
        self._layers = Counter[str]()
        self._readers: dict[str, list[Equation]] = {}
        self._places = {id(equation): place for place, equation in enumerate(program.equations)}
        for equation in program.equations:
            for name in equation.inputs:
                self._readers.setdefault(name, []).append(equation)

    def _append(self, node: Node | Contraction) -> None:
        self._nodes.append(node)

    def shape(self, name: str) -> tuple[Any, ...]:
        """The shape of a value of the program."""
        return tuple(self.program.avals[name].shape)

    def number(self, name: str) -> np.ndarray | None:
        """The number of a literal, given its name in the program or the graph; None for all other values."""
        name = self.layouts.sources.get(name, name)
        return self.fixed.number(name) if name in self.fixed.names else None

    def rank(self, name: str) -> int:
        """The rank of a fixed value of the program or of the graph."""
        return len(self.shape(self.layouts.sources.get(name, name)))

    def is_data(self, name: str) -> bool:
        """Whether a value depends on the program's inputs."""
        return name not in self.fixed.names

    def only_reader(self, name: str) -> Equation | None:
        """The only equation that reads a value; None if several do, or if the value is an output of the program."""
        readers = self._readers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self.program.outputs else None

    def place(self, equation: Equation) -> int:
        """The index of an equation in the program."""
        return self._places[id(equation)]

    # Nodes -------------------------------------------------------------------------------------------------------

    def node(
        self, operator: Operator, inputs: Sequence[str], outputs: Sequence[str], options: Mapping[str, Any],
        equation: Equation, *, and_then: Equation | None = None, remark: str = "",
    ) -> None:  # fmt: skip
        """Appends a node for an equation; the node also computes the next equation `and_then`, if it is given."""
        name = equation.scope or outputs[0]
        source = (equation.name,) if and_then is None else (equation.name, and_then.name)
        if self._is_of_indices(equation):
            kind = ELEMENT_WISE_INDICES if operator.kind == "element_wise" else INDICES
            operator = replace(operator, kind=kind)
        self._append(Node(operator, tuple(inputs), tuple(outputs), options, name, source, remark))

    def _is_of_indices(self, equation: Equation) -> bool:
        """Whether an equation computes, from integers and bools alone, integers or bools that are the same everywhere.

        Products have reasons of their own in the printed table.
        """
        dtypes = (*equation.dtypes, *equation.dtypes_of_results)
        if equation.name in PRODUCT_PRIMITIVES or any(jnp.issubdtype(dtype, jnp.inexact) for dtype in dtypes):
            return False
        if equation.name in QUOTIENTS:
            return self._cannot_overflow(equation.inputs[1])
        return are_same(equation.name, equation.params, equation.dtypes)

    def _cannot_overflow(self, divisor: str) -> bool:
        """Whether a divisor of integers is a number other than 0 and -1, or a choice of such numbers.

        JAX leaves the result of other divisors to the backend. `jnp.remainder` chooses 1 in place of 0.
        """
        maker = self.fixed.maker(divisor)
        if maker is not None and maker.name == "select_n":
            return all(map(self._cannot_overflow, maker.inputs[1:]))
        number = self.number(divisor)
        return number is not None and number not in (0, -1)

    def reshaped(self, name: str, role: str, operator: Operator, options: Mapping[str, Any]) -> str:
        """Appends a node that reshapes a value of the graph for the next node, and returns the result's name."""
        output = f"{name}:{role}"
        self._append(Node(operator, (name,), (output,), options, name))
        return output

    def unchanged(self, equation: Equation, kind: str | None = None, remark: str = "") -> None:
        """Appends a node that runs the equation itself, on values in the program's layout."""
        inputs = [self.layouts.arranged(name) for name in equation.inputs]
        operator, options = op.equation(equation.name, kind), {"equation": self.place(equation)}
        self.node(operator, inputs, equation.outputs, options, equation, remark=remark)

    def moved(self, equation: Equation, places: Mapping[int, int] | None = None) -> None:
        """Appends a mover. Affine equations after the mover can still be folded if `places` has all channel axes.

        Args:
          equation: the mover, an equation that only moves elements.
          places: maps each axis whose size is not 1 to its new position; None if the sizes of these axes change.
        """
        data = equation.inputs[0]
        held = self.layouts.of(data)
        self.unchanged(equation, "mover")
        contraction = self._open.get(held.name)
        if contraction is None or places is None or self.only_reader(data) is not equation:
            return
        channels = [held.order[axis] for axis in contraction.channels]
        if all(axis in places for axis in channels):
            contraction.channels = [places[axis] for axis in channels]
            del self._open[held.name]
            self._open[equation.outputs[0]] = contraction

    def alias(self, equation: Equation, order: Sequence[int]) -> None:
        """Records that the equation's result is its input with the axes in `order`, so that no node is needed.

        If other equations also read the input, affine equations of the result cannot be folded.
        """
        data, output = equation.inputs[0], equation.outputs[0]
        held = self.layouts.of(data)
        if self.only_reader(data) is not equation:
            self._open.pop(held.name, None)
        self.layouts.hold(output, held.name, tuple(order))

    def contract(self, contraction: Contraction, output: str, order: Sequence[int]) -> None:
        """Appends a contraction, whose result is the program's value `output` with the axes in `order`."""
        self._layers[contraction.name] += 1
        if self._layers[contraction.name] > 1:  # weights or a scope that several contractions share
            contraction.name = f"{contraction.name}:{self._layers[contraction.name]}"
        self._append(contraction)
        self.contractions.append(contraction)
        self._open[contraction.output] = contraction
        self.layouts.hold(output, contraction.output, tuple(order))

    def folds(self, equation: Equation, data: str, other: str | None) -> bool:
        """Folds an equation of `data` and the fixed value `other` if possible; returns whether it was folded."""
        held = self.layouts.of(data)
        contraction = self._open.get(held.name)
        if contraction is None or self.only_reader(data) is not equation:
            return False
        if self._foldable is not None and equation.outputs[0] not in self._foldable:
            return False
        if not contraction.absorbs(equation, data, other, held.order, self.fixed):
            return False
        self.folded.add(equation.outputs[0])
        self.layouts.hold(equation.outputs[0], held.name, held.order)
        return True

    # The result --------------------------------------------------------------------------------------------------

    def graph(self) -> Graph:
        """The graph. Its constants are literals and captured arrays; weights and params are not among them."""
        outputs = tuple(self.layouts.arranged(name) for name in self.program.outputs)
        nodes = [each for node in self._nodes for each in (node.nodes() if isinstance(node, Contraction) else [node])]
        constants = {name: np.asarray(value) for name, value in self.program.constants.items()}
        return without_dead(Graph(tuple(nodes), self.program.inputs, outputs, constants))

    def constants(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """Maps names to params, weights and biases, which the graph reads in addition to its own constants.

        Args:
          leaves: the leaves of the function's params.

        Raises:
          PtqError: if weights or biases hold NaN or infinity.
        """
        params = dict(zip(self.program.params, leaves, strict=True))
        weighted = [each for each in self.contractions if each.weight]
        constants = dict[str, Any](params)
        arrays, scales_of_each = jax.device_get(self._of_contractions(self._given(leaves)))
        values = iter(arrays)
        for each, scales in zip(weighted, scales_of_each, strict=True):
            with np.errstate(over="ignore"):
                # NumPy arranges the arrays: XLA would compile a kernel for each of them.
                weight = each.arranged(next(values)).astype(np.float32)
                vectors = [step.numbers(next(values)).astype(np.float32) for step in each.steps if step.vector]
            constants[each.weight_name], bias, factors = each.folded(weight, vectors)
            grid = None if scales is None else each.grid(scales, factors)
            if grid is not None:
                constants[each.grid_name] = grid
            if each.has_bias:
                constants[each.bias_name] = bias
            if not (np.isfinite(constants[each.weight_name]).all() and np.isfinite(bias).all()):
                folded = " with folded affine equations" if each.steps else ""
                raise PtqError(f"the weights of {each.name!r}{folded} hold NaN or infinity: check params")
        return constants

    def values(self, names: Sequence[str], leaves: Sequence[Any]) -> list[Any]:
        """Fixed values of the program, computed from the leaves of the function's params."""
        return list(self._computed(tuple(names), self._given(leaves)))

    def _given(self, leaves: Sequence[Any]) -> dict[str, Any]:
        return {**self.program.constants, **dict(zip(self.program.params, leaves, strict=True))}

    @functools.cached_property
    def _of_contractions(self) -> Callable[[dict[str, Any]], tuple[list[Any], list[Any]]]:
        """The weights and vectors of all contractions, one contraction after the other, and the scales of weights."""
        weighted = [each for each in self.contractions if each.weight]
        names = [
            name for each in weighted for name in (each.weight, *(step.vector for step in each.steps if step.vector))
        ]

        @jax.jit
        def of_contractions(given: dict[str, Any]) -> tuple[list[Any], list[Any]]:
            return self._fixed_values(names, given), [self._scales(each, given) for each in weighted]

        return of_contractions

    def is_rounded(self, name: str) -> bool:
        """Whether the function applies `fake_quantize` to a fixed value, or to arrays that make it."""
        makers = map(self.fixed.maker, self.fixed.sources(name))
        return any(maker is not None and maker.name.startswith(NAME_IN_JAXPRS) for maker in makers)

    def _scales(self, contraction: Contraction, given: dict[str, Any]) -> Any:
        """The scale of each weight if the function itself quantizes the weights by `fake_quantize`; else None."""
        found = self.fixed.maker(contraction.weight)
        while found is not None and found.name in WEIGHT_MOVERS:
            found = self.fixed.maker(found.inputs[0])
        if found is None or not found.name.startswith(NAME_IN_JAXPRS):
            return None
        name = found.outputs[0]
        (moved,) = self._fixed_values(
            [contraction.weight], {**given, name: self._scale_of_each(found, given)}, without=name
        )
        return contraction.arranged(moved).astype(np.float32)

    def _scale_of_each(self, equation: Equation, given: dict[str, Any]) -> Any:
        """The scale of each element of a fake_quantize's result.

        The call itself is evaluated, because `vmap` may have mapped scales along any axis. Its input is minus infinity,
        and the zero point, if there is one, is the middle of the type. So each result is -2**(bits - 1) times the
        scale, and multiplication and division by this power of two are exact in float32.
        """
        x, scale, *zero_point = self._fixed_values(equation.inputs, given)
        limits = np.iinfo(equation.name.removeprefix(NAME_IN_JAXPRS))
        count = (int(limits.max) - int(limits.min) + 1) // 2
        middle = [jnp.full_like(each, limits.min + count) for each in zero_point]
        lowest = run(jnp.full_like(x, -np.inf), scale, *middle, equation=equation)
        return lowest[0] / np.float32(-count)

    @functools.cached_property
    def _computed(self) -> Callable[[tuple[str, ...], dict[str, Any]], list[Any]]:
        return jax.jit(self._fixed_values, static_argnums=0)

    def _fixed_values(self, names: Sequence[str], given: dict[str, Any], without: str = "") -> list[Any]:
        """Fixed values, computed from the values `given`; the equation that computes `without` is not evaluated."""
        nodes = [
            node for node in self._nodes
            if isinstance(node, Node) and self.fixed.names.issuperset(node.inputs) and without not in node.outputs
        ]  # fmt: skip
        needed = without_dead(Graph(tuple(nodes), (), tuple(names), {}))
        values = evaluate([bind(node, self.program) for node in needed.nodes], given)
        return [values[name] for name in names]
