"""Scans over layers or over steps. The body of a scan is planned once.

A scan over layers is a `lax.scan` whose sequences hold weights: each layer has its own weights, scales and tables. In
any other scan, such as an RNN's, all steps share them. Every stage handles the body as a separate graph whose constants
have a leading axis of layers, of size 1 if all steps share the constants. `each_layer` splits this graph into one graph
for each layer, and `stacked` joins them again. `with_body` puts the graph into the node of the scan, and `body_of`
takes it out again.

A body may also read, in floats, values that do not depend on data and that all steps share, such as a mask. They are
not constants: the graph around the scan computes them, for any sizes of the inputs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._graph.evaluate import evaluate
from jaxdml._graph.graph import Graph, Node, Operator
from jaxdml.errors import PtqError
from jaxdml.ptq._trace.equations import (
    CONTRACTION_PRIMITIVES,
    Equation,
    Program,
    bind,
    equally_varying,
    program_of_jaxpr,
)
from jaxdml.ptq._trace.fixed import FixedValues
from jaxdml.ptq._trace.steps import ahead_of_steps
from jaxdml.ptq._trace.values import Value

SCAN = "scan"


@dataclass(frozen=True, eq=False)
class Loop:
    """An analyzed scan. Positions are indices into the inputs of the scan; its body has the same inputs.

    Attributes:
      program: the body as a program. Its `params` are the inputs at `fixed` and `layers`; its `inputs` are the rest.
      data: positions of the program's `inputs`: first those that all steps share, then carried values, then sequences.
      layers: positions of the sequences that do not depend on data, in a scan over layers; else ().
      fixed: positions of the inputs that all steps share and that do not depend on data.
      carried: number of carried values; they come first among the body's results.
      steps: number of sequences in `data`.
      length: number of layers or steps.
      reverse: whether the last step runs first.
    """

    program: Program
    data: tuple[int, ...]
    layers: tuple[int, ...]
    fixed: tuple[int, ...]
    carried: int
    steps: int
    length: int
    reverse: bool

    @property
    def first_carried(self) -> int:
        """The place in `data` of the first carried value; inputs that all steps share come before it."""
        return len(self.data) - self.steps - self.carried

    @property
    def copies(self) -> int:
        """The number of layers that have their own constants, or 1 if all steps share the constants."""
        return self.length if self.layers else 1

    @property
    def fixed_places(self) -> list[int]:
        """Positions of the inputs that do not depend on data, in order."""
        return sorted((*self.fixed, *self.layers))

    @property
    def shared(self) -> dict[str, int]:
        """Maps the name of each param of the program that all steps share to its position."""
        places = zip(self.program.params, self.fixed_places, strict=True)
        return {name: place for name, place in places if place in self.fixed}

    def of_layer(self, number: int, values: Sequence[Any]) -> list[Any]:
        """The body's params in layer `number`; `values` has all inputs that do not depend on data, in order."""
        return [x[number] if place in self.layers else x for place, x in zip(self.fixed_places, values, strict=True)]


@dataclass(frozen=True, eq=False)
class Body:
    """The nodes that a scan runs once for each layer.

    Attributes:
      nodes: the nodes, in order of execution.
      inputs: names of the values that depend on data, then of other values that the graph around the scan computes.
      outputs: names of the body's results, then of further values that the scan stacks.
      stacked: names of the constants, which have a leading axis of layers.
      data: positions of the scan's inputs that depend on data.
      updates: maps each output beyond the scan's own results to the constant that the output replaces after each step.
        Updates have no effect in scans over layers, whose steps do not share the constants.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    stacked: tuple[str, ...]
    data: tuple[int, ...]
    updates: Mapping[str, str] = field(default_factory=dict)


def loop_of(
    equation: Equation, avals: Mapping[str, Any], is_data: Callable[[int], bool],
    path: Callable[[int], tuple[str, ...] | str] = str,
) -> Loop:  # fmt: skip
    """Analyzes a scan.

    Args:
      equation: the scan.
      avals: maps each value of the program around the scan to its shape and type.
      is_data: returns whether the input at a position depends on data.
      path: returns the path of the parameter from which the input at a position is computed; a word if there is none.
    """
    jaxpr = equation.params["jaxpr"]
    within = [var.aval.ndim for var in jaxpr.jaxpr.invars]
    # Inside the body, a sequence has one axis fewer, and a carried value has the same number of axes.
    sequences = [place for place, name in enumerate(equation.inputs) if avals[name].ndim != within[place]]
    results = zip(jaxpr.jaxpr.outvars, equation.outputs, strict=True)
    carried = sum(var.aval.ndim == avals[name].ndim for var, name in results)
    first = len(within) - len(sequences) - carried
    fixed = tuple(place for place in range(first) if not is_data(place))

    def analyzed(layers: tuple[int, ...]) -> Loop:
        data = tuple(place for place in range(len(within)) if place not in (*fixed, *layers))
        program = program_of_jaxpr(jaxpr, {place: path(place) for place in (*fixed, *layers)}, equation.scope)
        steps = len(sequences) - len(layers)
        length, reverse = equation.params["length"], equation.params["reverse"]
        return Loop(program, data, layers, fixed, carried, steps, length, reverse)

    over_layers = analyzed(tuple(place for place in sequences if not is_data(place)))
    return over_layers if _has_weights_of_layers(over_layers) else analyzed(())


def _has_weights_of_layers(loop: Loop) -> bool:
    """Whether a contraction in the body has weights that are computed from a sequence."""
    places = zip(loop.fixed_places, loop.program.params, strict=True)
    of_layers = {name for place, name in places if place in loop.layers}
    found = FixedValues(loop.program)
    contractions = (each for each in loop.program.equations if each.name in CONTRACTION_PRIMITIVES)
    return any(not of_layers.isdisjoint(found.leaves(name)) for each in contractions for name in each.inputs)


# A body as a graph ---------------------------------------------------------------------------------------------------


def each_layer(graph: Graph) -> list[Graph]:
    """Splits a graph with stacked constants into one graph for each layer."""
    leaves = jax.tree.leaves(dict(graph.constants))
    length = len(leaves[0]) if leaves else 1
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
            raise PtqError(f"layer {number} of {name} needs different quantized operators than layer 0, {remedy}")
    constants = {each: jax.tree.map(_stack, *(graph.constants[each] for graph in graphs)) for each in first.constants}
    return first.replace(constants=constants)


def _stack(*layers: Any) -> Any:
    stack = np.stack(layers)  # `jnp.stack` would compile a program for each shape
    return stack if isinstance(layers[0], np.ndarray | np.generic) else jax.device_put(stack)


def _identity(node: Node) -> tuple[Any, ...]:
    return node.operator.name, node.inputs, node.outputs, dict(node.options)


def with_body(
    node: Node, graph: Graph, loop: Loop, updates: Mapping[str, str] = MappingProxyType({})
) -> tuple[Node, dict[str, Any]]:
    """The scan's node with `graph` as its body, and a dict of the stacked constants of `graph` for the outer graph.

    Args:
      node: the scan's node, without a body.
      graph: the body. Outputs beyond the scan's own results become further outputs of the node. Shared params of the
        loop become inputs of the node if the body reads them, and they are not constants of the body.
      loop: the analyzed scan.
      updates: maps each further output to the constant that the output replaces after each step; see `Body`.
    """
    read = {name for each in graph.nodes for name in each.inputs}.union(graph.outputs).difference(graph.constants)
    shared = {name: place for name, place in loop.shared.items() if name in read}
    reads = [node.inputs[place] for place in (*loop.data, *shared.values())]
    graph = graph.replace(inputs=(*graph.inputs, *shared))
    more = graph.outputs[len(node.outputs) :]
    return _joined(node, graph, reads, more, loop.data, updates)


def with_other_body(node: Node, graph: Graph) -> tuple[Node, dict[str, Any]]:
    """As `with_body`, for a node that has a body, whose inputs are those of `graph`."""
    body: Body = node.options["body"]
    return _joined(node, graph, node.inputs[: len(body.inputs)], (), body.data, {})


def _joined(
    node: Node, graph: Graph, reads: Sequence[str], more: Sequence[str], data: tuple[int, ...],
    updates: Mapping[str, str],
) -> tuple[Node, dict[str, Any]]:  # fmt: skip
    scan = node.outputs[0]
    outer = {name: str(Value(name, scan=scan)) for name in (*graph.constants, *graph.outputs)}
    body = Body(graph.nodes, graph.inputs, graph.outputs, tuple(graph.constants), data, updates)
    node = node.replace(
        operator=LOOP, inputs=(*reads, *(outer[name] for name in graph.constants)),
        outputs=(*node.outputs, *(outer[name] for name in more)),
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
    """The nodes, including those in bodies, with indices of equations replaced by the program's equations."""
    return [_bound_scan(bind(node, program), program) if "body" in node.options else bind(node, program)
            for node in nodes]  # fmt: skip


def _bound_scan(node: Node, program: Program) -> Node:
    body: Body = node.options["body"]
    loop = loop_of(node.options["equation"], program.avals, lambda place: place in body.data)
    body = replace(body, nodes=tuple(bound(body.nodes, loop.program)))
    return node.replace(options={**node.options, "loop": loop, "body": body})


def _run(*arrays: Any, equation: Equation, loop: Loop, body: Body) -> tuple[Any, ...]:
    """Runs a scan.

    Args:
      *arrays: the inputs of the body, then the stacked constants.
      equation: the float function's scan.
      loop: the analysis of this scan.
      body: the nodes that run in place of the scan's own body.
    """
    count, end, first = len(body.inputs), len(loop.data), loop.first_carried
    data, constants = equally_varying(arrays[:count]), dict(zip(body.stacked, arrays[count:], strict=True))
    shared = dict(zip((*body.inputs[:first], *body.inputs[end:]), (*data[:first], *data[end:]), strict=True))
    carried = body.inputs[first : first + loop.carried]
    carry = {name: _as(x, loop.program.avals[given]) for name, given, x in zip(
        carried, loop.program.inputs[first:], data[first:], strict=False)}  # fmt: skip
    sequences = dict(zip(body.inputs[first + loop.carried : end], data[first + loop.carried : end], strict=True))
    names, nodes, ahead = loop.program.outputs, body.nodes, dict[str, Any]()
    if loop.layers:
        sequences |= constants
    else:
        # `reshape` returns a NumPy array for a NumPy array, so NumPy arrays stay constants while JAX traces.
        constants = jax.tree.map(lambda x: x.reshape(x.shape[1:]), constants)
        carry |= {name: jax.tree.map(jnp.asarray, constants.pop(name)) for name in body.updates.values()}
        shared |= constants
        nodes, ahead = ahead_of_steps(nodes, sequences, shared, body.outputs)
    further = body.outputs[len(names) :] if loop.layers else ()

    def step(carry: Mapping[str, Any], each: Any) -> tuple[dict[str, Any], list[Any]]:
        of_step, products = each
        # Without the barrier, XLA:CPU looks products up in the loops of the gates, which it then does not vectorize.
        values = evaluate(nodes, {**shared, **carry, **of_step, **lax.optimization_barrier(products)})
        results = [_as(values[held], loop.program.avals[name]) for held, name in zip(body.outputs, names, strict=False)]
        after = dict(zip(carried, results, strict=False))
        if not loop.layers:
            after |= {state: values[name] for name, state in body.updates.items()}
        return after, [*results[loop.carried :], *(values[name] for name in further)]

    # lax.scan does not accept a symbolic length as an argument, but takes one from the shapes of sequences.
    length = None if sequences else loop.length
    last, stacks = lax.scan(step, carry, (sequences, ahead), length, loop.reverse)
    states = () if loop.layers else (jax.tree.map(lambda x: x[None], last[name]) for name in body.updates.values())
    return (*(last[name] for name in carried), *stacks, *states)


def _as(x: Any, aval: Any) -> Any:
    return x if x.dtype == aval.dtype else lax.convert_element_type(x, aval.dtype)


LOOP = Operator("loop", _run)
