"""Scans over layers: the body is planned once, and weights, scales and tables of all layers are stacked.

A scan whose sequences are parameters runs the same body with the parameters of one layer after the other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax import lax

from jaxdml._graph.evaluate import evaluate
from jaxdml._graph.graph import Node, Operator
from jaxdml.ptq._equations import Equation, Program, alike, program_of_jaxpr

SCAN = "scan"


@dataclass(frozen=True, eq=False)
class Loop:
    """A scan over layers.

    Attributes:
      program: the body; its params are what does not depend on data, its inputs the others.
      data: the places of the body's inputs that depend on data: constants, then all that is carried.
      layers: the places of those that are sequences, one element for each layer.
      fixed: the places of constants that do not depend on data.
      carried: how many results go into the next layer; they come first among the body's results, and last in data.
      length: the number of layers.
      reverse: the last layer comes first.
    """

    program: Program
    data: tuple[int, ...]
    layers: tuple[int, ...]
    fixed: tuple[int, ...]
    carried: int
    length: int
    reverse: bool


@dataclass(frozen=True, eq=False)
class Body:
    """Nodes that run once for each layer.

    Attributes:
      nodes: in order.
      inputs: the names of what depends on data.
      outputs: the names of the body's results, and of what else is to be stacked.
      stacked: the names of constants, one element for each layer.
      data: the places of the scan's inputs that depend on data.
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
    """The loop of a scan; None if its sequences depend on data, or there are none.

    Args:
      equation: a scan.
      avals: shape and type of each value of the program that it lies in.
      is_data: whether an input of the scan depends on data, by its place.
      path: the path of the parameter that another input is computed from, by its place.
    """
    jaxpr = equation.params["jaxpr"]
    within = [var.aval.ndim for var in jaxpr.jaxpr.invars]
    # Sequences have one axis less within; what is carried has as many.
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


def run_layers(*arrays: Any, equation: Equation, loop: Loop, body: Body) -> tuple[Any, ...]:
    """What a scan computes, its body being other nodes than the function's.

    Args:
      *arrays: what depends on data, in the order of the loop's data; then the body's constants, stacked.
      equation: the scan.
      loop: the same as a loop.
      body: what is computed for each layer; its nodes run equations of the loop's program.
    """
    count = len(loop.data)
    data, stacked = alike(arrays[:count]), dict(zip(body.stacked, arrays[count:], strict=True))
    first = count - loop.carried
    constants = dict(zip(body.inputs[:first], data[:first], strict=True))
    carry = [_as(x, loop.program.avals[name])
             for x, name in zip(data[first:], loop.program.inputs[first:], strict=True)]  # fmt: skip
    names = loop.program.outputs

    def step(carry: Sequence[Any], layer: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
        given = dict(zip(body.inputs[first:], carry, strict=True))
        values = evaluate(body.nodes, {**constants, **given, **layer})
        made = [_as(values[held], loop.program.avals[name]) for held, name in zip(body.outputs, names, strict=False)]
        return made[: loop.carried], [*made[loop.carried :], *(values[name] for name in body.outputs[len(names) :])]

    last, sequences = lax.scan(step, carry, stacked, loop.length, loop.reverse)
    return (*last, *sequences)


def _as(x: Any, aval: Any) -> Any:
    return x if x.dtype == aval.dtype else lax.convert_element_type(x, aval.dtype)


def scan_node(node: Node, body: Body, name: str) -> Node:
    """A scan whose body is other nodes; its constants are named after it."""
    inputs = (*(node.inputs[place] for place in body.data), *(f"{name}/{each}" for each in body.stacked))
    return node.replace(operator=LAYERS, inputs=inputs, options={**node.options, "body": body})


LAYERS = Operator("scan over layers", run_layers)
