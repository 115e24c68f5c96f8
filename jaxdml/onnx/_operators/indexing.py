"""Slice, Gather, Scatter and other operators that select or write elements.

Negative indices count from the end. JAX cannot raise for an index out of bounds: reads clamp the index, and writes skip
it.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdml._quantized.axes import axis_of
from jaxdml.errors import ModelError
from jaxdml.onnx._operators._arrays import broadcast, integers, is_known, namespace
from jaxdml.onnx._table import BOOL, INDEX, operator

_FAR = 2**31 - 1  # exporters write this, or a larger number, for the end of a dimension
_INDICES = (None, INDEX)
_UFUNCS: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def _combines[F: Callable[..., Any]](name: str) -> Callable[[F], F]:
    """Adds the rows of a scatter for its reductions, in which NumPy's sums and zeros have other bits than the rules."""

    def decorate(function: F) -> F:
        for reduction in _UFUNCS:
            operator(name, since=16, mode=reduction, types=_INDICES, has_rule=reduction != "mul")(function)
        return function

    return decorate


@operator("Slice", types=(None, *(INDEX,) * 4), is_exact=True, kind="mover", known=(1, 2, 3, 4))
def sliced(data: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    """data[start:end:step] along each axis; Python clamps starts and ends as ONNX does."""
    starts, ends = integers(starts) or (), integers(ends) or ()
    axes, steps = integers(axes) or tuple(range(len(starts))), integers(steps) or (1,) * len(starts)
    parts = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        is_far = isinstance(end, int) and (end >= _FAR if step > 0 else end <= -_FAR)
        parts[axis_of(axis, data.ndim)] = slice(start, None if is_far else end, step)
    return data[tuple(parts)]


@operator("Gather", types=_INDICES, is_exact=True, kind="mover")
def gather(data: Any, indices: Any, *, axis: int = 0) -> Any:
    """The slices at the indices along an axis."""
    axis = axis_of(axis, data.ndim)
    if is_known(data, indices):
        taken = np.take(data, indices.reshape(-1), axis)  # for a scalar index, NumPy would return a scalar
        return taken.reshape(data.shape[:axis] + indices.shape + data.shape[axis + 1 :])
    return jnp.take(data, _nonnegative(indices, data.shape[axis]), axis, mode="clip")


@operator("GatherElements", since=11, types=_INDICES, is_exact=True, kind="mover")
def gather_elements(data: Any, indices: Any, *, axis: int = 0) -> Any:
    """Like `take_along_axis`, but data may be larger than the indices along all axes other than `axis`."""
    axis = axis_of(axis, data.ndim)
    if data.ndim != indices.ndim:
        raise ModelError(f"the indices have {indices.ndim} dimensions, expected {data.ndim}")
    data = data[tuple(slice(None) if each == axis else slice(size) for each, size in enumerate(indices.shape))]
    if is_known(data, indices):
        return np.take_along_axis(data, indices, axis)
    return jnp.take_along_axis(data, _nonnegative(indices, data.shape[axis]), axis, mode="clip")


@operator("GatherND", since=11, until=11, types=_INDICES, is_exact=True, kind="mover")
def gather_nd_without_batch(data: Any, indices: Any) -> Any:
    """`gather_nd` of opset 11, without batch dimensions."""
    return gather_nd(data, indices)


@operator("GatherND", since=12, types=_INDICES, is_exact=True, kind="mover")
def gather_nd(data: Any, indices: Any, *, batch_dims: int = 0) -> Any:
    """The slices at index tuples, which lie along the last axis of the indices."""
    xp = namespace(data, indices)
    index = _columns(xp, indices)
    grid = _grid(xp, indices.shape[:-1], index[0].dtype if index else np.dtype(np.int32))
    index = (*grid[:batch_dims], *index)
    if is_known(data, indices):
        return np.asarray(data[index])
    return jnp.asarray(data).at[index].get(mode="clip")


@operator("Scatter", until=10, types=_INDICES, is_exact=True)
@operator("ScatterElements", since=11, until=15, types=_INDICES, is_exact=True)
def scatter_elements_without_reduction(data: Any, indices: Any, updates: Any, *, axis: int = 0) -> Any:
    """`scatter_elements` before opset 16."""
    return scatter_elements(data, indices, updates, axis=axis)


@_combines("ScatterElements")
@operator("ScatterElements", since=16, types=_INDICES, is_exact=True)
def scatter_elements(data: Any, indices: Any, updates: Any, *, axis: int = 0, reduction: str = "none") -> Any:
    """Writes updates at the indices along an axis, or combines the updates with the elements at the indices."""
    axis, xp = axis_of(axis, data.ndim), namespace(data, indices, updates)
    indices = xp.asarray(indices)
    grid = _grid(xp, indices.shape, indices.dtype)
    return _written(data, (*grid[:axis], indices, *grid[axis + 1 :]), updates, reduction)


@operator("ScatterND", since=11, until=15, types=_INDICES, is_exact=True)
def scatter_nd_without_reduction(data: Any, indices: Any, updates: Any) -> Any:
    """`scatter_nd` before opset 16."""
    return scatter_nd(data, indices, updates)


@_combines("ScatterND")
@operator("ScatterND", since=16, types=_INDICES, is_exact=True)
def scatter_nd(data: Any, indices: Any, updates: Any, *, reduction: str = "none") -> Any:
    """Writes updates at the index tuples, or combines the updates with the elements at the tuples."""
    return _written(data, _columns(namespace(data, indices, updates), indices), updates, reduction)


def _written(data: Any, index: tuple[Any, ...], updates: Any, reduction: str) -> Any:
    if reduction not in ("none", *_UFUNCS):
        raise ModelError(f"reduction is {reduction!r}; supported: none, {', '.join(_UFUNCS)}")
    if not is_known(data, updates, *index):
        at = jnp.asarray(data).at[index]
        write: Any = {"none": at.set, "add": at.add, "mul": at.multiply, "min": at.min, "max": at.max}[reduction]
        return write(jnp.asarray(updates), mode="drop")
    result = np.array(data)
    if reduction == "none":
        result[index] = updates
    else:
        _UFUNCS[reduction].at(result, index, updates)
    return result


@operator("Where", types=(BOOL,), is_exact=True, only_selects=True)
def where(condition: Any, x: Any, y: Any) -> Any:
    """x where the condition holds, else y."""
    condition, x, y = broadcast(condition, x, y)
    return namespace(condition, x, y).where(condition, x, y)


@operator("Compress", types=(None, BOOL), is_exact=True, kind="mover", known=(1,))
def compress(data: Any, condition: Any, *, axis: int | None = None) -> Any:
    """The slices along an axis where the condition holds; without an axis, elements of the flattened tensor."""
    if axis is None:
        data, axis = namespace(data).reshape(data, (-1,)), 0
    return namespace(data).take(data, np.flatnonzero(condition), axis_of(axis, data.ndim))


@operator("NonZero", is_exact=True, known=(0,))
def non_zero(data: Any) -> Any:
    """The indices of the nonzero elements: a row for each dimension."""
    return np.array(np.nonzero(data), np.int64).reshape(data.ndim, -1)


def _nonnegative(indices: Any, size: Any) -> Any:
    """The indices, with each negative index replaced by the equivalent nonnegative index."""
    if is_known(indices) and (indices >= 0).all():
        return indices
    indices = jnp.asarray(indices)
    return jnp.where(indices < 0, indices + jnp.asarray(size, indices.dtype), indices)


def _columns(xp: Any, indices: Any) -> tuple[Any, ...]:
    """Splits index tuples, which lie along the last axis, into one array of indices for each dimension."""
    return tuple(xp.asarray(indices[..., column]) for column in range(indices.shape[-1]))


def _grid(xp: Any, shape: tuple[Any, ...], dtype: Any) -> list[Any]:
    """Like `np.ogrid`: the indices of each dimension, in shapes that broadcast."""
    rank = len(shape)
    return [
        xp.arange(size, dtype=dtype).reshape(tuple(size if a == axis else 1 for a in range(rank)))
        for axis, size in enumerate(shape)
    ]
