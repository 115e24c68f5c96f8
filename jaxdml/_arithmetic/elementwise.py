"""The elementwise operators on validated arrays. `rounding` defines fl, rne and sat."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import native_elementwise, rounding
from jaxdml._arithmetic.kernel_call import Kernel, with_kernel

Array = jax.Array


@with_kernel(native_elementwise.DEQUANTIZE)
def dequantized(x: Array, scale: Array, zero_point: Array | None) -> Array:
    """fl(fl(x - zero_point) * scale), rounded once more if scale is float16; the result has scale's type."""
    return rounding.scaled(rounding.difference(x, zero_point), scale)


@with_kernel(native_elementwise.QUANTIZE)
def quantized(x: Array, scale: Array, zero_point: Array | None, *, output_dtype: Any) -> Array:
    """sat(rne(fl(x / scale)) + zero_point)."""
    x, scale = (rounding.flushed(lax.convert_element_type(value, jnp.float32)) for value in (x, scale))
    quotient = rounding.quotient(x, rounding.with_rank(scale, x.ndim))
    return rounding.saturate(quotient, zero_point, output_dtype)


def _scaled_sums(sums: Array, bias: Array | None, scale: Array, *, leading: int = 0) -> Array:
    return rounding.scaled(rounding.difference(sums if bias is None else sums + bias, None), scale)


def _takes_scaled_sums(sums: Any, bias: Any, scale: Any) -> bool:
    are_known = all(isinstance(size, int) for size in sums.shape)
    return are_known and sums.dtype == jnp.int32 and scale.dtype == jnp.float32


# XLA computes the floats, unless `jaxdml.exact` finds a program on rows that reads them, and computes them there.
SCALED_SUMS = Kernel(_scaled_sums, lambda sums, *_: (sums.shape, jnp.float32), _takes_scaled_sums)


@with_kernel(SCALED_SUMS)
def scaled_sums(sums: Array, bias: Array | None, scale: Array) -> Array:
    """fl(fl(sums + bias) * scale), rounded once more if scale is float16; the result has scale's type.

    Args:
      sums: int32 [N, C, *spatial].
      bias: int32 of the same rank, which broadcasts to sums.
      scale: floats of the same rank, which broadcast to sums.
    """
    return _scaled_sums(sums, bias, scale)


@with_kernel(native_elementwise.ADD)
def quantized_sum(
    a: Array, a_scale: Array, a_zero_point: Array | None, b: Array, b_scale: Array, b_zero_point: Array | None,
    output_scale: Array, output_zero_point: Array | None, *, output_dtype: Any,
) -> Array:  # fmt: skip
    """sat(rne(fl(fl(A + B) / output_scale)) + output_zero_point); A and B are the dequantized `a` and `b`."""
    a_value = rounding.scaled(rounding.difference(a, a_zero_point), a_scale)
    b_value = rounding.scaled(rounding.difference(b, b_zero_point), b_scale)
    output_scale = rounding.flushed(rounding.with_rank(output_scale, a.ndim))
    quotient = rounding.quotient(rounding.total(a_value, b_value), output_scale)
    return rounding.saturate(quotient, output_zero_point, output_dtype)


@with_kernel(native_elementwise.EXTREMES)
def extremes(x: Array) -> Array:
    """The minimum and the maximum of 0 and all elements of float32 x, as float32 [2]; NaN if an element is NaN."""
    axes, zero = tuple(range(x.ndim)), np.float32(0)
    # XLA drops the initial value if x has one element, so 0 cannot be the initial value.
    low = lax.min(lax.reduce(x, np.float32(np.inf), lax.min, axes), zero)
    high = lax.max(lax.reduce(x, np.float32(-np.inf), lax.max, axes), zero)
    has_nan = lax.reduce(lax.ne(x, x), np.False_, lax.bitwise_or, axes)
    low, high = (lax.select(has_nan, lax.full_like(end, np.nan), end) for end in (low, high))
    return lax.concatenate([lax.expand_dims(low, (0,)), lax.expand_dims(high, (0,))], 0)


def dynamically_quantized(x: Array, *, output_dtype: Any) -> tuple[Array, Array, Array]:
    """The quantized x, and the scale and zero point that follow from x's range, each of shape [1, ...]."""
    x = lax.convert_element_type(x, jnp.float32)
    ends = extremes(x)
    low, high = (lax.squeeze(lax.slice_in_dim(ends, i, i + 1), (0,)) for i in range(2))
    scale, zero_point = rounding.range_scale(low, high, output_dtype)
    ones = (1,) * x.ndim
    output = quantized(x, scale, zero_point, output_dtype=output_dtype)
    return output, lax.reshape(scale, ones), lax.reshape(zero_point, ones)


# Blocks --------------------------------------------------------------------------------------------------------------


def quantized_blocks(x: Array, scale: Array, zero_point: Array | None, *, output_dtype: Any) -> Array:
    """`quantized` with one scale and zero point for each block."""
    blocked, parameters = _in_blocks(x, scale, _zero_point(zero_point, output_dtype))
    return lax.reshape(quantized(blocked, *parameters, output_dtype=output_dtype), x.shape)


@with_kernel(native_elementwise.DEQUANTIZE_BLOCKS)
def dequantized_blocks(x: Array, scale: Array, zero_point: Array | None) -> Array:
    """`dequantized` with one scale and zero point for each block."""
    blocked, parameters = _in_blocks(x, scale, _zero_point(zero_point, x.dtype))
    return lax.reshape(dequantized(blocked, *parameters), x.shape)


def _zero_point(zero_point: Array | None, dtype: Any) -> Any:
    """The zero point; if it is None and dtype is unsigned, the middle of dtype's range."""
    limits = rounding.limits_of(dtype)
    return np.asarray((limits.max + 1) // 2, dtype) if zero_point is None and limits.min == 0 else zero_point


def _in_blocks(x: Array, *parameters: Any) -> tuple[Array, list[Any]]:
    """x with each blocked dimension split into [blocks, block size], and parameters in shapes that broadcast to it."""
    given = [p for p in parameters if p is not None and p.ndim]
    blocks = [_blocks(size, [p.shape[axis] for p in given]) for axis, size in enumerate(x.shape)]
    shape: list[Any] = []
    for size, count in zip(x.shape, blocks, strict=True):
        shape += [size] if _is_unsplit(size, count) else [count, size // count]
    return lax.reshape(x, shape), [_for_blocks(p, x.shape, blocks) for p in parameters]


def _blocks(size: Any, counts: list[Any]) -> Any:
    """The number of blocks of a dimension: the fewest for which no block spans two values of a parameter."""
    several = [count for count in counts if not (isinstance(count, int) and count == 1)]
    if all(count == size for count in several):
        return size if several else 1
    return math.lcm(*several)


def _is_unsplit(size: Any, count: Any) -> bool:
    """Whether a dimension is not split: it has one block, or one for each element."""
    return bool(count == size) or (isinstance(count, int) and count == 1)


def _for_blocks(parameter: Any, sizes: Sequence[Any], blocks: Sequence[Any]) -> Any:
    if parameter is None or not parameter.ndim:
        return parameter
    shape: list[Any] = []
    for axis, (size, count) in enumerate(zip(sizes, blocks, strict=True)):
        if parameter.shape[axis] not in (1, count):
            parameter = jnp.repeat(parameter, count // parameter.shape[axis], axis)
        own = parameter.shape[axis]
        shape += [own] if _is_unsplit(size, count) else [own, 1]
    return lax.reshape(parameter, shape)
