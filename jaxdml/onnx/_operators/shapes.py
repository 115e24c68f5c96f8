"""Operators that reshape, transpose or repeat a tensor, or return its shape."""

import math
from typing import Any

import numpy as np

from jaxdml._quantized.axes import axis_of
from jaxdml.errors import ModelError
from jaxdml.onnx._limits import check_size
from jaxdml.onnx._operators._arrays import broadcast_shape, integers, namespace
from jaxdml.onnx._table import ANY, SIZES, operator


@operator("Identity", types=(ANY,), is_exact=True, kind="mover")
def identity(x: Any) -> Any:
    """x."""
    return x


@operator("Reshape", types=SIZES, is_exact=True, kind="mover", known=(1,))
def reshape(data: Any, shape: Any, *, allowzero: int = 0) -> Any:
    """The tensor in another shape; -1 is the remaining size, and 0 copies the input's size unless `allowzero`."""
    sizes = integers(shape) or ()
    if not allowzero:
        sizes = tuple(_copied(data, axis) if _equals(size, 0) else size for axis, size in enumerate(sizes))
    if any(_equals(size, -1) for size in sizes) and any(_equals(size, 0) for size in sizes):
        raise ModelError(f"shape {sizes} has a 0 and a -1, so that any size would do for the -1")
    return namespace(data).reshape(data, sizes)


def _copied(data: Any, axis: int) -> Any:
    if axis >= data.ndim:
        raise ModelError(f"shape copies dimension {axis} of a tensor with {data.ndim} dimensions")
    return data.shape[axis]


@operator("Flatten", is_exact=True, kind="mover")
def flatten(data: Any, *, axis: int = 1) -> Any:
    """The tensor as a matrix: dimensions before the axis become rows, and all other dimensions columns."""
    if axis != data.ndim:
        axis = axis_of(axis, data.ndim)
    return namespace(data).reshape(data, (math.prod(data.shape[:axis]), math.prod(data.shape[axis:])))


@operator("Squeeze", until=12, is_exact=True, kind="mover")
def squeeze_by_attribute(data: Any, *, axes: tuple[int, ...] | None = None) -> Any:
    """Removes dimensions of size 1: the given axes, or all."""
    if axes is None:
        axes = tuple(axis for axis, size in enumerate(data.shape) if _equals(size, 1))
    return namespace(data).squeeze(data, tuple(axis_of(axis, data.ndim) for axis in axes))


@operator("Squeeze", since=13, types=SIZES, is_exact=True, kind="mover", known=(1,))
def squeeze(data: Any, axes: Any = None) -> Any:
    """Removes dimensions of size 1: the given axes, or all."""
    return squeeze_by_attribute(data, axes=integers(axes))


@operator("Unsqueeze", until=12, is_exact=True, kind="mover")
def unsqueeze_by_attribute(data: Any, *, axes: tuple[int, ...]) -> Any:
    """Inserts dimensions of size 1; the axes are positions in the result."""
    axes = tuple(axis_of(axis, data.ndim + len(axes)) for axis in axes)
    return namespace(data).expand_dims(data, axes)


@operator("Unsqueeze", since=13, types=SIZES, is_exact=True, kind="mover", known=(1,))
def unsqueeze(data: Any, axes: Any) -> Any:
    """Inserts dimensions of size 1; the axes are positions in the result."""
    return unsqueeze_by_attribute(data, axes=integers(axes) or ())


@operator("Transpose", is_exact=True, kind="mover")
def transpose(data: Any, *, perm: tuple[int, ...] | None = None) -> Any:
    """Permutes the dimensions; without a permutation, reverses them."""
    return namespace(data).transpose(data, perm)


@operator("Expand", types=SIZES, is_exact=True, kind="mover", known=(1,))
def expand(data: Any, shape: Any) -> Any:
    """Broadcasts the tensor and the given shape to their common shape."""
    common = broadcast_shape(data.shape, integers(shape) or ())
    check_size(common, data.dtype)
    return namespace(data).broadcast_to(data, common)


@operator("Tile", types=SIZES, is_exact=True, kind="mover", known=(1,))
def tile(data: Any, repeats: Any) -> Any:
    """Repeats the tensor along each dimension."""
    counts = integers(repeats) or ()
    if len(counts) != data.ndim:
        raise ModelError(f"there are {len(counts)} repeats, expected one for each of {data.ndim} dimensions")
    check_size(tuple(size * count for size, count in zip(data.shape, counts, strict=True)), data.dtype)
    return namespace(data).tile(data, counts)


@operator("DepthToSpace", is_exact=True, kind="mover")
def depth_to_space(x: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    """Moves channels to blocks of pixels."""
    batch, channels, height, width = x.shape
    depth, order = channels // blocksize**2, (0, 3, 4, 1, 5, 2)
    split = (batch, blocksize, blocksize, depth, height, width)
    if _mode(mode) == "CRD":
        order, split = (0, 1, 4, 2, 5, 3), (batch, depth, blocksize, blocksize, height, width)
    blocks = x.reshape(split).transpose(order)
    return blocks.reshape((batch, depth, height * blocksize, width * blocksize))


@operator("SpaceToDepth", until=27, is_exact=True, kind="mover")
def space_to_depth_without_mode(x: Any, *, blocksize: int) -> Any:
    """Moves blocks of pixels to channels; within the channels, the block comes first."""
    return space_to_depth(x, blocksize=blocksize)


@operator("SpaceToDepth", since=28, is_exact=True, kind="mover")
def space_to_depth(x: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    """Moves blocks of pixels to channels; within the channels, the block (DCR) or the depth (CRD) comes first."""
    batch, channels, height, width = x.shape
    rows, columns = height // blocksize, width // blocksize
    order = (0, 3, 5, 1, 2, 4) if _mode(mode) == "DCR" else (0, 1, 3, 5, 2, 4)
    blocks = x.reshape((batch, channels, rows, blocksize, columns, blocksize)).transpose(order)
    return blocks.reshape((batch, channels * blocksize**2, rows, columns))


def _mode(mode: str) -> str:
    if mode not in ("DCR", "CRD"):
        raise ModelError(f"mode is {mode!r}; supported: DCR, CRD")
    return mode


@operator("Shape", is_exact=True, gives_shape=True)
def shape_of(data: Any, *, start: int = 0, end: int | None = None) -> Any:
    """The sizes of the dimensions from start to end; negative numbers count from the end."""
    return _dimensions(data.shape[start:end])


@operator("Size", is_exact=True, gives_shape=True)
def size_of(data: Any) -> Any:
    """The number of elements."""
    return _dimensions((math.prod(data.shape),)).reshape(())


def _dimensions(sizes: tuple[Any, ...]) -> np.ndarray:
    """Sizes as a known tensor: int64, or objects if a dimension is symbolic."""
    return np.array(sizes, np.int64 if all(isinstance(size, int) for size in sizes) else object)


def _equals(size: Any, number: int) -> bool:
    """Whether a size equals this number; False for a symbolic dimension, which must not be compared."""
    return isinstance(size, int) and size == number
