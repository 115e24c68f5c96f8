"""Tensors made from a few numbers or from a shape: ranges, one-hot vectors, diagonals and triangles."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml.errors import ModelError
from jaxdml.onnx._arrays import broadcast, check_size, integers, is_known, namespace
from jaxdml.onnx._operators._floats import is_narrow
from jaxdml.onnx._table import operator
from jaxdml.onnx._types import dtype_of


@operator("Range", since=11, until=26, is_exact=True, known=(0, 1, 2))
def arange(start: Any, limit: Any, delta: Any) -> Any:
    """The numbers from start up to limit: each is the one before it plus delta, rounded."""
    if any(number.dtype == object for number in (start, limit, delta)):
        return jnp.arange(*(integers(number)[0] for number in (start, limit, delta)))  # type: ignore[index]
    first, end, step = (number.reshape(()) for number in (start, limit, delta))
    if step == 0:
        raise ModelError("delta is 0")
    count = max(math.ceil(float(end - first) / float(step)), 0)
    check_size((count,), start.dtype)
    steps = np.full(count, step, start.dtype)
    steps[:1] = first
    return np.add.accumulate(steps, dtype=start.dtype)


@operator("Range", since=27, is_exact=True, known=(0, 1, 2))
def arange_stashed(start: Any, limit: Any, delta: Any, *, stash_type: int = 1) -> Any:
    """The numbers from start up to limit by steps of delta; 16-bit floats are summed up in a wider type."""
    if not is_narrow(start):
        return arange(start, limit, delta)
    wide = dtype_of(stash_type, "the sum")
    return arange(*(number.astype(wide) for number in (start, limit, delta))).astype(start.dtype)


@operator("OneHot", is_exact=True, known=(1,))
def one_hot(indices: Any, depth: Any, values: Any, *, axis: int = -1) -> Any:
    """For each index a vector of the second value at the index, and of the first value elsewhere."""
    count, xp = int(depth.reshape(())), namespace(indices, values)
    check_size((*indices.shape, count), values.dtype)
    places = indices.astype(np.int64 if is_known(indices) else jax.dtypes.canonicalize_dtype(np.int64))
    places = xp.expand_dims(xp.where(places < 0, places + xp.asarray(count, places.dtype), places), axis)
    along = [1] * places.ndim
    along[axis] = count
    is_hot = xp.equal(*broadcast(places, xp.arange(count, dtype=places.dtype).reshape(along)))
    off, on = (xp.broadcast_to(values[place], is_hot.shape) for place in (0, 1))
    return xp.where(is_hot, on, off)


@operator("Trilu", since=14, is_exact=True, known=(1,))
def trilu(data: Any, k: Any = None, *, upper: int = 1) -> Any:
    """Matrices with zeros below, or above, a diagonal."""
    diagonal = 0 if k is None else int(k.reshape(()))
    return (namespace(data).triu if upper else namespace(data).tril)(data, diagonal)


@operator("EyeLike", is_exact=True, gives_shape=True)
def eye_like(data: Any, *, dtype: int | None = None, k: int = 0) -> Any:
    """The matrix of another's shape with ones on a diagonal, and zeros elsewhere."""
    made = data.dtype if dtype is None else dtype_of(dtype, "the result")
    if not is_known(data):
        made = jax.dtypes.canonicalize_dtype(made)
    return namespace(data).eye(*data.shape, k, dtype=made)
