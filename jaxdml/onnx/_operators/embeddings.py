"""Operators that decoders of language models use: embeddings from a quantized matrix, and rotary embeddings."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.rounding import flushed, rounded_to
from jaxdml._exact.arithmetic import added, multiplied, subtracted
from jaxdml._quantized.axes import axis_of
from jaxdml.errors import ModelError
from jaxdml.onnx._operators._arrays import Array, broadcast, product, wide
from jaxdml.onnx._operators.indexing import gather
from jaxdml.onnx._table import INDEX, MICROSOFT, NIBBLE, operator

REAL, UINT8 = frozenset({"float32", "float16"}), frozenset({"uint8"})
TURNED = frozenset({"float32", "float16", "bfloat16"})  # types of rotary embeddings

# Rows of a quantized matrix ------------------------------------------------------------------------------------------


def _gather_options(
    *, bits: int = 4, block_size: int = 128, gather_axis: int = 0, quantize_axis: int = 1
) -> dict[str, Any]:
    if bits not in (2, 4, 8):
        raise ModelError(f"attribute 'bits' is {bits}; supported: 2, 4, 8")
    if block_size < 16 or block_size & (block_size - 1):
        raise ModelError(f"attribute 'block_size' is {block_size}, expected a power of two of at least 16")
    return {"bits": bits, "block_size": block_size, "gather_axis": gather_axis, "quantize_axis": quantize_axis}


@operator("GatherBlockQuantized", domain=MICROSOFT, types=(NIBBLE | UINT8, INDEX, REAL, NIBBLE | UINT8),
          options=_gather_options)  # fmt: skip
def gather_block_quantized(
    data: Array, indices: Array, scales: Array, zero_points: Array | None = None, *,
    bits: int, block_size: int, gather_axis: int, quantize_axis: int,
) -> Array:  # fmt: skip
    """The slices at the indices along an axis, dequantized: (element - zero point) * scale.

    Each block along `quantize_axis` has a scale and a zero point. A byte of uint8 data holds 8 / bits elements, the
    first one in the lowest bits. An absent zero point is the middle of the range of uint8 data, and 0 for other data.
    """
    along, of_blocks = (axis_of(axis, data.ndim) for axis in (gather_axis, quantize_axis))
    is_packed = data.dtype == jnp.uint8
    if data.ndim < 2:
        raise ModelError(f"data has shape {data.shape}, expected at least two dimensions")
    if is_packed and (along, of_blocks) != (0, data.ndim - 1):
        text = f"gather_axis is {gather_axis} and quantize_axis is {quantize_axis}"
        raise ModelError(f"{text}, expected 0 and -1 for uint8 data")
    if not is_packed and bits != 4:
        raise ModelError(f"bits is {bits}, expected 4 for data of {data.dtype}")
    size = data.shape[of_blocks] * (8 // bits if is_packed else 1)
    blocks = -(-size // block_size)
    expected = (*data.shape[:of_blocks], blocks, *data.shape[of_blocks + 1 :])
    packed = (*expected[:-1], -(-blocks * bits // 8)) if is_packed else expected
    for name, x, shape in (("scales", scales, expected), ("zero_points", zero_points, packed)):
        if x is not None and x.shape != shape:
            raise ModelError(f"{name} has shape {x.shape}, expected {shape} for data of shape {data.shape}")
    # The place of the quantized axis in the result, unless the axes of the indices replace this axis.
    place = of_blocks if of_blocks <= along else of_blocks + indices.ndim - 1
    if along == of_blocks:
        wanted = jnp.where(indices < 0, indices + size, indices) // np.asarray(block_size, indices.dtype)
    else:
        wanted = indices

    def for_each(parameter: Array) -> Array:
        return parameter if along == of_blocks else jnp.take(parameter, np.arange(size) // block_size, place)

    steps = gather(data, indices, axis=along)
    steps = _of_few_bits(steps, bits) if is_packed else lax.convert_element_type(steps, jnp.float32)
    if zero_points is not None:
        offsets = gather(zero_points, wanted, axis=along)
        offsets = _of_few_bits(offsets, bits) if is_packed else lax.convert_element_type(offsets, jnp.float32)
        steps = steps - for_each(offsets)
    elif is_packed:
        steps = steps - np.float32(2 ** (bits - 1))
    scale = for_each(gather(scales, wanted, axis=along))
    return product(steps, wide(scale)).astype(scales.dtype)


def _of_few_bits(packed: Array, bits: int) -> Array:
    """uint8 [..., bytes] as float32 [..., bytes * 8 / bits], the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = lax.shift_right_logical(*broadcast(jnp.asarray(packed)[..., None], shifts)) & np.uint8(2**bits - 1)
    return parts.reshape(*packed.shape[:-1], packed.shape[-1] * len(shifts)).astype(jnp.float32)


# Rotary embeddings ---------------------------------------------------------------------------------------------------


@operator("RotaryEmbedding", since=23, types=(TURNED, TURNED, TURNED, INDEX))
def rotary_embedding(
    x: Array, cos_cache: Array, sin_cache: Array, position_ids: Array | None = None, *,
    interleaved: int = 0, num_heads: int | None = None, rotary_embedding_dim: int = 0,
) -> Array:  # fmt: skip
    """Rotates pairs of elements by angles that depend on the position.

    Args:
      x: [batch, heads, sequence, size], or [batch, sequence, heads * size].
      cos_cache, sin_cache: [positions, pairs]; without position_ids [batch, sequence, pairs].
      position_ids: [batch, sequence].
      interleaved: whether the elements of a pair are neighbors; otherwise element i and element i + pairs are a pair.
      num_heads: the number of heads, needed if x has three dimensions.
      rotary_embedding_dim: the number of elements that are rotated, the first ones of each head; 0 means all.
    """
    heads = _by_head(x, num_heads)
    if position_ids is not None:
        cos_cache, sin_cache = (gather(cache, position_ids) for cache in (cos_cache, sin_cache))
    return _rotated(x, heads, cos_cache, sin_cache, interleaved, rotary_embedding_dim or heads.shape[-1])


@operator("RotaryEmbedding", domain=MICROSOFT, types=(TURNED, INDEX, TURNED, TURNED))
def rotary_embedding_of_microsoft(
    x: Array, position_ids: Array, cos_cache: Array, sin_cache: Array, *,
    interleaved: int | None = None, is_packed_batching: int | None = None, num_heads: int | None = None,
    rotary_embedding_dim: int | None = None, scale: float | None = None,
) -> Array:  # fmt: skip
    """`rotary_embedding`; position_ids may be one number, the position of the first element of each sequence.

    Without num_heads and rotary_embedding_dim, a head has twice as many elements as the caches have columns.
    """
    if scale not in (None, 1) or is_packed_batching:
        raise ModelError("attribute 'scale' or 'is_packed_batching' is set, which is not supported")
    pairs = cos_cache.shape[-1]
    if not (num_heads or rotary_embedding_dim) and x.ndim == 3 and pairs:
        num_heads = x.shape[-1] // (2 * pairs)
    heads = _by_head(x, num_heads)
    if position_ids.size == 1 and position_ids.ndim == 1:
        steps = np.arange(heads.shape[1], dtype=np.int32)
        position_ids = jnp.broadcast_to(position_ids + steps, heads.shape[:2])
    cos, sin = (gather(cache, position_ids) for cache in (cos_cache, sin_cache))
    return _rotated(x, heads, cos, sin, interleaved, rotary_embedding_dim or heads.shape[-1])


def _by_head(x: Array, num_heads: int | None) -> Array:
    """x as [batch, sequence, heads, size]."""
    if x.ndim == 4:
        return jnp.swapaxes(x, 1, 2)
    if x.ndim != 3:
        raise ModelError(f"x has shape {x.shape}, expected 3 or 4 dimensions")
    if not num_heads or num_heads < 0 or x.shape[-1] % num_heads:
        raise ModelError(f"num_heads is {num_heads}, expected a divisor of {x.shape[-1]}, the last dimension of x")
    return jnp.reshape(x, (*x.shape[:2], num_heads, x.shape[-1] // num_heads))


def _rotated(x: Array, heads: Array, cos: Array, sin: Array, interleaved: int | None, count: int) -> Array:
    """Rotates the first `count` elements of each head; cos and sin are [batch, sequence, pairs]."""
    size = heads.shape[-1]
    if count % 2 or not 0 < count <= size:
        raise ModelError(f"rotary_embedding_dim is {count}, expected an even number from 2 to {size}, a head's size")
    expected = (*heads.shape[:2], count // 2)
    if not cos.shape == sin.shape == expected:
        raise ModelError(f"cosines and sines have shapes {cos.shape} and {sin.shape}, expected {expected}")
    y = rotated(heads, cos[:, :, None], sin[:, :, None], bool(interleaved))
    return jnp.swapaxes(y, 1, 2) if x.ndim == 4 else y.reshape(x.shape)


def rotated(x: Array, cos: Array, sin: Array, is_interleaved: bool) -> Array:
    """Four-dimensional x with the first pairs of each row rotated, each by its own angle.

    The elements of a pair are neighbors if interleaved; otherwise element i and element i + pairs are a pair.

    Args:
      x: rows along the last dimension.
      cos, sin: cosines and sines of the angles, one for each pair; the other dimensions broadcast to those of x.
      is_interleaved: whether the elements of a pair are neighbors.
    """
    pairs = cos.shape[-1]
    wide = flushed(jnp.asarray(x, jnp.float32))
    turned, rest = wide[..., : 2 * pairs], wide[..., 2 * pairs :]
    pair = turned.reshape(*x.shape[:3], *((pairs, 2) if is_interleaved else (2, pairs)))
    axis = 4 if is_interleaved else 3
    first, second = (lax.index_in_dim(pair, place, axis, keepdims=False) for place in (0, 1))
    cos, sin = (jnp.broadcast_to(flushed(jnp.asarray(each, jnp.float32)), first.shape) for each in (cos, sin))
    both = (
        subtracted(multiplied(first, cos), multiplied(second, sin)),
        added(multiplied(first, sin), multiplied(second, cos)),
    )
    turned = jnp.stack(both, axis).reshape(turned.shape)
    return rounded_to(jnp.concatenate([turned, rest], 3), x.dtype)
