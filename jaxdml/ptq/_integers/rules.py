"""Fusion rules of ptq's operators, in addition to the rules for all graphs."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from jaxdml._graph.graph import Node
from jaxdml._graph.grids import WORDS, Grids
from jaxdml._graph.operands import StaysFloat, added_bias_of, bias_of, grid_of, input_of, output_of, triple_of
from jaxdml._graph.rules import RULES, Fusion, unary

READS_WIDE = "reads 16 bits"
B_SCALE = {"dot": 4, "dot_to_float": 3}  # position of the scale of `b` among the inputs of a product


def _convolution(node: Node, grids: Grids) -> Fusion:
    """A quantized convolution, or a convolution that returns floats if no node quantizes its result."""
    is_wide = _is_wide(grids, node)
    try:
        return _noted(RULES["conv"](node, grids), is_wide)
    except StaysFloat:
        if is_wide:
            raise
        x, w = input_of(grids, node.inputs[0]), input_of(grids, node.inputs[1], axis=0)
        bias = bias_of(grids, node.inputs[2] if len(node.inputs) > 2 else "", x, w)
        return Fusion("conv_to_float", (*triple_of(grids, x), *triple_of(grids, w), *bias), node, ())


def _product(node: Node, grids: Grids) -> Fusion:
    """A quantized product, with alpha folded into the scale of `b`, and with a bias if the product returns floats.

    A product with weights in blocks takes floats.
    """
    fusion = _noted(RULES["dot"](node, grids), _is_wide(grids, node))
    if fusion.kind == "dot_of_blocks":
        return fusion
    b = grid_of(grids, node.inputs[1], axis=-1)
    if fusion.kind == "dot_to_float":
        added = added_bias_of(node, b, grids)
        if added is not None:
            addition, bias = added
            fusion = replace(fusion, inputs=(*fusion.inputs, bias), behind=(addition,))
    options = {word: node.options[word] for word in ("rows",) if word in node.options}
    alpha, scale = node.options.get("alpha", 1.0), grids.constant(b.scale)
    if alpha == 1.0 or scale is None:
        return replace(fusion, options=options)
    inputs = list(fusion.inputs)
    inputs[B_SCALE[fusion.kind]] = grids.add(f"{b.scale}_times", (scale * np.float32(alpha)).astype(np.float32))
    return replace(fusion, inputs=tuple(inputs), options=options)


def _is_wide(grids: Grids, node: Node) -> bool:
    """Whether a contraction reads a value of 16 bits."""
    found = (grids.dequantized(name) for name in node.inputs[:2])
    return any(grid is not None and grid.dtype in WORDS for grid in found)


def _noted(fusion: Fusion, is_wide: bool) -> Fusion:
    """The fusion; if its node reads 16 bits, a remark says so."""
    remark = "; ".join(filter(None, (READS_WIDE, fusion.of.remark)))
    return replace(fusion, of=fusion.of.replace(remark=remark)) if is_wide else fusion


def _padding(node: Node, grids: Grids) -> Fusion:
    """A padding with zeros, which the zero point represents."""
    x = input_of(grids, node.inputs[0])
    y, reader = output_of(grids, node, x)
    if not grids.are_equal(x, y):
        raise StaysFloat("its input and its result have different scales")
    return Fusion("pad", (x.value, grids.zero_point_of(x)), node, (reader,))


PTQ_RULES: Mapping[str, Callable[[Node, Grids], Fusion]] = {
    **RULES,
    "conv": _convolution,
    "dot": _product,
    "mean": unary,
    "pad": _padding,
    "window_mean": unary,
}
