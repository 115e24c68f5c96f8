"""Fuses operators to quantized ones, and paddings with zeros into the convolutions that read them.

A convolution pads with the zero point of its input. A padding of integers adds the same zero point, and a padding of
floats adds 0, which is quantized to this zero point unless the scale counts as 0. So the bits stay the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxdml._arithmetic.rounding import SMALLEST_NORMAL
from jaxdml._graph.fuse import fused
from jaxdml._graph.graph import Graph, Names, Node, Operator, without_dead
from jaxdml._shapes import is_integer
from jaxdml.ptq._build.operators import PAD
from jaxdml.ptq._integers.rules import PTQ_RULES

Pairs = tuple[tuple[int, int], ...]


class _Image(NamedTuple):
    """A value before paddings.

    Attributes:
      name: the name of the value.
      padding: how many elements the paddings add before and after the value's elements, along each axis.
      source: the operators of the program that pad.
    """

    name: str
    padding: Pairs
    source: tuple[str, ...]


def fused_with_paddings(graph: Graph, quantized: Mapping[str, Operator]) -> Graph:
    """The graph with quantized operators, by the rules of ptq, in which convolutions do the paddings before them.

    Quantize nodes and transpositions may lie between a padding and a convolution. Other readers still read the result
    of the padding.

    Args:
      graph: the graph with quantize and dequantize nodes.
      quantized: maps kinds to quantized operators.
    """
    graph = fused(graph, quantized, rules=PTQ_RULES)
    pads, convolutions = (PAD, quantized["pad"]), (quantized["conv"], quantized["conv_to_float"])
    fresh, nodes = Names(graph), list[Node]()
    images = dict[str, _Image]()  # maps padded values, also quantized or transposed ones, to the same without paddings
    for node in graph.nodes:
        image = images.get(node.inputs[0]) if node.inputs else None
        if node.operator in pads and _only_surrounds(config := node.options["config"]):
            before = image or _Image(node.inputs[0], ((0, 0),) * len(config), ())
            padding = _sum(before.padding, [(int(low), int(high)) for low, high, _ in config])
            images[node.outputs[0]] = _Image(before.name, padding, (*before.source, *node.source))
        elif image and (_keeps_zeros(node, graph.constants) or "permutation" in node.options):
            name, order = fresh.next(node.outputs[0]), node.options.get("permutation", range(len(image.padding)))
            nodes.append(node.replace(inputs=(image.name, *node.inputs[1:]), outputs=(name,)))
            images[node.outputs[0]] = image._replace(name=name, padding=tuple(image.padding[axis] for axis in order))
        elif image and node.operator in convolutions and not any(map(any, image.padding[:2])):
            options = {**node.options, "padding": _sum(node.options["padding"], image.padding[2:])}
            inputs, source = (image.name, *node.inputs[1:]), (*image.source, *node.source)
            node = node.replace(inputs=inputs, options=options, source=source)
        nodes.append(node)
    return without_dead(graph.replace(nodes=tuple(nodes)))


def _only_surrounds(config: Sequence[tuple[int, int, int]]) -> bool:
    """Whether a padding removes no elements, and adds none between elements; False if this depends on sizes."""
    is_known = all(is_integer(size) for sizes in config for size in sizes)
    return is_known and all(low >= 0 and high >= 0 and gap == 0 for low, high, gap in config)


def _keeps_zeros(node: Node, constants: Mapping[str, Any]) -> bool:
    """Whether a node quantizes 0 to its zero point: 0 divided by a scale of 0 is NaN."""
    scale = constants.get(node.inputs[1]) if node.operator.kind == "quantize_linear" else None
    return scale is not None and bool(np.all(np.abs(scale) >= SMALLEST_NORMAL))


def _sum(paddings: Pairs, more: Sequence[tuple[int, int]]) -> Pairs:
    return tuple((low + a, high + b) for (low, high), (a, b) in zip(paddings, more, strict=True))
