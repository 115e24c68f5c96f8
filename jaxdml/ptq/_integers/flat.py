"""A quantized function as one list of nodes, for writers of other formats.

Scans are unrolled, and each table comes with the float function that it computes. Weights are not prepared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._graph.evaluate import evaluate
from jaxdml._graph.graph import Graph, Node, Operator
from jaxdml.errors import PtqError
from jaxdml.ptq._build.conversions import build
from jaxdml.ptq._choose.unit import Unit
from jaxdml.ptq._integers.operators import DYNAMIC, INTEGERS, TABLE
from jaxdml.ptq._integers.paddings import fused_with_paddings
from jaxdml.ptq._integers.tables import nodes_between
from jaxdml.ptq._trace.equations import Program, bind
from jaxdml.ptq._trace.scans import SCAN, Loop, body_of, bound, each_layer, loop_of
from jaxdml.ptq._trace.values import Value

INDEX = Operator("index", lambda x, *, at: x[at], kind="mover")
STACK = Operator("stack", lambda *xs: jnp.stack(xs))
CAST = Operator("cast", lambda x, *, dtype: lax.convert_element_type(x, dtype))
DYNAMIC_PRODUCT = replace(DYNAMIC, name="dynamic")


@dataclass(frozen=True, eq=False)
class Function:
    """The float function that a table computes.

    Attributes:
      of: the name of its argument in the nodes.
      result: the name of its result in the nodes.
      nodes: the nodes, all of which are elementwise.
      numbers: maps names to the numbers that the nodes read.
      x: scale and zero point of the argument.
      y: scale and zero point of the result.
    """

    of: str
    result: str
    nodes: tuple[Node, ...]
    numbers: Mapping[str, np.ndarray]
    x: tuple[np.ndarray, np.ndarray]
    y: tuple[np.ndarray, np.ndarray]


@dataclass(eq=False)
class Flat:
    """A quantized function as one list of nodes.

    The operator of a quantized node is named "table", "dynamic", or by its kind: a key of the maps in `INTEGERS`. Where
    a node runs an equation of the float function, its option `equation` is the equation.

    Attributes:
      program: the float function.
      inputs, outputs: names of values, in the order of the program.
      nodes: the nodes, in topological order.
      constants: maps names to arrays.
      functions: maps the result of each table to its function.
    """

    program: Program
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)

    def shapes(self, inputs: Sequence[Any]) -> dict[str, jax.ShapeDtypeStruct]:
        """Shape and type of each value, given those of the inputs, whose sizes may be symbolic."""

        def values(given: dict[str, Any]) -> dict[str, Any]:
            return evaluate(self.nodes, {**self.constants, **given})

        found = jax.eval_shape(values, dict(zip(self.inputs, inputs, strict=True)))
        return found | {
            name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in self.constants.items()
        }  # fmt: skip


def flat(unit: Unit, graph: Graph, numerics: str) -> Flat:
    """A quantized function as one list of nodes.

    Args:
      unit: the unit of the program, from which tables take their functions.
      graph: the graph of the program with quantize and dequantize nodes.
      numerics: a key of `INTEGERS`.

    Raises:
      PtqError: if the number of steps of a scan is not known.
    """
    flattener = _Flattener(unit.program, numerics)
    graph = graph.replace(nodes=tuple(bound(graph.nodes, unit.program)))
    outputs = flattener.add(graph, unit.program, unit, dict(zip(graph.inputs, graph.inputs, strict=True)))
    made = flattener.made
    read = {name for node in made.nodes for name in node.inputs} | set(outputs)
    constants = {name: value for name, value in made.constants.items() if name in read}
    return replace(made, inputs=graph.inputs, outputs=outputs, constants=constants)


class _Step(NamedTuple):
    """How names in the list are derived from the names in a graph.

    Attributes:
      values: the prefix of the names of values, which differs between the steps of a scan.
      constants: the prefix of the names of constants, which steps with the same constants share.
      layer: the suffix of the names of nodes.
    """

    values: str = ""
    constants: str = ""
    layer: str = ""


TOP = _Step()  # outside of scans


class _Flattener:
    """Appends graphs to one list of nodes."""

    def __init__(self, program: Program, numerics: str) -> None:
        self.made = Flat(program)
        self._kinds = {kind: replace(each, name=kind) for kind, each in INTEGERS[numerics].items()}

    def add(
        self, graph: Graph, program: Program, unit: Unit | None, names: dict[str, str], step: _Step = TOP
    ) -> tuple[str, ...]:
        """Appends a graph, fused to quantized operators, and returns the names of its outputs.

        Args:
          graph: a graph with bound equations; the constants are those of one layer.
          program: the program of the graph.
          unit: the unit of the graph; None if nothing in the graph is quantized.
          names: maps the inputs of the graph to the names that they have in the list.
          step: how names are derived from the graph's names.
        """
        functions = {} if unit is None else _functions(unit, graph)
        result = graph if unit is None else fused_with_paddings(graph, self._kinds)
        for name, value in result.constants.items():
            names[name] = step.constants + name
            self.made.constants[names[name]] = _as_jax(value)
        for node in result.nodes:
            inputs = [name and names[name] for name in node.inputs]
            equation = node.options.get("equation")
            if equation is not None and equation.name == SCAN:
                unrolled = self._unrolled(node, graph, program, unit, inputs, step)
                names |= dict(zip(node.outputs, unrolled, strict=False))
                continue
            names |= {name: step.values + name for name in node.outputs}
            outputs = tuple(names[name] for name in node.outputs)
            operator = DYNAMIC_PRODUCT if node.operator.name == DYNAMIC.name else node.operator
            if operator.name == TABLE.name:
                self.made.functions[outputs[0]] = functions[node.outputs[0]]
            name = node.name + step.layer
            self.made.nodes.append(node.replace(operator=operator, inputs=tuple(inputs), outputs=outputs, name=name))
        return tuple(names[name] for name in result.outputs)

    def _node(self, operator: Operator, inputs: Sequence[str], output: str, **options: Any) -> str:
        self.made.nodes.append(Node(operator, tuple(inputs), (output,), options, output))
        return output

    def _unrolled(
        self, node: Node, around: Graph, program: Program, unit: Unit | None, inputs: Sequence[str], step: _Step
    ) -> list[str]:  # fmt: skip
        """Appends the body of a scan for each of its steps, and returns the names of the scan's results."""
        scan, body = node.outputs[0], None if unit is None else unit.bodies.get(node.outputs[0])
        if body is None:
            loop, layers = _float_body(node, program)
        else:
            loop, layers = node.options["loop"], each_layer(body_of(node, around.constants))
        if not isinstance(loop.length, int):
            raise PtqError(f"{node.name} has {loop.length} steps; scans are unrolled: give the sizes of the inputs")
        first, has_layers = loop.first_carried, len(layers) > 1
        shared, carried = inputs[:first], list(inputs[first : first + loop.carried])
        sequences = inputs[first + loop.carried : len(loop.data)]
        around_body = inputs[len(loop.data) : len(layers[0].inputs)]
        stacks = [[""] * loop.length for _ in loop.program.outputs[loop.carried :]]
        for i in reversed(range(loop.length)) if loop.reverse else range(loop.length):
            start = f"{step.values}{scan}/{i}/"
            within = _Step(start, start if has_layers else f"{step.values}{scan}/", f"{step.layer}/{i}")
            items = [self._node(INDEX, [each], f"{start}item_{k}", at=i) for k, each in enumerate(sequences)]
            layer = layers[i if has_layers else 0]
            names = dict(zip(layer.inputs, (*shared, *carried, *items, *around_body), strict=True))
            results = self.add(layer, loop.program, body, names, within)
            casts = [
                self._node(CAST, [result], f"{start}result_{k}", dtype=loop.program.avals[output].dtype)
                for k, (result, output) in enumerate(zip(results, loop.program.outputs, strict=False))
            ]
            carried = casts[: loop.carried]
            for stack, result in zip(stacks, casts[loop.carried :], strict=True):
                stack[i] = result
        outputs = (step.values + name for name in node.outputs[loop.carried :])
        return [*carried, *(self._node(STACK, stack, output) for stack, output in zip(stacks, outputs, strict=False))]


def _float_body(node: Node, around: Program) -> tuple[Loop, list[Graph]]:
    """A scan that runs in floats, and the graph of its body."""
    loop = loop_of(node.options["equation"], around.avals, lambda place: True)
    builder = build(loop.program)
    graph = builder.graph()
    constants = {**graph.constants, **builder.constants([])}
    return loop, [graph.replace(nodes=tuple(bound(graph.nodes, loop.program)), constants=constants)]


def _as_jax(value: Any) -> np.ndarray:
    """A constant in the type that JAX gives it: unless 64-bit types are enabled, float64 becomes float32."""
    array = np.asarray(value)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


# Tables --------------------------------------------------------------------------------------------------------------


def _functions(unit: Unit, graph: Graph) -> dict[str, Function]:
    """Maps the results of a graph's tables to their functions. The graph has the constants of one layer."""
    makers, number, found = unit.graph.producers(), unit.builder.number, dict[str, Function]()
    places = {node: place for place, node in enumerate(unit.graph.nodes)}

    def parameters(name: str) -> tuple[np.ndarray, np.ndarray]:
        scale, zero_point = (
            graph.constants[str(Value(unit.plan.ranges[name], role))] for role in ("scale", "zero_point")
        )
        return np.asarray(scale), np.asarray(zero_point)

    for name, root in unit.plan.tables.items():
        within = sorted(nodes_between(makers, root, name, number), key=places.__getitem__)
        nodes = tuple(bind(node, unit.program) for node in within)
        read = {each for node in nodes for each in node.inputs} - {each for node in nodes for each in node.outputs}
        numbers = {each: _as_jax(number(each)) for each in read - {root}}
        quantized = str(Value(name, "quantized"))
        found[quantized] = Function(root, name, nodes, numbers, parameters(root), parameters(name))
    return found
