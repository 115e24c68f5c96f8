"""Finds, for fusion rules, the grids of an operator's inputs and of its result, and its bias."""

from collections.abc import Callable

import numpy as np

from jaxdml._arithmetic.halves import TERMS
from jaxdml._graph.graph import Node
from jaxdml._graph.grids import BYTES, WORDS, Grid, Grids

CONSTANT = "scale that is not a float32 constant"


class StaysFloat(Exception):  # noqa: N818 # a reason, not an error
    """The reason why an operator stays in floats."""


def input_of(grids: Grids, name: str, axis: int | None = None) -> Grid:
    """The grid of an 8-bit input, with one scale, or with one scale for each index along an axis."""
    return _of_8_bits(grid_of(grids, name, axis), name)


def factor_of(grids: Grids, name: str, axis: int | None = None) -> Grid:
    """`input_of` for an operand of a product or convolution, whose 4-bit constants become 8-bit ones."""
    return _of_8_bits(grids.in_bytes(grid_of(grids, name, axis)), name)


def _of_8_bits(grid: Grid, name: str) -> Grid:
    if grid.dtype not in BYTES:
        raise StaysFloat(f"{name} is {grid.dtype}, quantized operators take 8 bits")
    return grid


def grid_of(grids: Grids, name: str, axis: int | None) -> Grid:
    """The grid of a value, with one scale, or with one scale for each index along an axis."""
    maker, grid = grids.producer(name), grids.dequantized(name)
    if maker is None or maker.operator.kind != "dequantize_linear":
        raise StaysFloat(f"{name} is a float")
    if grid is None:
        raise StaysFloat(f"{name} is dequantized with a {CONSTANT}, or without a zero point that gives its type")
    if not grids.is_one_number(grid):
        scale = grids.constant(grid.scale)
        integers = grids.constant(grid.value)
        rank = None if integers is None else integers.ndim
        has_axis = axis is not None and rank and grid.axis % rank == axis % rank
        if not has_axis or scale is None or scale.ndim != 1:
            raise StaysFloat(f"{name} has a scale for each index along axis {grid.axis}, or for each block")
    return grid


def wide_input_of(grids: Grids, node: Node, terms: Callable[[tuple[int, ...]], int]) -> Grid | None:
    """The grid of the first input if it has 16 bits and one scale, and the weights are constants; else None.

    Args:
      grids: the grids.
      node: a product or convolution.
      terms: the number of terms of a sum, given the shape of the weights.

    Raises:
      StaysFloat: if there are too many terms.
    """
    x, w = (grids.dequantized(name) for name in node.inputs[:2])
    weights = None if w is None else grids.constant(w.value)
    if x is None or x.dtype not in WORDS or not grids.is_one_number(x) or weights is None:
        return None
    if (count := terms(weights.shape)) > TERMS:
        limit = f"sums of products of 16-bit and 8-bit integers have at most {TERMS}"
        raise StaysFloat(f"its sums have {count} terms; {limit}")
    return x


def operand_of(grids: Grids, name: str, axis: int | None = None) -> Grid:
    """The grid of an operand of a product of two computed values, with 16 bits and one scale, or with 8 bits."""
    grid = grids.dequantized(name)
    is_wide = grid is not None and grid.dtype in WORDS and grids.is_one_number(grid)
    return grid if grid is not None and is_wide else factor_of(grids, name, axis)


def output_of(grids: Grids, node: Node, *inputs: Grid) -> tuple[Grid, Node]:
    """The grid of a node's quantized result, which must have the type of `inputs`, and the quantize node."""
    reader = grids.only_reader(node)
    if reader is None or reader.operator.kind != "quantize_linear":
        readers = [each.operator.name for each in grids.readers(node.outputs[0])]
        readers += ["an output"] * (node.outputs[0] in grids.graph.outputs)
        raise StaysFloat(f"its result goes to {' and '.join(readers)}, not only to one QuantizeLinear")
    grid = grids.quantized(reader)
    if grid is None:
        raise StaysFloat(f"its result is quantized with a {CONSTANT}")
    if not grids.is_one_number(grid):
        raise StaysFloat("its result is quantized with several scales")
    for each in inputs:
        if each.dtype != grid.dtype:
            raise StaysFloat(f"its result is quantized to {grid.dtype}, but an input is {each.dtype}")
    return grid, reader


def parameters_of(grids: Grids, grid: Grid) -> tuple[str, str]:
    return grid.scale, grids.zero_point_of(grid)


def triple_of(grids: Grids, grid: Grid) -> tuple[str, str, str]:
    return grid.value, *parameters_of(grids, grid)


# Biases ---------------------------------------------------------------------------------------------------------------


def added_bias_of(node: Node, b: Grid, grids: Grids) -> tuple[Node, str] | None:
    """The addition of a float constant [columns] to a product with constant `b`, and the constant's name; else None."""
    addition = grids.only_reader(node)
    if addition is None or addition.operator.kind != "add":
        return None
    other = next(name for name in addition.inputs if name != node.outputs[0])
    value, matrix = grids.constant(other), grids.constant(b.value)
    if value is None or value.dtype != np.float32 or matrix is None or matrix.ndim != 2:
        return None
    return (addition, other) if value.shape == matrix.shape[1:] else None


def float_bias_of(grids: Grids, name: str, channels: int) -> tuple[str, ...]:
    """The bias of a contraction with a 16-bit input: constant floats, or dequantized constants."""
    grid = grids.dequantized(name)
    values = grids.constant(name if grid is None else grid.value)
    if name and (values is None or values.shape != (channels,)):
        raise StaysFloat("its bias is not a constant with a value for each channel")
    return (name,) if name else ()


def bias_of(grids: Grids, name: str, x: Grid, w: Grid) -> tuple[str, ...]:
    """The int32 bias, whose scale is the scale of x times the scale of w; a float bias is quantized with this scale."""
    if not name:
        return ()
    x_scale, w_scale = (np.asarray(grids.constant(grid.scale)).reshape(-1) for grid in (x, w))
    steps = x_scale * w_scale
    if (given := grids.dequantized(name)) is not None:
        integers = grids.constant(given.value)
        is_row = integers is not None and integers.shape[-1:] == (integers.size,)
        # In a row, such as [1, n], a scale belongs to one element. onnxruntime's quantizer may give the axis of size 1.
        bias = grid_of(grids, name, axis=given.axis if is_row else -1)
        scale, offset = grids.constant(bias.scale), grids.constant(bias.zero_point)
        if bias.dtype != np.int32 or (offset is not None and offset.any()):
            raise StaysFloat("its bias is not int32 with zero point 0")
        scale = np.asarray(scale).reshape(-1)
        if not _fit(scale, steps) or np.any(np.abs(scale - steps) > 0.01 * steps):
            raise StaysFloat("the scale of its bias is not the product of the scales of its input and its weights")
        return (bias.value,)
    value = grids.constant(name)
    if value is None or value.dtype != np.float32 or value.ndim != 1:
        raise StaysFloat("its bias is neither dequantized nor a constant with a float for each channel")
    if not _fit(value, steps):
        raise StaysFloat(f"its bias has {value.size} elements for {steps.size} channels")
    with np.errstate(all="ignore"):  # the bias's scale may be 0
        rounded = np.rint(value / steps)
    if not np.all(np.abs(rounded) < 2.0**31):
        raise StaysFloat("its bias does not fit int32")
    return (grids.add(f"{name}_quantized", rounded.astype(np.int32)),)


def _fit(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two vectors have equal lengths, or one of them has a single element."""
    return one.size == other.size or 1 in (one.size, other.size)
