"""Finds which nodes of a fused graph compute on quantized integers, and which read float64."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdml._graph.graph import MOVERS, OF_INDICES, Graph, Node

# Kinds of quantized operators that quantize their first input.
TAKE_FLOATS = ("dynamic_product", "dynamic_lstm", "product_of_blocks")
# Operators of ONNX that compute integers exactly, though not floats. Others, such as ReduceL2, compute floats inside.
EXACT_ON_INTEGERS = ("CumProd", "CumSum", "ReduceProd", "ReduceSum", "TopK")


def with_places(graph: Graph) -> Graph:
    """Sets `on` for each node: "integers", "floats", or "" for shapes and indices."""
    of_shapes = {name for name, value in graph.constants.items() if value.dtype.kind in "iub"}
    integers = {name for name, value in graph.constants.items() if _may_be_quantized(value)}
    for node in reversed(graph.nodes):
        is_read = node.operator.kind in MOVERS and not integers.isdisjoint(filter(None, node.outputs))
        takes_integers = node.operator.is_quantized and node.operator.kind not in TAKE_FLOATS
        if is_read or takes_integers or node.operator.kind == "dequantize_linear":
            integers.add(node.inputs[0])
    nodes = []
    for node in graph.nodes:
        on, inputs = node.on or "floats", list(filter(None, node.inputs))
        if node.operator.is_quantized or (node.operator.kind in (*MOVERS, "pad") and node.inputs[0] in integers):
            on = "integers"
        elif node.operator.gives_shape or _casts(node, integers) or _is_of_indices(node, inputs, of_shapes):
            on = ""
        if (on == "" or node.operator.kind == "order") and not _may_give_floats(node):
            of_shapes.update(node.outputs)
        elif node.operator.kind == "quantize_linear" or (on == "integers" and not _gives_floats(node)):
            integers.update(node.outputs)
        nodes.append(node.replace(on=on))
    return graph.replace(nodes=tuple(nodes))


def with_float64(graph: Graph, types: Mapping[str, str | None]) -> Graph:
    """Sets `reads_float64` for each node.

    Args:
      graph: the graph.
      types: the types of inputs and values by name. A result of unknown type has its node's `dtype`; without a `dtype`,
        it is float64 if the node reads float64, unless the node gives bool.
    """
    float64 = {name for name in graph.inputs if types.get(name) == "float64"}
    float64 |= {name for name, value in graph.constants.items() if value.dtype == np.float64}
    nodes = []
    for node in graph.nodes:
        typed_by = node.operator.typed_by
        reads = not float64.isdisjoint(node.inputs if typed_by is None else [node.inputs[index] for index in typed_by])
        of_result = node.options.get("dtype")
        is_given = isinstance(of_result, np.dtype)
        gives = of_result == np.float64 if is_given else reads and not node.operator.gives_bool
        float64.update(name for name in node.outputs if (types.get(name) or (gives and "float64")) == "float64")
        nodes.append(node.replace(reads_float64=reads))
    return graph.replace(nodes=tuple(nodes))


def _may_be_quantized(value: np.ndarray) -> bool:
    return value.dtype.itemsize <= 2 and bool(jnp.issubdtype(value.dtype, jnp.integer))


def _gives_floats(node: Node) -> bool:
    """Whether a node on integers returns floats, as a product without a scale for the result does."""
    kind = node.operator.kind
    return kind in ("float_product", *TAKE_FLOATS) or (kind == "quantized_gemm" and not any(node.inputs[7:]))


def _is_of_indices(node: Node, inputs: list[str], of_shapes: set[str]) -> bool:
    """Whether a node computes shapes and indices from others; for an equation, only its kind says so."""
    if "equation" in node.options or node.operator.kind in OF_INDICES:
        return node.operator.kind in OF_INDICES
    is_exact = node.operator.is_exact or node.operator.kind in MOVERS or node.operator.name in EXACT_ON_INTEGERS
    return bool(inputs) and of_shapes.issuperset(inputs) and is_exact


def _may_give_floats(node: Node) -> bool:
    """Whether a node on integers, or on shapes, may return floats."""
    match node.operator.name:
        case "Cast":
            return _is_float(node.options["dtype"])
        case "ConstantOfShape":
            return _is_float(node.options["value"].dtype)
        case name:
            return name == "EyeLike"  # the type of its result may be that of a value whose type is unknown


def _is_float(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def _casts(node: Node, integers: set[str]) -> bool:
    """Whether a node casts quantized integers to integers that serve as indices, such as those of a look-up."""
    if node.operator.kind != "cast" or node.inputs[0] not in integers:
        return False
    return bool(jnp.issubdtype(node.options["dtype"], jnp.integer))
