"""Reductions, ArgMax and ArgMin, cumulative sums and products, and TopK."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._quantized.axes import axis_of
from jaxdml.errors import ModelError
from jaxdml.onnx._operators._arrays import Array, computed, integers, is_float, is_known, namespace, wide
from jaxdml.onnx._operators.casts import cast
from jaxdml.onnx._operators.elementwise import divide, multiply
from jaxdml.onnx._table import BOOL, INDEX, NUMBER, operator

Axes = tuple[int, ...]


def _sum(x: Array, axes: Axes) -> Array:
    return _as_array(namespace(x).sum(x, axes, keepdims=True, dtype=x.dtype), x)


def _product(x: Array, axes: Axes) -> Array:
    return _as_array(namespace(x).prod(x, axes, keepdims=True, dtype=x.dtype), x)


def _as_array(result: Any, x: Array) -> Array:
    """The result as an array of x's type: of a scalar with a symbolic dimension, NumPy returns the dimension itself."""
    return np.asarray(result, x.dtype) if is_known(x) else result


def _lowest(x: Array) -> Any:
    if is_float(x):
        return -np.inf
    return False if x.dtype == bool else jnp.iinfo(x.dtype).min  # type: ignore[no-untyped-call]


def _highest(x: Array) -> Any:
    if is_float(x):
        return np.inf
    return True if x.dtype == bool else jnp.iinfo(x.dtype).max  # type: ignore[no-untyped-call]


def _max(x: Array, axes: Axes) -> Array:
    return _as_array(x.max(axes, keepdims=True, **({} if x.dtype == object else {"initial": _lowest(x)})), x)


def _min(x: Array, axes: Axes) -> Array:
    options = {} if x.dtype == object else {"initial": np.asarray(_highest(x), x.dtype)}
    return _as_array(x.min(axes, keepdims=True, **options), x)


def _mean(x: Array, axes: Axes) -> Array:
    total, count = _sum(x, axes), math.prod(x.shape[axis] for axis in axes)
    return divide(total, namespace(total).full_like(total, count))


def _norm1(x: Array, axes: Axes) -> Array:
    _refuse_symbols(x, "absolute values")
    return _sum(abs(x), axes)


def _sum_of_squares(x: Array, axes: Axes) -> Array:
    return _sum(multiply(x, x), axes)


def _norm2(x: Array, axes: Axes) -> Array:
    return _root(_sum_of_squares(x, axes))


def _root(x: Array) -> Array:
    return cast(computed("sqrt", _as_floats(x)), dtype=x.dtype)


def _log_sum(x: Array, axes: Axes) -> Array:
    return cast(computed("log", _as_floats(_sum(x, axes))), dtype=x.dtype)


def _log_sum_exp(x: Array, axes: Axes) -> Array:
    floats = _as_floats(x)
    if is_known(x):
        total: Array = np.asarray(np.logaddexp.reduce(floats, axes, np.float64, keepdims=True), floats.dtype)
    else:
        total = jax.scipy.special.logsumexp(floats, axes, keepdims=True)
    return cast(total, dtype=x.dtype)


def _as_floats(x: Array) -> Array:
    _refuse_symbols(x, "roots and logarithms")
    return x if is_float(x) else x.astype(jnp.float32)


def _refuse_symbols(x: Array, computations: str) -> None:
    if x.dtype == object:
        raise ModelError(f"sizes are symbolic, and have no {computations}; trace the model with fixed sizes")


def _reduction(
    name: str,
    function: Callable[[Array, Axes], Array],
    since: int = 18,
    is_exact: bool = False,
    kind: str | None = None,
) -> None:
    """Adds a reduction. Before the opset `since`, its axes are an attribute; from that opset on, they are an input.

    16-bit floats are reduced as float32.
    """
    types = NUMBER | BOOL if is_exact else NUMBER

    def reduced(x: Array, axes: Axes | None, keepdims: int) -> Array:
        axes = tuple(range(x.ndim)) if axes is None else tuple(axis_of(axis, x.ndim) for axis in axes)
        result = function(wide(x), axes).astype(x.dtype)
        return result if keepdims else result.squeeze(axes)

    @operator(name, until=since - 1, types=(types,), is_exact=is_exact, kind=kind)
    def by_attribute(x: Array, *, axes: tuple[int, ...] | None = None, keepdims: int = 1) -> Array:
        return reduced(x, axes or None, keepdims)

    @operator(name, since=since, types=(types, INDEX), known=(1,), is_exact=is_exact, kind=kind)
    def by_input(x: Array, axes: Array | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
        return reduced(x, integers(axes) or (() if noop_with_empty_axes else None), keepdims)


_reduction("ReduceSum", _sum, since=13)
_reduction("ReduceProd", _product)
_reduction("ReduceMax", _max, is_exact=True, kind="extreme")
_reduction("ReduceMin", _min, is_exact=True, kind="extreme")
_reduction("ReduceMean", _mean)
_reduction("ReduceL1", _norm1)
_reduction("ReduceL2", _norm2)
_reduction("ReduceSumSquare", _sum_of_squares)
_reduction("ReduceLogSum", _log_sum)
_reduction("ReduceLogSumExp", _log_sum_exp)


def _arg_extreme(name: str, function: str) -> None:
    """Adds ArgMax or ArgMin; `function` is the operator's name in NumPy."""

    @operator(name, types=(NUMBER,), is_exact=True, kind="order")
    def compute(x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
        xp, axis = namespace(x), axis_of(axis, x.ndim)
        index = getattr(xp, function)(xp.flip(x, axis) if select_last_index else x, axis, keepdims=bool(keepdims))
        index = np.asarray(index, np.int64) if xp is np else index.astype(jax.dtypes.canonicalize_dtype(np.int64))
        return x.shape[axis] - 1 - index if select_last_index else index


_arg_extreme("ArgMax", "argmax")
_arg_extreme("ArgMin", "argmin")


def _cumulative(name: str, function: str, start: int, since: int) -> None:
    """Adds a cumulative reduction; `function` is the reduction's name in NumPy, and `start` is its identity element."""

    @operator(name, since=since, types=(NUMBER, INDEX), known=(1,))
    def compute(x: Array, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Array:
        xp, along = namespace(x), axis_of(int(axis.item()), x.ndim)
        values = xp.flip(x, along) if reverse else x
        if exclusive:
            but_last = (slice(None),) * along + (slice(-1),)
            first = xp.full((*x.shape[:along], 1, *x.shape[along + 1 :]), start, x.dtype)
            values = xp.concatenate([first, values], along)[but_last]
        result = getattr(xp, function)(values, along, dtype=x.dtype)
        return xp.flip(result, along) if reverse else result


_cumulative("CumSum", "cumsum", 0, since=11)
_cumulative("CumProd", "cumprod", 1, since=26)


@operator("TopK", until=10, types=(NUMBER, INDEX), known=(1,))
def largest_k(x: Array, count: Array, *, axis: int = -1) -> tuple[Array, Array]:
    """`top_k` of opset 10."""
    return top_k(x, count, axis=axis)


@operator("TopK", since=11, types=(NUMBER, INDEX), known=(1,))
def top_k(x: Array, count: Array, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Array, Array]:
    """The largest or smallest elements along an axis, in order, and their indices; equal elements keep their order.

    Zeros of both signs are equal. NaN is larger than all numbers.
    """
    if count.size != 1:
        raise ModelError(f"k has shape {count.shape}, expected one element")
    x, size = jnp.moveaxis(jnp.asarray(x), axis_of(axis, x.ndim), -1), count.item()
    if largest:  # top_k puts 0 before -0
        _, indices = lax.top_k(jnp.where(x == 0, jnp.zeros_like(x), x) if is_float(x) else x, size)
    else:
        indices = lax.slice_in_dim(jnp.argsort(x, axis=-1), 0, size, axis=-1)
    values = jnp.take_along_axis(x, indices, -1)
    indices = indices.astype(jax.dtypes.canonicalize_dtype(np.int64))
    return jnp.moveaxis(values, -1, axis), jnp.moveaxis(indices, -1, axis)
