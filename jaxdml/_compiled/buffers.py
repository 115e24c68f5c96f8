"""Reads and writes strided tensors in flat buffers by reshapes, transposes and pads, which XLA fuses.

Only strides that are not nested (see `is_nested`), such as those of sliding windows, need a gather or scatter.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._directml.desc import TensorDesc
from jaxdml._directml.strides import by_stride, is_nested, packed_strides, reach
from jaxdml._shapes import Shape

Array = jax.Array


def read(buffer: Array, tensor: TensorDesc) -> Array:
    """Reads a tensor from a flat buffer; dimensions with a stride of 0 have size 1 in the result."""
    sizes, strides = unrepeated(tensor), strides_of(tensor)
    if not is_nested(sizes, strides):
        return buffer.at[_offsets(sizes, strides)].get(mode="promise_in_bounds")
    axes = by_stride(sizes, strides)
    x = buffer
    for axis in axes:  # split off each dimension, the outermost first
        size, stride = sizes[axis], strides[axis]
        x = _fit(x, size * stride).reshape(*x.shape[:-1], size, stride)
    x = x[..., 0]
    return jnp.transpose(x, [axes.index(axis) for axis in sorted(axes)]).reshape(sizes)


def write(x: Array, tensor: TensorDesc, buffer: Array | None, length: int | None = None) -> Array:
    """Writes a tensor into a flat buffer and keeps the values in the gaps between its elements.

    If `buffer` is None, the result is a new buffer with zeros in the gaps. `length` is the length of the new buffer;
    None means the reach of the strides.
    """
    sizes, strides = tensor.sizes, strides_of(tensor)
    least = reach(sizes, strides)
    if not is_nested(sizes, strides):
        buffer = jnp.zeros(length or least, x.dtype) if buffer is None else buffer
        return buffer.at[_offsets(sizes, strides)].set(x, mode="promise_in_bounds", unique_indices=True)
    flat = _flat(x, sizes, strides)
    if buffer is None:
        return _fit(flat, length or least)
    if math.prod(sizes) < least:  # there are gaps
        flat = jnp.where(_flat(jnp.ones(sizes, bool), sizes, strides), flat, buffer[:least])
    return lax.dynamic_update_slice(buffer, flat, (0,))


def unpacked(buffer: Array, tensor: TensorDesc) -> Array:
    """A flat buffer with one entry per element; 4-bit elements are unpacked, the low bits first."""
    if not tensor.data_type.is_packed or buffer.dtype != tensor.data_type.buffer_dtype:
        return buffer
    low, high = lax.bitwise_and(buffer, np.uint8(15)), lax.shift_right_logical(buffer, np.uint8(4))
    elements = lax.reshape(lax.concatenate([x[:, None] for x in (low, high)], 1), (2 * buffer.size,))
    if tensor.data_type.dtype == jnp.int4:
        elements = lax.bitcast_convert_type(elements, jnp.int8)
        elements = lax.sub(lax.bitwise_xor(elements, np.int8(8)), np.int8(8))
    return lax.convert_element_type(elements, tensor.data_type.dtype)


def packed(flat: Array, tensor: TensorDesc) -> Array:
    """The inverse of `unpacked`: packs two 4-bit elements into each byte."""
    if not tensor.data_type.is_packed:
        return flat
    pairs = lax.reshape(_fit(flat, flat.size + flat.size % 2), (-(-flat.size // 2), 2))
    nibbles = lax.bitwise_and(lax.convert_element_type(pairs, jnp.int32), np.int32(15))
    value = lax.bitwise_or(nibbles[:, 0], lax.shift_left(nibbles[:, 1], np.int32(4)))
    return lax.convert_element_type(value, jnp.uint8)


def is_reshape(tensor: TensorDesc) -> bool:
    """Whether reshapes and transposes can read the tensor, without a gather."""
    return is_nested(unrepeated(tensor), strides_of(tensor))


def strides_of(tensor: TensorDesc) -> Shape:
    """The strides of a tensor; packed strides if it has none."""
    return packed_strides(tensor.sizes) if tensor.strides is None else tensor.strides


def unrepeated(tensor: TensorDesc) -> Shape:
    """The sizes of a tensor, with 1 for each stride of 0."""
    return tuple(size if stride else 1 for size, stride in zip(tensor.sizes, strides_of(tensor), strict=True))


def _flat(x: Array, sizes: Shape, strides: Shape) -> Array:
    """x laid out by nested strides, with zeros in the gaps."""
    axes = by_stride(sizes, strides)
    ones = (axis for axis in range(x.ndim) if axis not in axes)
    x = jnp.transpose(x, [*axes, *ones]).reshape(*(sizes[axis] for axis in axes), 1)
    for axis in reversed(axes):  # pad and merge each dimension, the innermost first
        x = _fit(x, strides[axis])
        x = x.reshape(*x.shape[:-2], -1)
    return _fit(x, reach(sizes, strides))


def _fit(x: Array, length: int) -> Array:
    """x with its last dimension cut or zero-padded to a length."""
    missing = length - x.shape[-1]
    if missing <= 0:
        return lax.slice_in_dim(x, 0, length, axis=-1)
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0)] * (x.ndim - 1) + [(0, missing, 0)])


def _offsets(sizes: Sequence[int], strides: Sequence[int]) -> Array:
    """The index in the buffer of each element."""
    steps = [lax.broadcasted_iota(jnp.int32, sizes, axis) * np.int32(stride) for axis, stride in enumerate(strides)]
    return sum(steps[1:], start=steps[0])
