"""The operators of a function's float graph."""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.pooling import greatest_of_windows
from jaxdml._graph.graph import Operator
from jaxdml._operators.fake_quantize import fake_quantize
from jaxdml._quantized.matrices import by_rows
from jaxdml.ptq._build.phases import interleaved
from jaxdml.ptq._trace.equations import run

Array = Any
Sizes = Sequence[int]
Pairs = Sequence[tuple[int, int]]


def _wide(*arrays: Array) -> tuple[Array, ...]:
    """The arrays as float32, the graph's type, or as float64 if one of them is float64."""
    is_double = any(x.dtype == np.float64 for x in arrays)
    return tuple(x.astype(np.float64 if is_double else np.float32) for x in arrays)


def _convolution(x: Array, w: Array, bias: Array | None = None, *, strides: Sizes, dilations: Sizes, padding: Pairs,
                 group_count: int) -> Array:  # fmt: skip
    """Convolution of [N, C, *spatial] with [O, I, *kernel]; bias is [O]."""
    x, w = _wide(x, w)
    y = lax.conv_general_dilated(x, w, strides, padding, rhs_dilation=dilations, feature_group_count=group_count)
    return y if bias is None else y + bias.astype(y.dtype).reshape(-1, *(1,) * (y.ndim - 2))[None]


def _product(a: Array, b: Array, *, alpha: float = 1.0, rows: int = 1) -> Array:
    """alpha times the matrix product of `a` and `b`."""
    a, b = _wide(a, b)
    y = by_rows(lambda a: jnp.matmul(a, b), a, rows)
    return y if alpha == 1.0 else y * np.asarray(alpha, y.dtype)


def _sum(x: Array, y: Array) -> Array:
    x, y = _wide(x, y)
    return lax.add(x, lax.expand_dims(y, range(x.ndim - y.ndim)) if y.ndim < x.ndim else y)


def _clip(x: Array, *, min: float | None = None, max: float | None = None) -> Array:
    x = x if min is None else lax.max(x, np.asarray(min, x.dtype))
    return x if max is None else lax.min(x, np.asarray(max, x.dtype))


def _merged(x: Array, *, count: int) -> Array:
    """Merges the last `count` dimensions of x."""
    return x.reshape(*x.shape[:-count], math.prod(x.shape[-count:]))


def _split(x: Array, *, sizes: Sizes) -> Array:
    """Splits the last dimension of x into dimensions of the given sizes."""
    return x.reshape(*x.shape[:-1], *sizes)


def _average(x: Array, *, window: Sizes, strides: Sizes, padding: Pairs, include_padding: bool) -> Array:
    """Average pooling."""
    (x,) = _wide(x)
    zero = np.zeros((), x.dtype)
    sums = lax.reduce_window(x, zero, lax.add, window, strides, padding)
    if include_padding:
        return sums / np.asarray(math.prod(window), x.dtype)
    return sums / lax.reduce_window(jnp.ones_like(x), zero, lax.add, window, strides, padding)


def _mean(x: Array, *, axes: Sizes) -> Array:
    return jnp.mean(_wide(x)[0], axis=tuple(axes))


def _rounded(x: Array, scale: Array, zero_point: Array | None = None, *, dtype: str) -> Array:
    """Quantizes x, and dequantizes the integers."""
    zero_point = None if zero_point is None else zero_point.reshape(())
    x, scale = x.astype(np.float32), scale.reshape(()).astype(np.float32)  # types differ if a cast of x was dropped
    return fake_quantize(x, scale, zero_point, output_dtype=dtype)


def _padded(x: Array, *, config: Sequence[tuple[int, int, int]]) -> Array:
    return lax.pad(x, np.zeros((), x.dtype), config)


def _joined(*xs: Array, axis: int) -> Array:
    return lax.concatenate(_wide(*xs), axis)


# The table -----------------------------------------------------------------------------------------------------------


# Primitives whose results consist of elements of their inputs.
SELECTING = frozenset((
    "broadcast_in_dim", "concatenate", "dynamic_slice", "dynamic_update_slice", "expand_dims", "gather",
    "optimization_barrier", "pad", "reshape", "rev", "select_n", "slice", "split", "squeeze", "tile", "transpose",
))  # fmt: skip


def equation(name: str, kind: str | None = None) -> Operator:
    """The operator that runs an equation; its node's option `equation` is the equation or the equation's index."""
    return Operator(name, run, kind=kind, only_selects=name in SELECTING)


TRANSPOSE = Operator("transpose", lambda x, *, permutation: lax.transpose(x, permutation), kind="mover")
MERGE = Operator("merge", _merged, kind="mover")
SPLIT = Operator("split", _split, kind="mover")
EXPAND = Operator("expand", lambda x, *, axis: jnp.expand_dims(x, axis), kind="mover")
INTERLEAVE = Operator("interleave", interleaved, kind="mover")
CONVOLUTION = Operator("convolution", _convolution, kind="conv", has_rule=False)
PRODUCT = Operator("product", _product, kind="dot", has_rule=False)
ADD = Operator("add", _sum, kind="add")
MULTIPLY = Operator("multiply", lambda x, y: lax.mul(*_wide(x, y)), kind="mul")
CLIP = Operator("clip", _clip, kind="clip")
MAX_POOL = Operator("max pooling", greatest_of_windows, kind="max_pool")
AVERAGE_POOL = Operator("average pooling", _average, kind="window_mean")
MEAN = Operator("mean", _mean, kind="mean")
PAD = Operator("pad", _padded, kind="pad", only_selects=True)
FAKE_QUANTIZE = Operator("fake_quantize", _rounded, kind="fake_quantize")
CONCATENATE = Operator("concatenate", _joined, kind="concat", only_selects=True)
FLOAT_OPERATORS = (
    TRANSPOSE, MERGE, SPLIT, EXPAND, INTERLEAVE, CONVOLUTION, PRODUCT, ADD, MULTIPLY, CLIP, MAX_POOL, AVERAGE_POOL,
    MEAN, PAD, CONCATENATE, FAKE_QUANTIZE,
)  # fmt: skip
CONTRACTIONS = ("conv", "dot")  # kinds of convolutions and products
