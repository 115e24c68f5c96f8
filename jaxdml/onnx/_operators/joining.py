"""Concat, Split and Pad."""

from itertools import accumulate, pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._quantized.axes import axis_of
from jaxdml.errors import ModelError
from jaxdml.onnx._limits import check_size
from jaxdml.onnx._operators._arrays import integers, is_known, namespace
from jaxdml.onnx._table import SIZES, operator

_MODES = ("constant", "reflect", "edge", "wrap")


@operator("Concat", is_exact=True, kind="concat")
def concat(*inputs: Any, axis: int) -> Any:
    """Concatenates tensors along an axis."""
    return namespace(*inputs).concatenate(inputs, axis_of(axis, inputs[0].ndim))


@operator("Split", until=12, is_exact=True, kind="mover")
def split_by_attribute(
    data: Any, *, output_count: int, split: tuple[int, ...] | None = None, axis: int = 0
) -> tuple[Any, ...]:
    """Splits a tensor along an axis into parts of the given sizes, or of equal size."""
    axis = axis_of(axis, data.ndim)
    if split is None:
        split = _equal_sizes(data.shape[axis], output_count)
    if len(split) != output_count or sum(split) != data.shape[axis] or any(size < 0 for size in split):
        wanted = f"{output_count} sizes that add up to {data.shape[axis]}, the size of the axis"
        raise ModelError(f"split is {split}, expected {wanted}")
    leading = (slice(None),) * axis
    return tuple(data[(*leading, slice(start, end))] for start, end in pairwise(accumulate(split, initial=0)))


@operator("Split", since=13, until=17, types=SIZES, is_exact=True, kind="mover", known=(1,))
def split_by_input(data: Any, split: Any = None, *, output_count: int, axis: int = 0) -> tuple[Any, ...]:
    """`split_by_attribute` with the sizes as an input."""
    return split_by_attribute(data, output_count=output_count, split=integers(split), axis=axis)


@operator("Split", since=18, types=SIZES, is_exact=True, kind="mover", known=(1,))
def split_by_count(
    data: Any, split: Any = None, *, output_count: int, num_outputs: int | None = None, axis: int = 0
) -> tuple[Any, ...]:
    """`split_by_input`; without sizes, the last part may be smaller than all other parts."""
    sizes = integers(split)
    if sizes is None:
        size, count = data.shape[axis_of(axis, data.ndim)], num_outputs or output_count
        most = -(-size // count)
        sizes = (most,) * (count - 1) + (size - most * (count - 1),)
    return split_by_attribute(data, output_count=output_count, split=sizes, axis=axis)


def _equal_sizes(size: Any, count: int) -> tuple[Any, ...]:
    if size % count != 0:
        raise ModelError(f"an axis of size {size} cannot be split into {count} equal parts")
    return (size // count,) * count


@operator("Pad", until=10, is_exact=True)
def pad_by_attribute(data: Any, *, pads: tuple[int, ...], mode: str = "constant", value: float = 0.0) -> Any:
    """`pad` of all axes, with the pads as an attribute."""
    return _padded(data, pads, np.asarray(value).astype(data.dtype), tuple(range(data.ndim)), mode)


@operator("Pad", since=11, until=17, types=SIZES, is_exact=True, kind="pad", known=(1,))
def pad_by_input(data: Any, pads: Any, constant_value: Any = None, *, mode: str = "constant") -> Any:
    """`pad` of all axes."""
    return pad(data, pads, constant_value, mode=mode)


@operator("Pad", since=18, types=SIZES, is_exact=True, kind="pad", known=(1, 3))
def pad(data: Any, pads: Any, constant_value: Any = None, axes: Any = None, *, mode: str = "constant") -> Any:
    """Pads the axes; negative pads crop."""
    axes = tuple(range(data.ndim)) if axes is None else tuple(axis_of(axis, data.ndim) for axis in integers(axes) or ())
    value = np.zeros((), data.dtype) if constant_value is None else constant_value.reshape(())
    return _padded(data, integers(pads) or (), value, axes, mode)


def _padded(data: Any, pads: tuple[Any, ...], value: Any, axes: tuple[int, ...], mode: str) -> Any:
    """`pads` has the pads at the start of each axis, then the pads at the end of each axis."""
    if mode not in _MODES:
        raise ModelError(f"mode is {mode!r}; supported: {', '.join(_MODES)}")
    if len(pads) != 2 * len(axes):
        raise ModelError(f"there are {len(pads)} pads, expected two for each of {len(axes)} axes")
    pairs: list[tuple[Any, Any]] = [(0, 0)] * data.ndim
    for axis, start, end in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        pairs[axis] = (start, end)
    shape = tuple(size + start + end for size, (start, end) in zip(data.shape, pairs, strict=True))
    check_size(shape, data.dtype)
    if mode == "constant" and not is_known(data, value):
        return lax.pad(data, jnp.asarray(value, data.dtype), [(start, end, 0) for start, end in pairs])
    kept = (slice(max(-start, 0), size - max(-end, 0)) for size, (start, end) in zip(data.shape, pairs, strict=True))
    data = data[tuple(kept)]
    widths = [(max(start, 0), max(end, 0)) for start, end in pairs]
    if mode == "constant":
        return np.pad(data, widths, constant_values=value)
    return namespace(data).pad(data, widths, mode=mode)
