"""Operators that create tensors: constants, ranges, one-hot vectors, and identity and triangular matrices."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml.errors import ModelError
from jaxdml.onnx._limits import check_size
from jaxdml.onnx._operators._arrays import broadcast, integers, is_known, is_narrow, namespace
from jaxdml.onnx._table import INDEX, operator
from jaxdml.onnx._tensors import dtype_of


@operator("Constant", is_exact=True)
def constant(
    *,
    value: np.ndarray | None = None,
    value_int: int | None = None,
    value_ints: tuple[int, ...] | None = None,
    value_float: float | None = None,
    value_floats: tuple[float, ...] | None = None,
) -> Any:
    """The value of the one attribute that is given, as a tensor."""
    typed = ((value, None), (value_int, np.int64), (value_ints, np.int64),
             (value_float, np.float32), (value_floats, np.float32))  # fmt: skip
    given = [(each, dtype) for each, dtype in typed if each is not None]
    if len(given) != 1:
        raise ModelError(f"it has {len(given)} values, expected one")
    ((each, dtype),) = given
    return np.asarray(each, dtype)


@operator("ConstantOfShape", is_exact=True, known=(0,))
def constant_of_shape(shape: Any, *, value: np.ndarray = np.zeros(1, np.float32)) -> Any:  # noqa: B008 # never written
    """A tensor of the given shape, filled with one value."""
    sizes = integers(shape) or ()
    check_size(sizes, value.dtype)
    xp = np if all(isinstance(size, int) for size in sizes) else jnp
    return xp.broadcast_to(value.reshape(()), sizes)


@operator("Range", since=11, until=26, is_exact=True, known=(0, 1, 2))
def arange(start: Any, limit: Any, delta: Any) -> Any:
    """The numbers from start to limit; each number is the rounded sum of its predecessor and delta."""
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
    """`arange`; 16-bit floats are summed in the stash type."""
    if not is_narrow(start):
        return arange(start, limit, delta)
    stashed = dtype_of(stash_type, "the sum")
    return arange(*(number.astype(stashed) for number in (start, limit, delta))).astype(start.dtype)


@operator("OneHot", is_exact=True, only_selects=True, known=(1,))
def one_hot(indices: Any, depth: Any, values: Any, *, axis: int = -1) -> Any:
    """A vector for each index: values[1] at the index, values[0] elsewhere; a negative index counts from the end."""
    count, xp = int(depth.reshape(())), namespace(indices, values)
    check_size((*indices.shape, count), values.dtype)
    hot = indices.astype(np.int64 if is_known(indices) else jax.dtypes.canonicalize_dtype(np.int64))
    hot = xp.expand_dims(xp.where(hot < 0, hot + xp.asarray(count, hot.dtype), hot), axis)
    along = [1] * hot.ndim
    along[axis] = count
    is_hot = xp.equal(*broadcast(hot, xp.arange(count, dtype=hot.dtype).reshape(along)))
    off, on = (xp.broadcast_to(values[index], is_hot.shape) for index in (0, 1))
    return xp.where(is_hot, on, off)


@operator("Trilu", since=14, types=(None, INDEX), is_exact=True)
def trilu(data: Any, k: Any = None, *, upper: int = 1) -> Any:
    """The upper or lower triangles of matrices, including the k-th diagonal."""
    if k is not None and k.size != 1:
        raise ModelError(f"k has shape {k.shape}, expected a scalar")
    xp = namespace(data) if k is None else namespace(data, k)
    rows, columns = data.shape[-2:]
    k = 0 if k is None else xp.clip(k.reshape(()), -rows, columns)  # diagonals beyond both are empty
    diagonals = xp.arange(columns)[None, :] - xp.arange(rows)[:, None]
    is_kept = diagonals >= k if upper else diagonals <= k
    return xp.where(xp.broadcast_to(is_kept, data.shape), data, xp.zeros_like(data))


@operator("EyeLike", is_exact=True, gives_shape=True)
def eye_like(data: Any, *, dtype: int | None = None, k: int = 0) -> Any:
    """A matrix of the input's shape: ones on the k-th diagonal, zeros elsewhere."""
    result = data.dtype if dtype is None else dtype_of(dtype, "the result")
    if not is_known(data):
        result = jax.dtypes.canonicalize_dtype(result)
    return namespace(data).eye(*data.shape, k, dtype=result)
