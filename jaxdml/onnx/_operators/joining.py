"""Operators that join tensors, cut them apart, and put a margin around them."""

from itertools import accumulate, pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml.errors import ModelError
from jaxdml.onnx._arrays import axis_of, check_size, integers, is_known, namespace
from jaxdml.onnx._table import operator

_MODES = ("constant", "reflect", "edge", "wrap")


@operator("Concat", is_exact=True, kind="concat")
def concat(*inputs: Any, axis: int) -> Any:
    """The tensors one behind the other along an axis."""
    return namespace(*inputs).concatenate(inputs, axis_of(axis, inputs[0].ndim))


@operator("Split", until=12, is_exact=True, kind="mover")
def split_by_attribute(
    data: Any, *, output_count: int, split: tuple[int, ...] | None = None, axis: int = 0
) -> tuple[Any, ...]:
    """The parts of a tensor along an axis, of the sizes of the attribute, or of equal ones."""
    axis = axis_of(axis, data.ndim)
    if split is None:
        split = _equal_sizes(data.shape[axis], output_count)
    if len(split) != output_count or sum(split) != data.shape[axis] or any(size < 0 for size in split):
        raise ModelError(f"{output_count} parts of sizes {split} do not make up the dimension of {data.shape[axis]}")
    before = (slice(None),) * axis
    return tuple(data[(*before, slice(start, end))] for start, end in pairwise(accumulate(split, initial=0)))


@operator("Split", since=13, until=17, is_exact=True, kind="mover", known=(1,))
def split_by_input(data: Any, split: Any = None, *, output_count: int, axis: int = 0) -> tuple[Any, ...]:
    """The parts of a tensor along an axis, of the sizes of the input, or of equal ones."""
    return split_by_attribute(data, output_count=output_count, split=integers(split), axis=axis)


@operator("Split", since=18, is_exact=True, kind="mover", known=(1,))
def split_by_count(
    data: Any, split: Any = None, *, output_count: int, num_outputs: int | None = None, axis: int = 0
) -> tuple[Any, ...]:
    """The parts of a tensor along an axis, of the sizes of the input, or of equal ones, the last one smaller."""
    sizes = integers(split)
    if sizes is None:
        size, count = data.shape[axis_of(axis, data.ndim)], num_outputs or output_count
        most = -(-size // count)
        sizes = (most,) * (count - 1) + (size - most * (count - 1),)
    return split_by_attribute(data, output_count=output_count, split=sizes, axis=axis)


def _equal_sizes(size: Any, count: int) -> tuple[Any, ...]:
    if size % count != 0:
        raise ModelError(f"the dimension of {size} has no {count} equal parts")
    return (size // count,) * count


@operator("Pad", until=10, is_exact=True)
def pad_by_attribute(data: Any, *, pads: tuple[int, ...], mode: str = "constant", value: float = 0.0) -> Any:
    """The tensor with a margin, or without what a negative one cuts off, of the sizes of the attribute."""
    return _padded(data, pads, np.asarray(value).astype(data.dtype), tuple(range(data.ndim)), mode)


@operator("Pad", since=11, until=17, is_exact=True, known=(1,))
def pad_by_input(data: Any, pads: Any, constant_value: Any = None, *, mode: str = "constant") -> Any:
    """The tensor with a margin, or without what a negative one cuts off, of the sizes of the input."""
    return pad(data, pads, constant_value, mode=mode)


@operator("Pad", since=18, is_exact=True, known=(1, 3))
def pad(data: Any, pads: Any, constant_value: Any = None, axes: Any = None, *, mode: str = "constant") -> Any:
    """The tensor with a margin along the axes, or without what a negative one cuts off."""
    places = integers(axes)
    places = tuple(range(data.ndim)) if places is None else tuple(axis_of(axis, data.ndim) for axis in places)
    value = np.zeros((), data.dtype) if constant_value is None else constant_value.reshape(())
    return _padded(data, integers(pads) or (), value, places, mode)


def _padded(data: Any, pads: tuple[Any, ...], value: Any, axes: tuple[int, ...], mode: str) -> Any:
    """The tensor with margins, whose sizes are those before each axis and then those behind."""
    if mode not in _MODES:
        raise ModelError(f"mode is {mode!r}, supported are {', '.join(_MODES)}")
    if len(pads) != 2 * len(axes):
        raise ModelError(f"there are {len(pads)} pads, expected two for each of {len(axes)} axes")
    margins: list[tuple[Any, Any]] = [(0, 0)] * data.ndim
    for axis, before, behind in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        margins[axis] = (before, behind)
    shape = tuple(size + before + behind for size, (before, behind) in zip(data.shape, margins, strict=True))
    check_size(shape, data.dtype)
    if mode == "constant" and not is_known(data, value):
        return lax.pad(data, jnp.asarray(value, data.dtype), [(before, behind, 0) for before, behind in margins])
    return _with_margins(data, value, margins, mode)


def _with_margins(data: Any, value: Any, margins: list[tuple[Any, Any]], mode: str) -> Any:
    """The tensor cut where a margin is negative, then with the positive margins."""
    cuts = (slice(max(-low, 0), size - max(-high, 0)) for size, (low, high) in zip(data.shape, margins, strict=True))
    data = data[tuple(cuts)]
    widths = [(max(low, 0), max(high, 0)) for low, high in margins]
    if mode == "constant":
        return np.pad(data, widths, constant_values=value)
    return namespace(data).pad(data, widths, mode=mode)
