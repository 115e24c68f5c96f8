"""Joins products of one value, such as those of an LSTM's gates, into one product of all their weights.

In the steps of a loop, which have few rows, calling a kernel takes longer than computing a small product.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxdml._graph.graph import Graph, Names, Node, Operator, without_dead
from jaxdml.ptq._integers.operators import DYNAMIC

Constants = Mapping[str, np.ndarray]
# Positions of the weights [K, N], and of their parameters, which have one element, or one for each column.
WEIGHTS = {"float_product": (1, 3, 5, 6), "dynamic_product": (1, 2, 3)}
MOST_WEIGHTS = 2**16  # of each product; computing a larger one takes longer than calling a kernel
NO_BIAS = np.full((), -0.0, np.float32)  # x + -0.0 is x, also for zeros of either sign


def with_joint_products(graph: Graph) -> Graph:
    """The graph with one node for all products of one value by constant weights. The bits stay the same."""
    groups = dict[Any, list[Node]]()
    for node in graph.nodes:
        if _can_be_joined(node, graph.constants):
            groups.setdefault(_key(node, graph.constants), []).append(node)
    fresh, constants, replaced = Names(graph), dict(graph.constants), dict[Node, list[Node]]()
    for nodes in (each for each in groups.values() if len(each) > 1):
        joint, added = _joint(nodes, graph.constants, fresh)
        constants |= added
        replaced |= {node: list[Node]() for node in nodes[1:]} | {nodes[0]: joint}
    nodes = [each for node in graph.nodes for each in replaced.get(node, [node])]
    return without_dead(graph.replace(nodes=tuple(nodes), constants=constants))


def _can_be_joined(node: Node, constants: Constants) -> bool:
    """Whether a node is a product by constant weights."""
    if node.operator.name != DYNAMIC.name or not constants.keys() >= set(filter(None, _of_weights(node))):
        return False
    return constants[_of_weights(node)[0]].size <= MOST_WEIGHTS


def _of_weights(node: Node) -> list[str]:
    """The names of the weights and their parameters, "" for an absent one."""
    inputs = _with_bias(node)
    return [inputs[place] for place in WEIGHTS[node.operator.kind or ""]]


def _with_bias(node: Node) -> list[str]:
    """The node's inputs, with "" for an absent bias."""
    count = WEIGHTS[node.operator.kind or ""][-1] + 1
    return [*node.inputs, *[""] * (count - len(node.inputs))]


def _key(node: Node, constants: Constants) -> Any:
    """What the products of a joint product have in common. Options follow from the rank of the weights."""
    places = WEIGHTS[node.operator.kind or ""]
    others = (name for place, name in enumerate(node.inputs) if place not in places)
    return node.operator.kind, *others, constants[node.inputs[places[0]]].shape[:-1]


def _joint(nodes: Sequence[Node], constants: Constants, fresh: Names) -> tuple[list[Node], dict[str, np.ndarray]]:
    """A node that computes all products, the nodes that take its columns apart, and its constants."""
    first, places, of_nodes = nodes[0], WEIGHTS[nodes[0].operator.kind or ""], [*map(_of_weights, nodes)]
    columns = [constants[names[0]].shape[-1] for names in of_nodes]
    inputs, added = _with_bias(first), dict[str, np.ndarray]()
    for place, names in zip(places, zip(*of_nodes, strict=True), strict=True):
        if any(names):
            arrays = [constants[name] if name else NO_BIAS for name in names]
            if place != places[0]:
                arrays = [np.broadcast_to(x.reshape(-1), size) for x, size in zip(arrays, columns, strict=True)]
            inputs[place] = fresh.next(f"{next(filter(None, names))}:joint")
            added[inputs[place]] = np.concatenate(arrays, -1)
    joint = first.replace(
        inputs=tuple(inputs),
        outputs=(fresh.next(f"{first.outputs[0]}:joint"),),
        name=f"{first.name} ... {nodes[-1].name}",
        source=tuple(word for node in nodes for word in node.source),
        remark="; ".join(dict.fromkeys(node.remark for node in nodes if node.remark)),
    )
    parts = [
        Node(COLUMNS, joint.outputs, node.outputs, {"start": end - size, "end": end}, node.name)
        for node, size, end in zip(nodes, columns, itertools.accumulate(columns), strict=True)
    ]
    return [joint, *parts], added


COLUMNS = Operator("slice", lambda x, *, start, end: x[..., start:end], kind="mover", only_selects=True)
