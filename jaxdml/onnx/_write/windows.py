"""Float convolutions and pooling."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdml._graph.graph import Node
from jaxdml.onnx._write.movers import transposed
from jaxdml.onnx._write.table import CannotWrite, equation, operator
from jaxdml.onnx._write.writer import Writer, stored_type

Pairs = Sequence[tuple[int, int]]
MOST_SPATIAL = 3  # the maximum number of dimensions along which ONNX Runtime pools


def convolution_attributes(options: Any) -> dict[str, Any]:
    """The attributes of a convolution from the options of a node."""
    return {
        "strides": [int(each) for each in options["strides"]],
        "dilations": [int(each) for each in options["dilations"]],
        "pads": pads(options["padding"]),
        "group": int(options["group_count"]),
    }


def pads(padding: Pairs) -> list[int]:
    """ONNX's attribute `pads`: the padding before each axis, then the padding after each axis."""
    return [int(pair[place]) for place in (0, 1) for pair in padding]


@operator("convolution")
def convolution(writer: Writer, node: Node) -> str:
    x, weight, *bias = node.inputs
    weights = writer.parameter(weight, f"{writer.name}.weight", _float32(writer, weight))
    inputs = [writer.read(x), weights]
    inputs += [writer.parameter(each, f"{writer.name}.bias", _float32(writer, each)) for each in bias]
    return writer.emit("Conv", *inputs, main=True, **convolution_attributes(node.options))


def _float32(writer: Writer, name: str) -> np.ndarray:
    return np.asarray(writer.constants[name]).astype(np.float32)


@equation("conv_general_dilated")
def convolution_equation(writer: Writer, node: Node) -> str:
    params = node.options["equation"].params
    numbers = params["dimension_numbers"]
    if params["batch_group_count"] != 1:
        raise CannotWrite("it has batch groups")
    if any(gap != 1 for gap in params["lhs_dilation"]) or any(size < 0 for pair in params["padding"] for size in pair):
        raise CannotWrite("it dilates or cuts its input")
    options = {
        "strides": params["window_strides"], "dilations": params["rhs_dilation"], "padding": params["padding"],
        "group_count": params["feature_group_count"],
    }  # fmt: skip
    x, w = map(writer.read, node.inputs)
    x, w = transposed(writer, x, numbers.lhs_spec), transposed(writer, w, numbers.rhs_spec)
    y = writer.emit("Conv", x, w, main=True, **convolution_attributes(options))
    return transposed(writer, y, np.argsort(numbers.out_spec))


# Pooling -------------------------------------------------------------------------------------------------------------


def pooled(
    writer: Writer, kind: str, value: str, window: Sequence[int], strides: Sequence[int], padding: Pairs,
    dilations: Sequence[int] | None = None, **attributes: Any,
) -> str:  # fmt: skip
    """Pools a value of the file along any axes. ONNX pools along all axes but the first two."""
    rank = len(window)
    pooled_axes = [i for i in range(rank) if (window[i], strides[i], *padding[i]) != (1, 1, 0, 0)]
    if not pooled_axes:
        return value
    others = [i for i in range(rank) if i not in pooled_axes]
    spatial = sorted([*pooled_axes, *others[2:]])
    if len(spatial) > MOST_SPATIAL:
        raise CannotWrite(f"it pools an array of {rank} dimensions")
    missing, order = max(2 - len(others), 0), [*others[:2], *spatial]
    value = transposed(writer, value, order)
    value = writer.emit("Unsqueeze", value, writer.int64([*range(missing)])) if missing else value
    numbers = {"kernel_shape": window, "strides": strides}
    if dilations is not None and any(each != 1 for each in dilations):
        numbers["dilations"] = dilations
    attributes |= {word: [int(each[i]) for i in spatial] for word, each in numbers.items()}
    value = writer.emit(kind, value, pads=pads([padding[i] for i in spatial]), main=True, **attributes)
    value = writer.emit("Squeeze", value, writer.int64([*range(missing)])) if missing else value
    return transposed(writer, value, np.argsort(order))


def _checked(writer: Writer, name: str, *others: type[np.generic]) -> None:
    """Raises CannotWrite if ONNX Runtime cannot pool a value's type; it can pool float32 and the types `others`."""
    dtype = writer.dtype(name)
    is_dequantized = name in writer.grids and dtype.itemsize > 1  # 16-bit integers are floats here
    if not is_dequantized and stored_type(dtype).type not in (np.float32, *others):
        raise CannotWrite(f"it pools {dtype}", "first convert the array with .astype(jnp.float32)")


@operator("max pooling")
def max_pool(writer: Writer, node: Node) -> str:
    options = node.options
    _checked(writer, node.inputs[0], np.int8, np.uint8)
    return pooled(
        writer, "MaxPool", writer.read(node.inputs[0]), options["window"], options["strides"], options["padding"],
        options["dilations"],
    )  # fmt: skip


@operator("average pooling")
def average_pool(writer: Writer, node: Node) -> str:
    options = node.options
    return pooled(
        writer, "AveragePool", writer.read(node.inputs[0]), options["window"], options["strides"], options["padding"],
        count_include_pad=int(options["include_padding"]),
    )  # fmt: skip


@equation("reduce_window_min")
def least_of_windows(writer: Writer, node: Node) -> str:
    """The minimum of each window, as the negated maximum of the negated elements."""
    window, strides, padding = _windows(writer, node)
    negative = writer.emit("Neg", writer.read(node.inputs[0]))
    return writer.emit("Neg", pooled(writer, "MaxPool", negative, window, strides, padding))


@equation("reduce_window_sum")
def sums_of_windows(writer: Writer, node: Node) -> str:
    window, strides, padding = _windows(writer, node)
    x = node.inputs[0]
    mean = pooled(writer, "AveragePool", writer.read(x), window, strides, padding, count_include_pad=1)
    return writer.emit("Mul", mean, writer.array(np.asarray(np.prod(window), stored_type(writer.dtype(x)))))


def _windows(writer: Writer, node: Node) -> tuple[Sequence[int], Sequence[int], Pairs]:
    """The sizes of windows, their strides, and the padding."""
    _checked(writer, node.inputs[0])
    params = node.options["equation"].params
    if any(each != 1 for word in ("base_dilation", "window_dilation") for each in params[word]):
        raise CannotWrite("its windows have dilations")
    if any(size < 0 for pair in params["padding"] for size in pair):
        raise CannotWrite("it cuts its input")
    return params["window_dimensions"], params["window_strides"], params["padding"]
