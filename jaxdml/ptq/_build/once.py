"""Values that are computed from params alone by convolutions or products. They are computed once, when the function is
quantized.

A model holds each of them as a constant without the axes along which all elements are equal, such as a batch axis of
learned queries that are repeated for each input, and repeats it at each call. The constant is named after the text that
identifies its elements, so that other traces of the function find it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxdml._graph.graph import Graph, Node, without_dead
from jaxdml.ptq._build import operators as op
from jaxdml.ptq._build.builder import Builder
from jaxdml.ptq._trace.correspondence import MOVERS
from jaxdml.ptq._trace.equations import CONTRACTION_PRIMITIVES
from jaxdml.ptq._trace.signature import primitives_in
from jaxdml.ptq._trace.values import Value

ONCE = "once"  # the role of such a constant


def computed_once(graph: Graph, builder: Builder, elements: Mapping[str, str]) -> list[Node]:
    """The nodes that repeat constants, one for each value that is computed once.

    Args:
      graph: the float graph.
      builder: its builder.
      elements: maps each fixed value to the text that identifies its elements.
    """
    places = {name: (number, place) for number, equation in enumerate(builder.program.equations)
              for place, name in enumerate(equation.outputs)}  # fmt: skip
    nodes = []
    for name in dict.fromkeys(_without_movers(graph, builder)):
        if 0 not in builder.shape(name):
            options = {"axes": tuple(sorted(builder.fixed.varying(name))), "sized_as": places[name]}
            constant = str(Value(elements[name], ONCE))
            nodes.append(Node(op.REPEAT, (constant,), (name,), options, name))
    return nodes


def _without_movers(graph: Graph, builder: Builder) -> Iterator[str]:
    """Yields the values that nodes with data read, directly or through nodes that only move elements."""
    makers, data, found, read = graph.producers(), set(graph.inputs), set[str](), dict.fromkeys(graph.outputs)
    for node in graph.nodes:
        if not data.isdisjoint(node.inputs):
            data.update(node.outputs)
            read |= dict.fromkeys(node.inputs)
        elif not found.isdisjoint(node.inputs) or _multiplies(node, builder):
            found.update(node.outputs)
    pending = [name for name in read if name in found]
    while pending:
        name = pending.pop(0)
        if makers[name].operator.name in MOVERS:
            pending += (each for each in makers[name].inputs if each in found)
        else:
            yield name


def _multiplies(node: Node, builder: Builder) -> bool:
    """Whether a node runs a convolution or product, maybe in the body of a loop."""
    names = {node.operator.name}
    if "equation" in node.options:
        names.update(primitives_in(list(builder.program.equations[node.options["equation"]].params.values())))
    return not names.isdisjoint(CONTRACTION_PRIMITIVES)


def constant_of(value: Any, axes: Sequence[int]) -> Any:
    """The constant for a value whose elements may differ along `axes`."""
    return value[tuple(slice(None) if axis in axes else 0 for axis in range(value.ndim))]


def with_repeats(graph: Graph, repeats: Sequence[Node]) -> Graph:
    """The graph in which the nodes `repeats` give their results, without the nodes that are not needed any more."""
    of = {node.outputs[0]: node for node in repeats}
    nodes = list[Node]()
    for node in graph.nodes:
        kept = tuple("" if name in of else name for name in node.outputs)
        nodes += [node if kept == node.outputs else node.replace(outputs=kept)] if any(kept) else []
        nodes += (of[name] for name in node.outputs if name in of)
    return graph.replace(nodes=without_dead(graph.replace(nodes=tuple(nodes))).nodes)
