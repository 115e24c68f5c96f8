"""Scans over layers: one body, planned once, with the weights, scales and tables of all layers stacked.

A scan over layers is a `lax.scan` whose sequences are parameters. Every stage handles the body as a separate
graph whose constants have a leading axis of layers. `each_layer` splits this graph into one graph for each layer, and
`stacked` joins them again. `with_body` puts the graph into the node of the scan, and `body_of` takes it out again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._graph.evaluate import evaluate
from jaxdml._graph.graph import Graph, Node, Operator
from jaxdml.errors import PtqError
from jaxdml.ptq._trace.equations import Equation, Program, bind, program_of_jaxpr, with_equal_vma
from jaxdml.ptq._trace.values import Value

SCAN = "scan"


@dataclass(frozen=True, eq=False)
class Loop:
    """An analyzed scan over layers. Positions are indices into the inputs of the scan; its body has the same inputs.

    Attributes:
      program: the body as a program. Its `params` are the inputs that do not depend on data; its `inputs` are the rest.
      data: positions of the inputs that depend on data. Inputs that all layers share are first, carried values last.
      layers: positions of the sequences; a sequence has one element for each layer.
      fixed: positions of the inputs that all layers share and that do not depend on data.
      carried: number of carried values; they come first among the body's results, and last in `data`.
      length: number of layers.
      reverse: whether the last layer runs first.
    """

    program: Program
    data: tuple[int, ...]
    layers: tuple[int, ...]
    fixed: tuple[int, ...]
    carried: int
    length: int
    reverse: bool

    def of_layer(self, number: int, values: Sequence[Any]) -> list[Any]:
        """The body's params in layer `number`; `values` has all inputs that do not depend on data, in order."""
        places = sorted((*self.fixed, *self.layers))
        return [x[number] if place in self.layers else x for place, x in zip(places, values, strict=True)]


@dataclass(frozen=True, eq=False)
class Body:
    """The nodes that a scan runs once for each layer.

    Attributes:
      nodes: the nodes, in order of execution.
      inputs: names of the values that depend on data.
      outputs: names of the body's results, then of further values that the scan stacks.
      stacked: names of the constants that have one element for each layer.
      data: positions of the scan's inputs that depend on data.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    stacked: tuple[str, ...]
    data: tuple[int, ...]


def loop_of(
    equation: Equation, avals: Mapping[str, Any], is_data: Callable[[int], bool],
    path: Callable[[int], tuple[str, ...]] = lambda place: (str(place),),
) -> Loop | None:  # fmt: skip
    """Analyzes a scan; None if it has no sequences, or if a sequence depends on data.

    Args:
      equation: the scan.
      avals: maps each value of the program around the scan to its shape and type.
      is_data: returns whether the input at a position depends on data.
      path: returns the path of the parameter from which the input at a position is computed.
    """
    jaxpr = equation.params["jaxpr"]
    within = [var.aval.ndim for var in jaxpr.jaxpr.invars]
    # Inside the body a sequence has one axis less, and a carried value has the same number of axes.
    layers = tuple(place for place, name in enumerate(equation.inputs) if avals[name].ndim != within[place])
    results = zip(jaxpr.jaxpr.outvars, equation.outputs, strict=True)
    carried = sum(var.aval.ndim == avals[name].ndim for var, name in results)
    if not layers or any(map(is_data, layers)):
        return None
    first = layers[0] - carried
    fixed = tuple(place for place in range(first) if not is_data(place))
    data = tuple(place for place in range(layers[0]) if place not in fixed)
    program = program_of_jaxpr(jaxpr, {place: path(place) for place in (*fixed, *layers)}, equation.scope)
    return Loop(program, data, layers, fixed, carried, equation.params["length"], equation.params["reverse"])


# A body as a graph ---------------------------------------------------------------------------------------------------


def each_layer(graph: Graph) -> list[Graph]:
    """Splits a graph with stacked constants into one graph for each layer."""
    length = len(jax.tree.leaves(dict(graph.constants))[0])
    return [
        graph.replace(
            constants={name: jax.tree.map(lambda x, i=i: x[i], each) for name, each in graph.constants.items()}
        )
        for i in range(length)
    ]


def stacked(graphs: Sequence[Graph], name: str) -> Graph:
    """The first graph, with the constants of all graphs stacked.

    Args:
      graphs: the graphs, one for each layer.
      name: the name of the scan.

    Raises:
      PtqError: if the nodes of the graphs differ.
    """
    first = graphs[0]
    for number, graph in enumerate(graphs):
        if [_identity(node) for node in graph.nodes] != [_identity(node) for node in first.nodes]:
            remedy = "because their ranges differ; write the layers as a Python loop"
            raise PtqError(f"layer {number} of {name} needs other quantized operators than layer 0, {remedy}")
    constants = {each: jax.tree.map(_stack, *(graph.constants[each] for graph in graphs)) for each in first.constants}
    return first.replace(constants=constants)


def _stack(*layers: Any) -> Any:
    return np.stack(layers) if isinstance(layers[0], np.ndarray | np.generic) else jnp.stack(layers)


def _identity(node: Node) -> tuple[Any, ...]:
    return node.operator.name, node.inputs, node.outputs, dict(node.options)


def with_body(node: Node, graph: Graph, data: tuple[int, ...]) -> tuple[Node, dict[str, Any]]:
    """The scan's node with `graph` as its body, and a dict of the stacked constants of `graph` for the outer graph.

    Args:
      node: the scan's node, with or without a body.
      graph: the body. Outputs beyond the scan's own results become further outputs of the node.
      data: positions of the scan's inputs that depend on data.
    """
    scan = node.outputs[0]
    old: Body | None = node.options.get("body")
    reads = [node.inputs[place] for place in data] if old is None else node.inputs[: len(old.inputs)]
    outer = {name: str(Value(name, scan=scan)) for name in (*graph.constants, *graph.outputs)}
    more = [outer[name] for name in graph.outputs[len(node.outputs) :]] if old is None else []
    body = Body(graph.nodes, graph.inputs, graph.outputs, tuple(graph.constants), data)
    node = node.replace(
        operator=LAYERS, inputs=(*reads, *(outer[name] for name in graph.constants)), outputs=(*node.outputs, *more),
        options={**node.options, "body": body},
    )  # fmt: skip
    return node, {outer[name]: value for name, value in graph.constants.items()}


def body_of(node: Node, constants: Mapping[str, Any]) -> Graph:
    """The body of a scan's node as a graph; `constants` are the constants of the outer graph."""
    body: Body = node.options["body"]
    arrays = jax.device_get([constants[name] for name in node.inputs[len(body.inputs) :]])
    return Graph(body.nodes, body.inputs, body.outputs, dict(zip(body.stacked, arrays, strict=True)))


# Execution -----------------------------------------------------------------------------------------------------------


def bound(nodes: Sequence[Node], program: Program) -> list[Node]:
    """The nodes, also those inside of bodies, with indices of equations replaced by the program's equations."""
    return [_bound_scan(bind(node, program), program) if "body" in node.options else bind(node, program)
            for node in nodes]  # fmt: skip


def _bound_scan(node: Node, program: Program) -> Node:
    body: Body = node.options["body"]
    loop = loop_of(node.options["equation"], program.avals, lambda place: place in body.data)
    assert loop is not None
    nodes = tuple(bound(body.nodes, loop.program))
    body = Body(nodes, body.inputs, body.outputs, body.stacked, body.data)
    return node.replace(options={**node.options, "loop": loop, "body": body})


def _run_layers(*arrays: Any, equation: Equation, loop: Loop, body: Body) -> tuple[Any, ...]:
    """Runs a scan over layers.

    Args:
      *arrays: the inputs that depend on data, in the order of `loop.data`; then the stacked constants.
      equation: the float function's scan.
      loop: the analysis of this scan.
      body: the nodes that run in place of the scan's own body.
    """
    count = len(loop.data)
    data, constants = with_equal_vma(arrays[:count]), dict(zip(body.stacked, arrays[count:], strict=True))
    first = count - loop.carried
    shared = dict(zip(body.inputs[:first], data[:first], strict=True))
    carry = [_as(x, loop.program.avals[name])
             for x, name in zip(data[first:], loop.program.inputs[first:], strict=True)]  # fmt: skip
    names = loop.program.outputs

    def step(carry: Sequence[Any], layer: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
        given = dict(zip(body.inputs[first:], carry, strict=True))
        values = evaluate(body.nodes, {**shared, **given, **layer})
        results = [_as(values[held], loop.program.avals[name]) for held, name in zip(body.outputs, names, strict=False)]
        return results[: loop.carried], [
            *results[loop.carried :],
            *(values[name] for name in body.outputs[len(names) :]),
        ]

    last, sequences = lax.scan(step, carry, constants, loop.length, loop.reverse)
    return (*last, *sequences)


def _as(x: Any, aval: Any) -> Any:
    return x if x.dtype == aval.dtype else lax.convert_element_type(x, aval.dtype)


LAYERS = Operator("scan over layers", _run_layers)
