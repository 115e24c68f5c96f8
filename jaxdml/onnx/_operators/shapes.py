"""Operators that give a tensor another shape, repeat it, or say which shape it has."""

import math
from typing import Any

import numpy as np

from jaxdml.errors import ModelError
from jaxdml.onnx._arrays import axis_of, broadcast_shape, check_size, integers, namespace
from jaxdml.onnx._table import operator


@operator("Reshape", is_exact=True, kind="mover", known=(1,))
def reshape(data: Any, shape: Any, *, allowzero: int = 0) -> Any:
    """The elements in another shape; 0 keeps a dimension and -1 stands for the rest."""
    sizes = integers(shape) or ()
    if not allowzero:
        sizes = tuple(_kept(data, axis) if _is(size, 0) else size for axis, size in enumerate(sizes))
    return namespace(data).reshape(data, sizes)


def _kept(data: Any, axis: int) -> Any:
    if axis >= data.ndim:
        raise ModelError(f"shape keeps dimension {axis} of a tensor that has {data.ndim}")
    return data.shape[axis]


@operator("Flatten", is_exact=True, kind="mover")
def flatten(data: Any, *, axis: int = 1) -> Any:
    """The elements as a matrix: dimensions before the axis are its rows."""
    if axis != data.ndim:
        axis = axis_of(axis, data.ndim)
    return namespace(data).reshape(data, (math.prod(data.shape[:axis]), math.prod(data.shape[axis:])))


@operator("Squeeze", until=12, is_exact=True, kind="mover")
def squeeze_by_attribute(data: Any, *, axes: tuple[int, ...] | None = None) -> Any:
    """The tensor without dimensions of size 1: those of the attribute, or all of them."""
    if axes is None:
        axes = tuple(axis for axis, size in enumerate(data.shape) if _is(size, 1))
    return namespace(data).squeeze(data, tuple(axis_of(axis, data.ndim) for axis in axes))


@operator("Squeeze", since=13, is_exact=True, kind="mover", known=(1,))
def squeeze(data: Any, axes: Any = None) -> Any:
    """The tensor without dimensions of size 1: those of the input, or all of them."""
    return squeeze_by_attribute(data, axes=integers(axes))


@operator("Unsqueeze", until=12, is_exact=True, kind="mover")
def unsqueeze_by_attribute(data: Any, *, axes: tuple[int, ...]) -> Any:
    """The tensor with dimensions of size 1 put in at the axes of the attribute, which are those of the result."""
    places = tuple(axis_of(axis, data.ndim + len(axes)) for axis in axes)
    return namespace(data).expand_dims(data, places)


@operator("Unsqueeze", since=13, is_exact=True, kind="mover", known=(1,))
def unsqueeze(data: Any, axes: Any) -> Any:
    """The tensor with dimensions of size 1 put in at the axes of the input, which are those of the result."""
    return unsqueeze_by_attribute(data, axes=integers(axes) or ())


@operator("Transpose", is_exact=True, kind="mover")
def transpose(data: Any, *, perm: tuple[int, ...] | None = None) -> Any:
    """The tensor with its dimensions in another order; without one, in the opposite."""
    return namespace(data).transpose(data, perm)


@operator("Expand", is_exact=True, kind="mover", known=(1,))
def expand(data: Any, shape: Any) -> Any:
    """The tensor broadcast to the common shape of its own and the given one."""
    common = broadcast_shape(data.shape, integers(shape) or ())
    check_size(common, data.dtype)
    return namespace(data).broadcast_to(data, common)


@operator("Tile", is_exact=True, kind="mover", known=(1,))
def tile(data: Any, repeats: Any) -> Any:
    """The tensor repeated along each of its dimensions."""
    counts = integers(repeats) or ()
    if len(counts) != data.ndim:
        raise ModelError(f"there are {len(counts)} repeats, expected one for each of {data.ndim} dimensions")
    check_size(tuple(size * count for size, count in zip(data.shape, counts, strict=True)), data.dtype)
    return namespace(data).tile(data, counts)


@operator("Shape", is_exact=True, gives_shape=True)
def shape_of(data: Any, *, start: int = 0, end: int | None = None) -> Any:
    """The sizes of the dimensions from start to end, which may count from the last."""
    return _dimensions(data.shape[start:end])


@operator("Size", is_exact=True, gives_shape=True)
def size_of(data: Any) -> Any:
    """The number of elements."""
    return _dimensions((math.prod(data.shape),)).reshape(())


def _dimensions(sizes: tuple[Any, ...]) -> np.ndarray:
    """A known tensor of sizes: numbers, or symbols if one of them is a symbol."""
    return np.array(sizes, np.int64 if all(isinstance(size, int) for size in sizes) else object)


def _is(size: Any, number: int) -> bool:
    """Whether a size is a number; a symbol is none."""
    return isinstance(size, int) and size == number
