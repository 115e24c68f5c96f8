"""com.microsoft's MatMulNBits."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array


def matmul_nbits(
    a: Any, b: Any, scales: Any, zero_points: Any | None = None, g_idx: Any | None = None, bias: Any | None = None, *,
    K: int, N: int, bits: int = 4, block_size: int, accuracy_level: int = 0,  # noqa: N803 # the attributes' names
) -> Array:  # fmt: skip
    """The product of float [..., K] with dequantized weights of 2, 4 or 8 bits, plus a bias [N], in the type of `a`.

    Products and sums are float32; the platform chooses the order of sums. accuracy_level, which allows ONNX Runtime to
    lose accuracy, is ignored; at level 4, ONNX Runtime rounds `a` to 8 bits. With g_idx, ONNX Runtime 1.32 replaces
    each uint8 zero point by 8; jaxdml uses the given zero points.
    """
    weights = dequantized_weights(b, scales, zero_points, g_idx, K=K, N=N, bits=bits, block_size=block_size)
    dimensions = (((a.ndim - 1,), (1,)), ((), ()))
    product = lax.dot_general(lax.convert_element_type(a, jnp.float32), weights, dimensions, lax.Precision.HIGHEST)
    if bias is not None:
        product = product + jnp.broadcast_to(lax.convert_element_type(bias, jnp.float32), product.shape)
    return lax.convert_element_type(product, a.dtype)


def dequantized_weights(
    b: Any, scales: Any, zero_points: Any | None = None, g_idx: Any | None = None, *,
    K: int, N: int, bits: int = 4, block_size: int,  # noqa: N803 # the attributes' names
) -> Array:  # fmt: skip
    """The weights of `matmul_nbits` as float32 [N, K]: (element - zero point) * scale.

    Args:
      b: uint8 [N, blocks, bytes], the elements packed from the lowest bits up.
      scales: one scale for each row and block, in any shape.
      zero_points: uint8, packed row by row like `b`; or floats, one for each row and block; None means the middle of
        the range.
      g_idx: int32 [K], the block whose scale applies to each element; None means the element's own block.
      K, N: rows and columns of the right operand.
      bits: 2, 4 or 8.
      block_size: number of elements of a block.
    """
    blocks = -(-K // block_size)
    elements = _unpacked(jnp.asarray(b).reshape(N, -1), bits)[:, :K]
    scales = _float32(scales).reshape(N, blocks)
    if zero_points is None:
        offsets: Any = jnp.full((N, blocks), 1 << (bits - 1), jnp.float32)
    elif zero_points.dtype == jnp.uint8:
        offsets = _unpacked(jnp.asarray(zero_points).reshape(N, -1), bits)[:, :blocks]
    else:
        offsets = _float32(zero_points).reshape(N, blocks)
    block = np.arange(K, dtype=np.int32) // block_size if g_idx is None else g_idx
    return (elements - jnp.take(offsets, block, axis=1)) * jnp.take(scales, block, axis=1)


def _unpacked(rows: Array, bits: int) -> Array:
    """Unpacks bytes [N, count] to float32 [N, count * 8 / bits]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = lax.shift_right_logical(*jnp.broadcast_arrays(rows[:, :, None], shifts[None, None])) & np.uint8(2**bits - 1)
    return _float32(parts.reshape(len(rows), math.prod(parts.shape[1:])))


def _float32(x: Any) -> Array:
    return lax.convert_element_type(x, jnp.float32)
