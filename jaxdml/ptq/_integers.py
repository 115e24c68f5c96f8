"""From a graph with quantize and dequantize nodes to quantized operators and their parameters."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxdml._graph.fuse import fused
from jaxdml._graph.graph import Graph, Node
from jaxdml._graph.remarks import MOVERS
from jaxdml._graph.weights import with_weights
from jaxdml.errors import PtqError
from jaxdml.ptq._fusing import PTQ_RULES
from jaxdml.ptq._loops import LAYERS, Body
from jaxdml.ptq._operators import DEQUANTIZE, INTEGERS, QUANTIZE
from jaxdml.ptq._plan import JOINS, REGION


def on_integers(graph: Graph) -> tuple[Graph, dict[str, Any]]:
    """The graph with quantized operators, and its parameters by name.

    A scan's body is fused once for each layer; the parameters of all layers are stacked.
    """
    nodes, params = [], dict[str, Any]()
    result, own = with_weights(fused(graph, INTEGERS, rules=PTQ_RULES))
    for node in result.nodes:
        if node.operator is LAYERS:
            node, stacked = _fused_body(node, {**result.constants, **own})
            params |= stacked
        nodes.append(node)
    nodes = list(_whole(result.replace(nodes=tuple(nodes))).nodes)
    read = {name for node in nodes for name in node.inputs} | set(result.outputs)
    return result.replace(nodes=tuple(nodes)), {name: own[name] for name in own if name in read} | params


def _whole(graph: Graph) -> Graph:
    """The graph whose integers that several nodes read are made once.

    XLA would fuse the rounding into each reader, and keep the floats before it, four times the bytes, for all of them.
    """
    readers = graph.consumers()
    nodes = []
    for node in graph.nodes:
        if node.operator.is_quantized and len(readers.get(node.outputs[0], [])) > 1:
            function = node.operator.function
            barred = replace(node.operator, function=lambda *x, of=function, **k: lax.optimization_barrier(of(*x, **k)))
            node = node.replace(operator=barred)
        nodes.append(node)
    return graph.replace(nodes=tuple(nodes))


def _fused_body(node: Node, constants: Mapping[str, Any]) -> tuple[Node, dict[str, Any]]:
    body: Body = node.options["body"]
    data, names = node.inputs[: len(body.inputs)], node.inputs[len(body.inputs) :]
    arrays = jax.device_get([constants[name] for name in names])
    layers = []
    for number in range(len(arrays[0])):
        given = {inner: array[number] for inner, array in zip(body.stacked, arrays, strict=True)}
        graph, params = with_weights(
            fused(Graph(body.nodes, body.inputs, body.outputs, given), INTEGERS, rules=PTQ_RULES)
        )
        layers.append((graph, {**graph.constants, **params}))
    first = layers[0][0]
    for number, (graph, _) in enumerate(layers):
        if [_told(each) for each in graph.nodes] != [_told(each) for each in first.nodes]:
            text = "its ranges make other operators of it; write the layers as a Python loop"
            raise PtqError(f"layer {number} of {node.name} cannot be scanned with the others: {text}")
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *(params for _, params in layers))
    scan = node.outputs[0]
    first = _whole(first)
    fused_body = Body(first.nodes, body.inputs, first.outputs, tuple(stacked), body.data)
    inputs = (*data, *(f"{scan}/{name}" for name in stacked))
    node = node.replace(inputs=inputs, options={**node.options, "body": fused_body})
    return node, {f"{scan}/{name}": value for name, value in stacked.items()}


def _told(node: Node) -> tuple[Any, ...]:
    return node.operator.name, node.inputs, node.outputs, dict(node.options)


def explained(graph: Graph) -> Graph:
    """The graph for a table: each node in floats says why, and the nodes of a body follow their scan."""
    nodes = []
    for node in graph.nodes:
        body: Body | None = node.options.get("body")
        if body is not None:
            nodes += [node.replace(on="", remark="its body follows, planned once for all layers")]
            nodes += explained(graph.replace(nodes=body.nodes)).nodes
        elif node.on == "floats" and node.operator.kind in (*JOINS, *MOVERS, *REGION):
            nodes.append(node.replace(remark="its inputs are floats, or floats alone read it"))
        elif node.on == "floats" and not node.remark and node.operator not in (QUANTIZE, DEQUANTIZE):
            nodes.append(node.replace(remark=f"there is no quantized {node.operator.name}"))
        else:
            nodes.append(node)
    return graph.replace(nodes=tuple(nodes))
