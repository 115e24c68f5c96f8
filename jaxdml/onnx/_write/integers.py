"""Quantized operators: as float operators between DequantizeLinear and QuantizeLinear, or as operators on integers.

Results that float operators read are computed on integers in both forms, and then scaled. Where DirectML's formula
differs from ONNX Runtime's, the second form computes DirectML's formula with float operators. 16-bit operands are
dequantized in both forms, because ONNX has no 16-bit integer products.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdml._graph.graph import Node
from jaxdml._quantized.kinds import DIRECTML
from jaxdml.onnx._write.contractions import by_rows, unmerged
from jaxdml.onnx._write.dimensions import is_known
from jaxdml.onnx._write.elementwise import cast_to
from jaxdml.onnx._write.movers import padded, reshaped, transposed
from jaxdml.onnx._write.reductions import reduced
from jaxdml.onnx._write.table import CannotWrite, integers
from jaxdml.onnx._write.windows import convolution_attributes, pads
from jaxdml.onnx._write.writer import QDQ, Grid, Writer
from jaxdml.ptq._integers.operators import pooled_axes, window_of_images

OTHER_FORM = "write form='qdq', or quantize with numerics='onnxruntime'"
WITHOUT_INT32 = 21  # from this opset on, the DirectML provider dequantizes int32 only by com.microsoft's operator
EXACT_SUM = 2**24 // 255  # the maximum number of 8-bit elements whose sum is exact in float32
EXACT_MEAN = 2**21 // 255  # the maximum number of 8-bit elements whose mean, times their number, rounds to their sum


def grid_of(writer: Writer, node: Node, place: int) -> Grid:
    """The scale and zero point among a node's inputs: the scale at `place`, and the zero point after the scale."""
    scale, zero_point = (np.asarray(writer.constants[name]) for name in node.inputs[place : place + 2])
    return scale.astype(np.float32), zero_point


def _by_floats(writer: Writer) -> bool:
    """Whether sums and means are written as float operators between DequantizeLinear and QuantizeLinear."""
    return writer.options.form == QDQ or writer.options.numerics == DIRECTML


# Weights -------------------------------------------------------------------------------------------------------------


def integer_weights(writer: Writer, name: str, grid: Grid) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Constant weights, their scale and their zero point, as stored in the file."""
    scale, zero_point = grid
    weights = np.asarray(writer.constants[name])
    zero_point = np.broadcast_to(zero_point, scale.shape)
    if writer.options.weights == "uint8" and weights.dtype == np.int8:
        weights, zero_point = ((each.astype(np.int16) + 128).astype(np.uint8) for each in (weights, zero_point))
    return weights, scale, zero_point


def _operand(writer: Writer, node: Node, name: str, grid: Grid) -> tuple[str, str, str]:
    """The names of the second operand of a product or convolution, of its scale, and of its zero point."""
    if name not in writer.constants:
        return (writer.read(name), *writer.parameters(grid))
    weights, scale, zero_point = integer_weights(writer, name, grid)
    layer = writer.name
    return (
        writer.parameter(name, f"{layer}.weight", weights), writer.array(scale, f"{layer}.weight_scale"),
        writer.alone(zero_point, f"{layer}.weight_zero_point"),
    )  # fmt: skip


def _dequantized_operand(writer: Writer, node: Node, name: str, grid: Grid, axis: int) -> str:
    if name not in writer.constants:
        return writer.to_floats(name, grid)
    operand = _operand(writer, node, name, grid)
    return writer.emit("DequantizeLinear", *operand, axis=axis if grid[0].ndim else None)


def _bias(writer: Writer, name: str, scale: np.ndarray) -> str:
    """A dequantized int32 bias, whose scale is that of the sums of products."""
    contrib = np.float32 if writer.options.opset >= WITHOUT_INT32 else None
    bias = writer.parameter(name, f"{writer.name}.bias", np.asarray(writer.constants[name]))
    scales = writer.array(np.broadcast_to(scale, writer.shape(name)), f"{writer.name}.bias_scale")
    return writer.emit("DequantizeLinear", bias, scales, contrib=contrib, axis=0)


def _float_bias(writer: Writer, name: str) -> str:
    """A float32 bias."""
    return writer.parameter(name, f"{writer.name}.bias", np.asarray(writer.constants[name]).astype(np.float32))


def _of_sums(x: Grid, w: Grid) -> np.ndarray:
    """The scale of sums of products."""
    return np.asarray(x[0].reshape(()) * (w[0].reshape(()) if w[0].size == 1 else w[0]), np.float32)


def _scalar_zero_point(zero_point: np.ndarray) -> np.ndarray:
    """The zero point as a scalar, which integer products require."""
    values = np.unique(zero_point)
    if values.size != 1:
        raise CannotWrite("its weights have several zero points")
    return values.reshape(())


# Convolutions and products -------------------------------------------------------------------------------------------


@integers("conv")
def convolution(writer: Writer, node: Node) -> str:
    x, w = node.inputs[0], node.inputs[3]
    of_x, of_w, of_y = (grid_of(writer, node, place) for place in (1, 4, 6))
    attributes = convolution_attributes(node.options)
    bias = node.inputs[8:9]
    if writer.options.form == QDQ:
        y = _float_convolution(writer, node, of_x, of_w, [_bias(writer, name, _of_sums(of_x, of_w)) for name in bias])
        return writer.to_integers(y, of_y, node.outputs[0])
    inputs = [writer.read(x), *writer.parameters(of_x), *_operand(writer, node, w, of_w)]
    inputs += writer.parameters_of(of_y, node.outputs[0])
    inputs += [writer.parameter(name, f"{writer.name}.bias", np.asarray(writer.constants[name])) for name in bias]
    return writer.emit("QLinearConv", *inputs, main=True, **attributes)


def _float_convolution(writer: Writer, node: Node, of_x: Grid, of_w: Grid, bias: Sequence[str]) -> str:
    """A float convolution of dequantized operands; the bias is a value of the file."""
    inputs = [writer.to_floats(node.inputs[0], of_x), _dequantized_operand(writer, node, node.inputs[3], of_w, 0)]
    return writer.emit("Conv", *inputs, *bias, main=True, **convolution_attributes(node.options))


@integers("conv_to_float")
def convolution_to_float(writer: Writer, node: Node) -> str:
    x, w = node.inputs[0], node.inputs[3]
    of_x, of_w = (grid_of(writer, node, place) for place in (1, 4))
    if writer.dtype(x).itemsize > 1:
        return _float_convolution(writer, node, of_x, of_w, [_float_bias(writer, name) for name in node.inputs[6:7]])
    weights, scale, zero_point = integer_weights(writer, w, of_w)
    layer, channels = writer.name, (-1, *(1,) * (writer.rank(x) - 2))
    total = writer.emit(
        "ConvInteger", writer.read(x), writer.parameter(w, f"{layer}.weight", weights),
        writer.parameters(of_x)[1], writer.alone(_scalar_zero_point(zero_point), f"{layer}.weight_zero_point"),
        main=True, **convolution_attributes(node.options),
    )  # fmt: skip
    for name in node.inputs[6:7]:
        bias = np.asarray(writer.constants[name]).reshape(channels)
        total = writer.emit("Add", total, writer.parameter(name, f"{layer}.bias", bias))
    scale = _of_sums(of_x, (scale, zero_point))
    scale = scale.reshape(channels) if scale.ndim else scale
    return writer.emit("Mul", cast_to(writer, total, np.float32), writer.array(scale, f"{layer}.scale"))


def integer_product(
    writer: Writer, node: Node, a: str, a_zero_point: np.ndarray, b: str, of_b: Grid
) -> str:  # fmt: skip
    """The int32 product of a value of the file and an operand of the node."""
    if b in writer.constants:
        weights, _, zero_point = integer_weights(writer, b, of_b)
        right = writer.parameter(b, f"{writer.name}.weight", weights)
    else:
        right, zero_point = writer.read(b), of_b[1]
    zero_points = (
        writer.array(np.asarray(a_zero_point).reshape(()), "zero_point"),
        writer.alone(_scalar_zero_point(zero_point), f"{writer.name}.weight_zero_point"),
    )
    return writer.emit("MatMulInteger", a, right, *zero_points, main=True)


def _float_product(writer: Writer, node: Node, a: tuple[str, Grid], b: tuple[str, Grid]) -> str:
    """A float product of dequantized operands."""
    left = by_rows(writer, node, writer.to_floats(*a))
    right = _dequantized_operand(writer, node, *b, writer.rank(b[0]) - 1)
    return writer.emit("MatMul", left, right, main=True)


def of_each_matrix(grid: Grid, shape: Sequence[int]) -> Grid:
    """Repeats the grid of the columns for each matrix of a stack, as QLinearMatMul requires."""
    scale, zero_point = (np.broadcast_to(each, (*shape[:-2], 1, shape[-1])) for each in grid)
    return scale, zero_point


@integers("dot")
def product(writer: Writer, node: Node) -> str:
    a, b = node.inputs[0], node.inputs[3]
    of_a, of_b, of_y = (grid_of(writer, node, place) for place in (1, 4, 6))
    if writer.options.form == QDQ:
        y = _float_product(writer, node, (a, of_a), (b, of_b))
        return writer.to_integers(unmerged(writer, node, y), of_y, node.outputs[0])
    left = by_rows(writer, node, writer.read(a))
    if b in writer.constants and writer.rank(b) > 2 and of_b[0].ndim:
        of_b = of_each_matrix(of_b, np.shape(writer.constants[b]))
    y = writer.emit(
        "QLinearMatMul", left, *writer.parameters(of_a), *_operand(writer, node, b, of_b),
        *writer.parameters_of(of_y, node.outputs[0]), main=True,
    )  # fmt: skip
    return unmerged(writer, node, y)


@integers("gemm")
def product_with_bias(writer: Writer, node: Node) -> str:
    a, b, bias = node.inputs[0], node.inputs[3], node.inputs[6]
    of_a, of_b, of_y = (grid_of(writer, node, place) for place in (1, 4, 7))
    scale, shape, result = _of_sums(of_a, of_b), writer.shape(a), writer.shape(node.outputs[0])
    if writer.options.form == QDQ:
        rows = math.prod(shape[:-1])
        left = reshaped(writer, writer.to_floats(a, of_a), shape, (rows, shape[-1]))
        right = _dequantized_operand(writer, node, b, of_b, 1)
        y = writer.emit("Gemm", left, right, _bias(writer, bias, scale), main=True)
        return writer.to_integers(reshaped(writer, y, (rows, result[-1]), result), of_y, node.outputs[0])
    total = integer_product(writer, node, writer.read(a), of_a[1], b, of_b)
    total = writer.emit(
        "Add", total, writer.parameter(bias, f"{writer.name}.bias", np.asarray(writer.constants[bias]))
    )  # fmt: skip
    steps = np.asarray(scale / of_y[0].reshape(()), np.float32)
    steps_of_y = writer.emit("Mul", cast_to(writer, total, np.float32), writer.array(steps, f"{writer.name}.scale"))
    return writer.to_integers(steps_of_y, (np.float32(1), of_y[1]), node.outputs[0])


@integers("dot_to_float")
def product_to_float(writer: Writer, node: Node) -> str:
    a, b, a_scale, b_scale, a_zero_point, b_zero_point, *bias = node.inputs
    of_a, of_b = (
        (np.asarray(writer.constants[scale]), np.asarray(writer.constants[zero_point]))
        for scale, zero_point in ((a_scale, a_zero_point), (b_scale, b_zero_point))
    )
    if any(writer.dtype(name).itemsize > 1 for name in (a, b)):
        y = _float_product(writer, node, (a, of_a), (b, of_b))
    else:
        left = by_rows(writer, node, writer.read(a))
        total = integer_product(writer, node, left, of_a[1], b, of_b)
        scale = writer.array(_of_sums(of_a, of_b), f"{writer.name}.scale")
        y = writer.emit("Mul", cast_to(writer, total, np.float32), scale)
    for name in bias:
        y = writer.emit("Add", y, _float_bias(writer, name))
    return unmerged(writer, node, y)


@integers("dot_of_blocks")
def product_of_blocks(writer: Writer, node: Node) -> str:
    """A product of floats and a matrix with a scale for each block along the contraction dimension."""
    a, *weights, bias = node.inputs
    words = "weight", "weight_scale", "weight_zero_point"
    parameters = [
        writer.parameter(name, f"{writer.name}.{word}", np.asarray(writer.constants[name]))
        for name, word in zip(weights, words, strict=True)
    ]
    right = writer.emit("DequantizeLinear", *parameters, axis=0, block_size=node.options["block_size"])
    y = writer.emit("MatMul", writer.read(a), right, main=True)
    if not bias:
        return y
    return writer.emit("Add", y, writer.parameter(bias, f"{writer.name}.bias", np.asarray(writer.constants[bias])))


# Elementwise ---------------------------------------------------------------------------------------------------------


@integers("add")
def add(writer: Writer, node: Node) -> str:
    of_a, of_b, of_y = (grid_of(writer, node, place) for place in (1, 4, 6))
    a, b = node.inputs[0], node.inputs[3]
    if _by_floats(writer):
        y = writer.emit("Add", writer.to_floats(a, of_a), writer.to_floats(b, of_b), main=True)
        return writer.to_integers(y, of_y, node.outputs[0])
    inputs = (writer.read(a), *writer.parameters_of(of_a, a), writer.read(b), *writer.parameters_of(of_b, b))
    return writer.emit(
        "QLinearAdd", *inputs, *writer.parameters_of(of_y, node.outputs[0]), main=True, contrib=of_y[1].dtype
    )  # fmt: skip


@integers("mul")
def multiply(writer: Writer, node: Node) -> str:
    of_a, of_b, of_y = (grid_of(writer, node, place) for place in (1, 4, 6))
    a, b = node.inputs[0], node.inputs[3]
    if writer.options.form == QDQ:
        y = writer.emit("Mul", writer.to_floats(a, of_a), writer.to_floats(b, of_b), main=True)
        return writer.to_integers(y, of_y, node.outputs[0])
    # The product of integers is exact. ONNX Runtime rounds the sum of the scaled product and the zero point to
    # float32, so Add adds the zero point, and QuantizeLinear has the zero point 0.
    one = np.float32(1)
    y = writer.emit("Mul", writer.to_floats(a, (one, of_a[1])), writer.to_floats(b, (one, of_b[1])), main=True)
    scale = np.float32(np.float32(of_a[0].reshape(()) * of_b[0].reshape(())) / of_y[0].reshape(()))
    y = writer.emit("Mul", y, writer.float32(scale, f"{writer.name}.scale"))
    zero_point = np.asarray(of_y[1]).reshape(())
    y = writer.emit("Add", y, writer.float32(zero_point)) if zero_point else y
    return writer.to_integers(y, (one, np.zeros((), zero_point.dtype)), node.outputs[0])


@integers("concat")
def concatenate(writer: Writer, node: Node) -> str:
    of_y, axis = grid_of(writer, node, 0), int(node.options["axis"])
    parts = [(node.inputs[place], grid_of(writer, node, place + 1)) for place in range(2, len(node.inputs), 3)]
    if writer.options.form == QDQ:
        y = writer.emit("Concat", *(writer.to_floats(*part) for part in parts), main=True, axis=axis)
        return writer.to_integers(y, of_y, node.outputs[0])
    inputs = [name for x, grid in parts for name in (writer.read(x), *writer.parameters_of(grid, x))]
    of_result = writer.parameters_of(of_y, node.outputs[0])
    return writer.emit("QLinearConcat", *of_result, *inputs, main=True, contrib=of_y[1].dtype, axis=axis)


@integers("pad")
def pad(writer: Writer, node: Node) -> str:
    x, config = node.inputs[0], node.options["config"]
    grid = writer.grids[x]
    if writer.options.form == QDQ:
        y = padded(writer, writer.to_floats(x), writer.shape(x), config, writer.float32(0))
        return writer.to_integers(y, grid, node.outputs[0])
    return padded(writer, writer.read(x), writer.shape(x), config, writer.array(np.asarray(grid[1]).reshape(())))


# Pooling -------------------------------------------------------------------------------------------------------------


def _as_images(writer: Writer, node: Node, value: str, axes: Sequence[int]) -> tuple[str, list[Any], list[int]]:
    """A value as images [N, C, H, W] with `axes` along H and W, the sizes of the images, and the other axes."""
    shape = writer.shape(node.inputs[0])
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    sizes, space = [shape[axis] for axis in kept], [shape[axis] for axis in axes]
    space = [*space, 1] if len(space) == 1 else space if len(space) == 2 else [math.prod(space), 1]
    images = [*(sizes[:1] or [1]), math.prod(sizes[1:]), *space]
    value = transposed(writer, value, [*kept, *axes])
    return reshaped(writer, value, [shape[axis] for axis in (*kept, *axes)], images), images, kept


def _pooled(writer: Writer, node: Node, kind: str, value: str, of_y: Grid, **attributes: Any) -> str:
    """Pooling of quantized images by an operator of ONNX Runtime."""
    of_x = writer.parameters_of(grid_of(writer, node, 1), node.inputs[0])
    of_result = writer.parameters_of(of_y, node.outputs[0])
    return writer.emit(f"QLinear{kind}", value, *of_x, *of_result, main=True, contrib=of_y[1].dtype, **attributes)


@integers("mean")
def mean(writer: Writer, node: Node) -> str:
    x, axes, result = node.inputs[0], list(node.options["axes"]), writer.shape(node.outputs[0])
    of_x, of_y = grid_of(writer, node, 1), grid_of(writer, node, 3)
    count = math.prod(writer.shape(x)[axis] for axis in axes)
    if writer.options.form == QDQ:
        images, shape, _ = _as_images(writer, node, writer.to_floats(x, of_x), axes)
        y = writer.emit("GlobalAveragePool", images, main=True)
        return writer.to_integers(reshaped(writer, y, [*shape[:2], 1, 1], result), of_y, node.outputs[0])
    if not _by_floats(writer):
        images, shape, _ = _as_images(writer, node, writer.read(x), axes)
        y = _pooled(writer, node, "GlobalAveragePool", images, of_y, channels_last=0)
        return reshaped(writer, y, [*shape[:2], 1, 1], result)
    if not isinstance(count, int) or count > EXACT_SUM:
        text = f"its means are over {count} elements, but means are exact only over a known number up to {EXACT_SUM}"
        raise CannotWrite(text, OTHER_FORM)
    total = reduced(writer, "ReduceSum", writer.to_floats(x, (np.float32(1), of_x[1])), axes)
    return _divided(writer, node, total, np.float32(count))


def _divided(writer: Writer, node: Node, total: str, count: Any) -> str:
    """Quantized means by DirectML's formula, from exact sums of integers."""
    of_x, of_y = grid_of(writer, node, 1), grid_of(writer, node, 3)
    value = writer.emit("Mul", total, writer.float32(of_x[0].reshape(())))
    value = writer.emit("Div", value, writer.float32(count))
    return writer.to_integers(value, of_y, node.outputs[0])


@integers("window_mean")
def mean_of_windows(writer: Writer, node: Node) -> str:
    x, options, result = node.inputs[0], node.options, writer.shape(node.outputs[0])
    given = options["window"], options["strides"], options["padding"]
    axes, counts_padding = pooled_axes(*given), int(options["include_padding"])
    of_x, of_y = grid_of(writer, node, 1), grid_of(writer, node, 3)
    spatial = window_of_images(axes, *given)
    window, strides = ([int(size) for size in spatial[word]] for word in ("window", "strides"))
    attributes: dict[str, Any] = {"kernel_shape": window, "strides": strides, "pads": pads(spatial["padding"])}
    if writer.options.form == QDQ:
        images, _, kept = _as_images(writer, node, writer.to_floats(x, of_x), axes)
        y = writer.emit("AveragePool", images, main=True, count_include_pad=counts_padding, **attributes)
        return writer.to_integers(_as_before(writer, y, kept, axes, result), of_y, node.outputs[0])
    if not _by_floats(writer):
        images, _, kept = _as_images(writer, node, writer.read(x), axes)
        y = _pooled(writer, node, "AveragePool", images, of_y, count_include_pad=counts_padding, **attributes)
        return _as_before(writer, y, kept, axes, result)
    count = math.prod(window)
    if count > EXACT_MEAN:
        raise CannotWrite(f"its windows have {count} elements, and means are exact up to {EXACT_MEAN}", OTHER_FORM)
    images, shape, kept = _as_images(writer, node, writer.to_floats(x, (np.float32(1), of_x[1])), axes)
    y = writer.emit("AveragePool", images, main=True, count_include_pad=1, **attributes)
    total = writer.emit("Round", writer.emit("Mul", y, writer.float32(count)))
    counts = np.float32(count) if counts_padding else _elements(shape[2:], window, strides, spatial["padding"])
    return _as_before(writer, _divided(writer, node, total, counts), kept, axes, result)


def _as_before(writer: Writer, images: str, kept: Sequence[int], axes: Sequence[int], result: Sequence[Any]) -> str:
    """Images that `_as_images` made, in the shape of the node's result."""
    order = [*kept, *axes]
    sizes = [result[axis] for axis in order]
    y = images if len(sizes) == len(kept) + 2 == 4 else reshaped(writer, images, None, sizes)
    return transposed(writer, y, np.argsort(order))


def _elements(
    sizes: Sequence[Any], window: Sequence[int], strides: Sequence[int], padding: Sequence[Sequence[int]]
) -> np.ndarray:
    """The number of elements of each window, padding excluded, as [1, 1, H, W]."""
    if not all(map(is_known, sizes)):
        raise CannotWrite("its windows do not count padding, and the sizes of its images are not known", OTHER_FORM)
    counts = np.ones((), np.float32)
    for size, extent, stride, (low, high) in zip(sizes, window, strides, padding, strict=True):
        starts = np.arange((size + low + high - extent) // stride + 1) * stride - low
        inside = np.minimum(starts + extent, size) - np.maximum(starts, 0)
        counts = counts[..., None] * inside.astype(np.float32)
    return counts[None, None]
