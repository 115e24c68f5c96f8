"""Replaces operators between dequantize and quantize nodes by quantized operators, and prepares their weights."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._graph.graph import MOVERS, Graph, Node
from jaxdml._graph.weights import with_weights
from jaxdml.ptq._choose.plan import FLOAT_SUM
from jaxdml.ptq._integers.joint import with_joint_products
from jaxdml.ptq._integers.operators import INTEGERS
from jaxdml.ptq._integers.paddings import fused_with_paddings
from jaxdml.ptq._trace.scans import LOOP, body_of, each_layer, stacked, with_other_body


def on_integers(
    graph: Graph, numerics: str, known: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Graph, dict[str, Any]]:
    """The graph with quantized operators, and a dict of its parameters; parameters in scans are stacked over layers.

    Single numbers, such as scales, are constants of the program, except numbers that differ between the layers of a
    scan.

    Args:
      graph: the graph with quantize and dequantize nodes.
      numerics: a key of `INTEGERS`, which selects the formulas of the operators.
      known: maps names to parameters that need not be computed again.

    Raises:
      PtqError: if the layers of a scan become different operators.
    """
    result, params = _with_params(graph, numerics, known)
    nodes, of_scans = list[Node](), dict[str, Any]()
    for node in result.nodes:
        if node.operator is LOOP:
            body = body_of(node, {**result.constants, **params})
            bodies = each_layer(body)
            layers = [_with_params(each, numerics, in_steps=len(bodies) == 1) for each in bodies]
            graphs = [graph.replace(constants={**graph.constants, **own}) for graph, own in layers]
            node, constants = with_other_body(node, _with_barriers(stacked(graphs, node.name)))
            of_scans |= constants if len(layers) == 1 else jax.tree.map(jnp.asarray, constants)
        nodes.append(node)
    numbers = {name: x for name, x in of_scans.items() if isinstance(x, np.ndarray)}
    result = _with_barriers(result.replace(nodes=tuple(nodes), constants={**result.constants, **numbers}))
    read = {name for node in result.nodes for name in node.inputs} | set(result.outputs)
    params |= {name: x for name, x in of_scans.items() if name not in numbers}
    return result, {name: x for name, x in params.items() if name in read}


def _with_params(
    graph: Graph, numerics: str, known: Mapping[str, Any] = MappingProxyType({}), *, in_steps: bool = False
) -> tuple[Graph, dict[str, Any]]:
    result = fused_with_paddings(graph, INTEGERS[numerics])
    return with_weights(with_joint_products(result) if in_steps else result, known=known)


def _with_barriers(graph: Graph) -> Graph:
    """The graph with a barrier after quantized operators that several nodes read.

    Without a barrier, XLA fuses the rounding into each reader, and stores the floats instead of the integers, which
    takes four times the bytes.
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


def explained(graph: Graph) -> Graph:
    """The graph to print as a table: the nodes of a body follow their scan.

    Movers and sums that run on integers lose the remarks that say why they were planned in floats.
    """
    nodes = []
    for node in graph.nodes:
        body = node.options.get("body")
        if body is None:
            was_fused = node.on == "integers" and (node.operator.kind in MOVERS or node.remark == FLOAT_SUM)
            nodes.append(node.replace(remark="") if was_fused else node)
        else:
            nodes += [node.replace(on="", remark="its body follows, and runs once for each layer or step")]
            nodes += explained(graph.replace(nodes=body.nodes)).nodes
    return graph.replace(nodes=tuple(nodes))
