"""Exact products and convolutions of 8-bit tensors, and the preparation of weights for them.

The functions return sums of (x - x_zero_point) * (y - y_zero_point) in int32, modulo 2**32, or requantize the sums.
"""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import native, rounding
from jaxdml._arithmetic.int8 import signed, signed_zero_point
from jaxdml._arithmetic.kernel_call import with_kernel
from jaxdml._arithmetic.layouts import Filter
from jaxdml._arithmetic.packing import Waiting
from jaxdml._arithmetic.platforms import arrange_filter, dot_in_floats, fits_floats, int8_conv, int8_dot
from jaxdml._arithmetic.prepared import PreparedFilter, PreparedMatrix
from jaxdml._arithmetic.windows import window_sums
from jaxdml._arithmetic.zero_points import corrected, sums_of_columns, sums_of_filters, sums_of_rows

Array = jax.Array


def dot(a: Array, a_zero_point: Array | None, b: Array | PreparedMatrix, b_zero_point: Array | None) -> Array:
    """Matrix product of 8-bit [..., M, K] and [..., K, N] in int32. Zero points broadcast to their matrices."""
    rank, sizes = a.ndim, (math.prod(a.shape[:-1]), a.shape[-1], b.shape[-1])
    a_zero_point = signed_zero_point(rounding.with_rank(a_zero_point, rank), a.dtype)
    b_zero_point = signed_zero_point(rounding.with_rank(b_zero_point, rank), b.dtype)
    in_floats = fits_floats(*sizes, a_zero_point is not None, b_zero_point is not None)
    values, layout = b.signed() if isinstance(b, PreparedMatrix) else (signed(b if in_floats else _unfolded(b)), "KN")

    def by_integers(a: Array, a_zero_point: Any, b: Array, b_zero_point: Any, layout: str) -> Array:
        total = int8_dot(a, b, layout)
        depth, sums_of_b, sums_of_a = sizes[1], partial(sums_of_columns, b, layout), partial(sums_of_rows, a)
        return corrected(total, depth, a_zero_point, sums_of_b, b_zero_point, sums_of_a)

    operands = signed(a), a_zero_point, values, b_zero_point
    return dot_in_floats(by_integers, *operands, layout) if in_floats else by_integers(*operands, layout)


@with_kernel(native.DOT)
def requantized_dot(
    a: Array, a_scale: Array, a_zero_point: Array | None,
    b: Array | PreparedMatrix, b_scale: Array, b_zero_point: Array | None,
    bias: Array | None, output_scale: Array, output_zero_point: Array | None, *, output_dtype: Any,
) -> Array:  # fmt: skip
    """`dot` plus bias, requantized. Scales and zero points broadcast to the product; the bias has the shape [N]."""
    accumulator = dot(a, a_zero_point, b, b_zero_point)
    if bias is not None:
        accumulator = lax.add(accumulator, jnp.broadcast_to(bias, accumulator.shape))
    return rounding.requantize(accumulator, a_scale, b_scale, output_scale, output_zero_point, output_dtype)


def conv(
    x: Array,
    x_zero_point: Array | None,
    filter: Array | PreparedFilter,
    filter_zero_point: Array | None,
    *,
    strides: Sequence[int],
    dilations: Sequence[int],
    padding: Sequence[tuple[int, int]],
    group_count: int,
) -> Array:
    """Convolution of 8-bit [N, C, *spatial] with [O, C / groups, *kernel], in int32.

    The padding value is x_zero_point, which has one element. filter_zero_point has one element or the shape
    [1, O, 1, ...].
    """
    if isinstance(filter, PreparedFilter):
        weights = filter.signed()
    else:
        weights = Filter(*arrange_filter(signed(_unfolded(filter)), group_count))
    outputs, channels, *kernel = weights.shape
    edge: Any = np.zeros((), x.dtype) if x_zero_point is None else lax.squeeze(x_zero_point, range(x_zero_point.ndim))
    x_zero_point = signed_zero_point(rounding.with_rank(x_zero_point, x.ndim), x.dtype)
    filter_zero_point = signed_zero_point(rounding.with_rank(filter_zero_point, x.ndim), filter.dtype)
    # XLA:CPU convolves faster if x is signed before it is padded.
    x = lax.pad(signed(x), signed(edge), [(0, 0, 0), (0, 0, 0), *((start, end, 0) for start, end in padding)])
    options = {"strides": tuple(strides), "dilations": tuple(dilations)}
    total = int8_conv(x, weights, **options)

    def sums_of_filter() -> Array:
        sums = sums_of_filters(weights)
        return lax.broadcast_in_dim(sums, (1, outputs, *(1,) * len(kernel)), (1,))

    def sums_of_x() -> Array:
        return window_sums(x, weights, **options)

    depth = channels * math.prod(kernel)
    return corrected(total, depth, x_zero_point, sums_of_filter, filter_zero_point, sums_of_x)


@with_kernel(native.CONV)
def requantized_conv(
    x: Array, x_scale: Array, x_zero_point: Array | None,
    filter: Array | PreparedFilter, filter_scale: Array, filter_zero_point: Array | None,
    bias: Array | None, output_scale: Array, output_zero_point: Array | None, *,
    output_dtype: Any, strides: Sequence[int], dilations: Sequence[int], padding: Sequence[tuple[int, int]],
    group_count: int,
) -> Array:  # fmt: skip
    """`conv` plus bias, requantized. Bias and parameters of the filter have one element or the shape [1, O, 1, ...]."""
    accumulator = conv(
        x,
        x_zero_point,
        filter,
        filter_zero_point,
        strides=strides,
        dilations=dilations,
        padding=padding,
        group_count=group_count,
    )
    if bias is not None:
        accumulator = lax.add(accumulator, bias)
    return rounding.requantize(accumulator, x_scale, filter_scale, output_scale, output_zero_point, output_dtype)


@with_kernel(native.INTEGER_DOT)
def integer_dot(a: Array, a_zero_point: Array | None, b: Array | PreparedMatrix, b_zero_point: Array | None) -> Array:
    """`dot`, computed by a native kernel if native kernels are in use."""
    return dot(a, a_zero_point, b, b_zero_point)


@with_kernel(native.FLOAT_DOT)
def float_dot(
    a: Array, a_scale: Array, a_zero_point: Array | None,
    b: Array | PreparedMatrix, b_scale: Array, b_zero_point: Array | None, bias: Array | None,
) -> Array:  # fmt: skip
    """`dot` in float32: the sums multiplied by float32 scales, plus a float32 bias that broadcasts to the product."""
    return rounding.multiplied(integer_dot(a, a_zero_point, b, b_zero_point), a_scale, b_scale, bias)


@with_kernel(native.INTEGER_CONV)
def integer_conv(
    x: Array, x_zero_point: Array | None, filter: Array | PreparedFilter, filter_zero_point: Array | None,
    **options: Any,
) -> Array:  # fmt: skip
    """`conv`, computed by a native kernel if native kernels are in use."""
    return conv(x, x_zero_point, filter, filter_zero_point, **options)


# Weights -------------------------------------------------------------------------------------------------------------


def prepare_matrix(b: Array, is_packed: bool = True) -> PreparedMatrix:
    """Prepares 8-bit [..., K, N]. If is_packed and native kernels are in use, packs it for them."""
    return PreparedMatrix.of(_unfolded(b), is_packed)


def prepare_filter(filter: Array, group_count: int, is_packed: bool = True) -> PreparedFilter:
    """Prepares 8-bit [O, C / groups, *kernel]. If is_packed and native kernels are in use, packs it for them."""
    return PreparedFilter.of(_unfolded(filter), group_count, is_packed)


def prepare_numpy_matrix(b: np.ndarray) -> PreparedMatrix:
    """`prepare_matrix` of a NumPy array, without compilation: for XLA's kernels, NumPy arranges the array.

    For native kernels, the array waits for `packing.packed`.
    """
    return _on_device(PreparedMatrix.of(b))


def prepare_numpy_filter(filter: np.ndarray, group_count: int) -> PreparedFilter:
    """`prepare_filter` of a NumPy array, likewise."""
    return _on_device(PreparedFilter.of(filter, group_count))


def _on_device[P: (PreparedMatrix, PreparedFilter)](prepared: P) -> P:
    """A copy of NumPy data on the default device. `jnp.asarray` would compile a program for the copy."""
    if isinstance(prepared.data, Waiting):
        return prepared
    return dataclasses.replace(prepared, data=jax.device_put(np.array(prepared.data, order="C")))


def _unfolded(x: Any) -> Any:
    # The barrier keeps XLA from folding constant weights: XLA's interpreter would transpose and sum them slowly.
    return lax.optimization_barrier(x)
