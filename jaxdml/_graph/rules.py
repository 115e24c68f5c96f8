"""Fusion rules: which operators between dequantize and quantize nodes become quantized, and which stay in floats."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxdml._graph.graph import Node, Operator
from jaxdml._graph.grids import BYTES, NIBBLES, WORDS, Grid, Grids
from jaxdml._graph.operands import (
    StaysFloat,
    added_bias_of,
    bias_of,
    factor_of,
    float_bias_of,
    grid_of,
    input_of,
    operand_of,
    output_of,
    parameters_of,
    triple_of,
    wide_input_of,
)

SMALLEST_BLOCK = 16  # the smallest block of a matrix that products take


@dataclass(frozen=True)
class Fusion:
    """Nodes that one quantized operator replaces.

    Attributes:
      kind: kind of the quantized operator. If no quantized operator has this kind, the float operator itself runs on
        integers.
      inputs: inputs of the quantized operator.
      of: the node of the float operator that is fused.
      behind: the nodes after `of` that are also replaced, in order.
      options: options of the quantized operator; None means the options of the float operator.
    """

    kind: str
    inputs: tuple[str, ...]
    of: Node
    behind: tuple[Node, ...]
    options: Mapping[str, Any] | None = None

    def node(self, quantized: Mapping[str, Operator], grids: Grids) -> Node:
        """The node of the quantized operator."""
        last = self.behind[-1] if self.behind else self.of
        makers = (grids.producer(name) for name in self.of.inputs if name not in self.inputs)
        before = [maker for maker in makers if maker is not None and maker.operator.kind == "dequantize_linear"]
        source = tuple(word for node in (*before, self.of, *self.behind) for word in node.source)
        options = self.of.options if self.options is None else self.options
        remark = self.of.remark
        operator = quantized.get(self.kind) or dataclasses.replace(self.of.operator, is_quantized=True)
        return Node(operator, self.inputs, last.outputs[:1], options, self.of.name, source, remark)


# Rules ---------------------------------------------------------------------------------------------------------------


def unary(node: Node, grids: Grids) -> Fusion:
    x = input_of(grids, node.inputs[0])
    y, reader = output_of(grids, node, x)
    if any(dilation != 1 for dilation in node.options.get("dilations", ())):
        raise StaysFloat("there is no quantized pooling with dilations")
    return Fusion(str(node.operator.kind), (*triple_of(grids, x), *parameters_of(grids, y)), node, (reader,))


def _softmax(node: Node, grids: Grids) -> Fusion:
    fusion = unary(node, grids)
    scale, _ = grids.numbers(input_of(grids, node.inputs[0]))
    if not scale > 0:
        raise StaysFloat(f"{node.inputs[0]} has the scale {scale:g}, QLinearSoftmax takes a positive scale")
    return fusion


def _binary(node: Node, grids: Grids) -> Fusion:
    a, b = (input_of(grids, name) for name in node.inputs)
    y, reader = output_of(grids, node, a, b)
    inputs = (*triple_of(grids, a), *triple_of(grids, b), *parameters_of(grids, y))
    return Fusion(str(node.operator.kind), inputs, node, (reader,))


def _concat(node: Node, grids: Grids) -> Fusion:
    xs = [input_of(grids, name) for name in node.inputs]
    y, reader = output_of(grids, node, *xs)
    inputs = (*parameters_of(grids, y), *(name for x in xs for name in triple_of(grids, x)))
    return Fusion("concat", inputs, node, (reader,))


def _convolution(node: Node, grids: Grids) -> Fusion:
    wide = wide_input_of(grids, node, lambda shape: math.prod(shape[1:]))
    x, w = wide or input_of(grids, node.inputs[0]), factor_of(grids, node.inputs[1], axis=0)
    result = None if wide else output_of(grids, node, x)
    dimensions = _dimensions(node, grids.constant(w.value))
    if dimensions is None:
        raise StaysFloat("its images have no known rank, and quantized convolutions take at most 2 dimensions")
    if dimensions > 2:
        raise StaysFloat("its images have more than 2 dimensions")
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    if result is None:
        bias = float_bias_of(grids, name, np.asarray(grids.constant(w.value)).shape[0])
        return Fusion("conv_to_float", (*triple_of(grids, x), *triple_of(grids, w), *bias), node, ())
    y, reader = result
    bias = bias_of(grids, name, x, w)
    inputs = (*triple_of(grids, x), *triple_of(grids, w), *parameters_of(grids, y), *bias)
    return Fusion("conv", inputs, node, (reader,))


def _dimensions(convolution: Node, filter: np.ndarray | None) -> int | None:
    """The number of spatial dimensions of a convolution; None if neither the filter nor the options give it."""
    if filter is not None:
        return filter.ndim - 2
    options = (convolution.options.get(word) for word in ("kernel_shape", "strides", "dilations", "padding"))
    return next((len(option) for option in options if isinstance(option, tuple)), None)


def _product(node: Node, grids: Grids) -> Fusion:
    """A quantized product, with a later addition as its bias. It returns floats if no node quantizes its result.

    A product with a matrix in blocks takes and returns floats.
    """
    matrix_in_blocks = _in_blocks(grids, node.inputs[1], axis=0)
    if matrix_in_blocks is not None:
        added = added_bias_of(node, matrix_in_blocks, grids)
        bias, behind = ("", ()) if added is None else (added[1], added[:1])
        return _product_of_blocks(node, matrix_in_blocks, bias, behind, trans_b=False)
    _check_has_no_blocks(grids, node.inputs[1])
    wide, right = wide_input_of(grids, node, lambda shape: shape[-2:][0]), grids.dequantized(node.inputs[1])
    if right is not None and grids.constant(right.value) is None:
        a, b = operand_of(grids, node.inputs[0]), operand_of(grids, node.inputs[1], axis=-1)
    else:
        a, b = wide or factor_of(grids, node.inputs[0]), factor_of(grids, node.inputs[1], axis=-1)
    matrix = grids.constant(b.value)
    if not grids.is_one_number(b) and matrix is not None and matrix.ndim == 1:
        raise StaysFloat(f"{node.inputs[1]} is a vector with a scale for each element")
    if a.dtype in WORDS or b.dtype in WORDS:
        return _float_product(grids, node, a, b)
    added = added_bias_of(node, b, grids)
    if added is not None:
        addition, bias = added
        try:
            y, reader = output_of(grids, addition, a)
        except StaysFloat:
            pass
        else:
            inputs = (*triple_of(grids, a), *triple_of(grids, b), *bias_of(grids, bias, a, b), *parameters_of(grids, y))
            return Fusion("gemm", inputs, node, (addition, reader), {})
    try:
        y, reader = output_of(grids, node, a)
    except StaysFloat:
        return _float_product(grids, node, a, b)
    return Fusion("dot", (*triple_of(grids, a), *triple_of(grids, b), *parameters_of(grids, y)), node, (reader,))


def _float_product(
    grids: Grids, node: Node, a: Grid, b: Grid, *bias: str, options: Mapping[str, Any] | None = None
) -> Fusion:
    """A product of integers that returns floats; bias is a float constant [columns]."""
    inputs = (a.value, b.value, a.scale, b.scale, grids.zero_point_of(a), grids.zero_point_of(b), *bias)
    return Fusion("dot_to_float", inputs, node, (), options)


def _in_blocks(grids: Grids, name: str, axis: int) -> Grid | None:
    """The grid of a constant matrix of 4 or 8 bits with a scale for each block along an axis; None for other values."""
    grid = grids.dequantized(name)
    matrix = None if grid is None else grids.constant(grid.value)
    size = 0 if grid is None else grid.node.options.get("block_size", 0)
    if grid is None or matrix is None or matrix.ndim != 2 or grid.dtype not in BYTES + NIBBLES or not size:
        return None
    shape = tuple(-(-each // size) if i == axis else each for i, each in enumerate(matrix.shape))
    parameters = [x for each in (grid.scale, grid.zero_point) if (x := grids.constant(each)) is not None]
    fits = grid.axis in (axis, axis - 2) and all(x.shape == shape for x in parameters)
    return grid if fits and matrix.size else None


def _check_has_no_blocks(grids: Grids, name: str) -> None:
    """Raises the reason why products do not take an operand in blocks.

    A later check would give another reason: that the other operand is a float.
    """
    maker = grids.producer(name)
    if maker is not None and maker.options.get("block_size"):
        grid_of(grids, name, axis=None)


def _product_of_blocks(node: Node, b: Grid, bias: str, behind: tuple[Node, ...], *, trans_b: bool) -> Fusion:
    size = b.node.options["block_size"]
    if size % SMALLEST_BLOCK:
        text = f"has blocks of {size}, but products take multiples of {SMALLEST_BLOCK}"
        raise StaysFloat(f"{node.inputs[1]} {text}")
    inputs = (node.inputs[0], b.value, b.scale, b.zero_point, bias)
    return Fusion("dot_of_blocks", inputs, node, behind, {"precision": "int22", "block_size": size, "trans_b": trans_b})


def _packed_product(node: Node, grids: Grids) -> Fusion:
    """A product with a constant matrix in blocks, in the format of MatMulNBits; the zero points must be integers."""
    _, b, scales, zero_points, g_idx, _ = node.inputs
    if any(name and grids.constant(name) is None for name in (b, scales, zero_points, g_idx)):
        raise StaysFloat("its weights are computed")
    offsets = grids.constant(zero_points)
    if offsets is not None and offsets.dtype != np.uint8:
        most = 2 ** node.options["bits"] - 1
        if not np.all((offsets >= 0) & (offsets <= most) & (offsets == np.floor(offsets))):
            raise StaysFloat(f"its zero points are not integers from 0 to {most}")
    return Fusion("packed_dot", node.inputs, node, ())


def _gemm(node: Node, grids: Grids) -> Fusion:
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    alpha, beta = (node.options.get(word, 1.0) for word in ("alpha", "beta"))
    trans_b = bool(node.options.get("trans_b"))
    matrix_in_blocks = _in_blocks(grids, node.inputs[1], axis=int(trans_b))
    if matrix_in_blocks is not None:
        given = node.options.get("trans_a", 0), alpha, beta if name else 1
        if given != (0, 1, 1):
            words = "transA is {:g}, alpha is {:g} and beta is {:g}".format(*given)
            raise StaysFloat(f"{words}, but products with a matrix in blocks take 0, 1 and 1")
        added, scale = grids.constant(name), grids.constant(matrix_in_blocks.scale)
        columns = None if scale is None else scale.shape[0 if trans_b else 1]
        if name and (added is None or added.dtype != np.float32 or added.shape != (columns,)):
            raise StaysFloat("its bias is not a constant with a float for each column")
        return _product_of_blocks(node, matrix_in_blocks, name, (), trans_b=trans_b)
    _check_has_no_blocks(grids, node.inputs[1])
    if wide := wide_input_of(grids, node, lambda shape: shape[int(trans_b)]):
        return _wide_gemm(grids, node, wide)
    a = factor_of(grids, node.inputs[0])
    b = factor_of(grids, node.inputs[1], axis=0 if trans_b else 1)
    if name and (alpha, beta) != (1, 1):
        raise StaysFloat(f"alpha is {alpha:g} and beta is {beta:g}, both must be 1 if there is a bias")
    of_y: tuple[str, ...] = ()
    behind: tuple[Node, ...] = ()
    try:
        y, reader = output_of(grids, node, a)
    except StaysFloat:
        if name and grids.dequantized(name) is None:
            raise
    else:
        of_y, behind = parameters_of(grids, y), (reader,)
    bias = bias_of(grids, name, a, b) or ("",)
    options = {word: value for word, value in node.options.items() if word != "beta"}
    return Fusion("gemm", (*triple_of(grids, a), *triple_of(grids, b), *bias, *of_y), node, behind, options)


def _wide_gemm(grids: Grids, node: Node, a: Grid) -> Fusion:
    """The product of 16-bit `a` and an 8-bit constant, as floats, with an optional bias for each column."""
    name, trans_b = node.inputs[2] if len(node.inputs) > 2 else "", bool(node.options.get("trans_b"))
    given = node.options.get("trans_a", 0), node.options.get("alpha", 1.0), node.options.get("beta", 1.0) if name else 1
    if given != (0, 1, 1):
        words = "transA is {:g}, alpha is {:g} and beta is {:g}".format(*given)
        raise StaysFloat(f"{words}, but products of 16 by 8 bits take 0, 1 and 1")
    b = factor_of(grids, node.inputs[1], axis=0 if trans_b else 1)
    matrix = np.asarray(grids.constant(b.value))
    matrix = matrix.T if trans_b else matrix
    bias = float_bias_of(grids, name, matrix.shape[1])
    b = dataclasses.replace(b, value=grids.add(f"{b.value}_transposed", matrix)) if trans_b else b
    return _float_product(grids, node, a, b, *bias, options={})


def _padding(node: Node, grids: Grids) -> Fusion:
    """Padding with zeros, which the zero point represents."""
    x, (pads, fill, *axes) = input_of(grids, node.inputs[0]), (*node.inputs[1:], "")[: max(len(node.inputs) - 1, 2)]
    value = grids.constant(fill)
    if node.options.get("mode", "constant") != "constant" or (fill and (value is None or value.any())):
        raise StaysFloat("it pads with values other than a constant 0")
    y, reader = output_of(grids, node, x)
    if not grids.are_equal(x, y):
        raise StaysFloat("its input and its result have different scales")
    return Fusion("pad", (x.value, pads, grids.zero_point_of(x), *axes), node, (reader,))


RULES: Mapping[str, Callable[[Node, Grids], Fusion]] = {
    "add": _binary,
    "average_pool": unary,
    "concat": _concat,
    "conv": _convolution,
    "dot": _product,
    "gemm": _gemm,
    "global_average_pool": unary,
    "leaky_relu": unary,
    "mul": _binary,
    "packed_dot": _packed_product,
    "pad": _padding,
    "sigmoid": unary,
    "softmax": _softmax,
    "softmax_of_rest": _softmax,
}
