"""Fusion rules of ptq's operators, in addition to the rules for all graphs."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from jaxdml._graph.graph import Node
from jaxdml._graph.grids import Grids
from jaxdml._graph.rules import (
    RULES,
    Group,
    Kept,
    added_bias_of,
    bias_of,
    input_of,
    output_of,
    triple_of,
    unary,
)

B_SCALE = {"dot": 4, "dot_to_float": 3}  # position of b's scale among the inputs of a product


def _convolution(node: Node, grids: Grids) -> Group:
    """A quantized convolution, or one that returns floats if no node quantizes its result."""
    try:
        return RULES["conv"](node, grids)
    except Kept:
        x, w = input_of(grids, node.inputs[0]), input_of(grids, node.inputs[1], axis=0)
        bias = bias_of(grids, node.inputs[2] if len(node.inputs) > 2 else "", x, w)
        return Group("conv_to_float", (*triple_of(grids, x), *triple_of(grids, w), *bias), node, ())


def _product(node: Node, grids: Grids) -> Group:
    """A quantized product, with the factor alpha folded into b's scale, and with its bias if it returns floats."""
    group, b = RULES["dot"](node, grids), input_of(grids, node.inputs[1], axis=-1)
    if group.kind == "dot_to_float":
        added = added_bias_of(node, b, grids)
        if added is not None:
            addition, bias = added
            group = replace(group, inputs=(*group.inputs, bias), behind=(addition,))
    alpha, scale = node.options.get("alpha", 1.0), grids.constant(b.scale)
    if alpha == 1.0 or scale is None:
        return replace(group, options={})
    inputs = list(group.inputs)
    inputs[B_SCALE[group.kind]] = grids.add(f"{b.scale}_times", (scale * np.float32(alpha)).astype(np.float32))
    return replace(group, inputs=tuple(inputs), options={})


def _padding(node: Node, grids: Grids) -> Group:
    """A padding with zeros, which are the zero point."""
    x = input_of(grids, node.inputs[0])
    y, reader = output_of(grids, node, x)
    if not grids.are_equal(x, y):
        raise Kept("its input and result have other scales")
    return Group("pad", (x.value, grids.zero_point_of(x)), node, (reader,))


PTQ_RULES: Mapping[str, Callable[[Node, Grids], Group]] = {
    **RULES,
    "conv": _convolution,
    "dot": _product,
    "mean": unary,
    "pad": _padding,
    "window_mean": unary,
}
