"""Corrections of int8 products and convolutions for zero points.

sum (x - zx)(y - zy) = sum xy - zy sum x - zx sum y + depth zx zy. The identity is exact modulo 2**32, where integer
addition and multiplication are associative and distributive.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import cpu
from jaxdml._arithmetic.layouts import Filter, in_layout
from jaxdml._arithmetic.sharding import out_sharding

Array = jax.Array


def corrected(
    total: Array,
    depth: int,
    x_zero_point: Array | None,
    y_sums: Callable[[], Array],
    y_zero_point: Array | None,
    x_sums: Callable[[], Array],
) -> Array:
    """total, a contraction of x and y, corrected for their zero points. A zero point of None is 0 and needs no sums."""
    if y_zero_point is not None:
        total = lax.sub(total, lax.mul(y_zero_point, x_sums()))
    if x_zero_point is not None:
        total = lax.sub(total, lax.mul(x_zero_point, y_sums()))
    if x_zero_point is not None and y_zero_point is not None:
        total = lax.add(total, lax.mul(lax.mul(x_zero_point, y_zero_point), _int32(depth)))
    return total


def _int32(depth: Any) -> Any:
    """The depth as int32; a symbolic dimension of `jax.export` has a value only when the program runs."""
    return np.int32(depth) if isinstance(depth, int) else jnp.asarray(depth, jnp.int32)


def sums_of_columns(b: Array, layout: str) -> Array:
    """The sums over K of int8 [..., K, N], or of [..., N, K] if layout is "NK": int32 [..., 1, N]."""
    if layout == "NK":
        return in_layout(sums_of_rows(b), layout)

    def by_product(b: Array) -> Array:
        ones = _ones(b, (*b.shape[:-2], 4, b.shape[-2]), b.ndim - 2)
        return lax.slice_in_dim(cpu.dot(ones, b, layout), 0, 1, axis=-2)

    return _sums(b, by_product, b.ndim - 2)


def sums_of_rows(a: Array) -> Array:
    """The sums of int8 [..., M, K] over K: int32 [..., M, 1]."""

    def by_product(a: Array) -> Array:
        ones = _ones(a, (*a.shape[:-2], 4, a.shape[-1]), a.ndim - 1)
        return lax.slice_in_dim(cpu.dot(a, ones, "NK"), 0, 1, axis=-1)

    return _sums(a, by_product, a.ndim - 1)


def sums_of_filters(filter: Filter) -> Array:
    """Sums of each output channel of a filter: int32 [O]."""
    outputs, *rest = filter.shape
    if filter.layout.endswith("IO"):  # of one group
        sums = sums_of_columns(lax.reshape(filter.values, (math.prod(rest), outputs)), "KN")
    else:
        sums = lax.squeeze(sums_of_rows(filter.rows()), (2,))
    return lax.reshape(sums, (outputs,))


def _sums(x: Array, by_product: Callable[[Array], Array], axis: int) -> Array:
    """The sums of int8 x over an axis, kept with size 1.

    On a CPU a product with ones uses the int8 kernel; for a reduction XLA:CPU first writes x to memory in int32. There
    are four rows of ones because XLA:CPU has no kernel for outputs of 2 x 2. Compilers for accelerators fuse the
    reduction, and estimate that it costs less than a second product.
    """
    result: Array = lax.platform_dependent(x, cpu=by_product, default=partial(reduced, axis=axis))
    return result


def reduced(x: Array, axis: int) -> Array:
    """The int32 sums of int8 x over an axis, kept with size 1."""
    total = lax.reduce(lax.convert_element_type(x, jnp.int32), np.int32(0), lax.add, (axis,))
    return lax.expand_dims(total, (axis,))


def _ones(x: Array, shape: tuple[int, ...], depth: int) -> Array:
    """Rows of ones for each entry of x's batch, sharded like x; each row is as long as the axis `depth` of x."""
    batch = ((x, axis) for axis in range(x.ndim - 2))
    return lax.broadcast_in_dim(np.int8(1), shape, (), out_sharding=out_sharding(*batch, None, (x, depth)))
