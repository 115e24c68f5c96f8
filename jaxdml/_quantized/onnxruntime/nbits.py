"""com.microsoft's MatMulNBits.

With constant weights, it runs as a blockwise product, whose bits are the same in every batch and on every processor.
With computed weights, or zero points that are not integers, it runs as a product of floats.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.prepared_blocks import PreparedBlocks
from jaxdml._quantized.blocks import Matrix, in_blocks, size_within
from jaxdml.errors import ModelError

Array = jax.Array
BITS = (2, 4, 8)
# The precision of matrix_multiply_blocks for each accuracy_level, which names the type that `a` may be rounded to:
# unset, float32, float16, bfloat16 and int8.
PRECISIONS = {0: "int22", 1: "int22", 2: "int15", 3: "int15", 4: "int8"}


def product_of_blocks(
    a: Any, b: Any, scales: Any | None = None, zero_points: Any | None = None, g_idx: Any | None = None,
    bias: Any | None = None, **options: Any,
) -> Array:  # fmt: skip
    """`matmul_nbits` with constant weights, or weights that `prepared_matrix` prepared."""
    if isinstance(b, PreparedBlocks):
        matrix = Matrix(b, None, None, g_idx)
    else:
        matrix = unpacked_matrix(b, scales, zero_points, g_idx, options)
    return matrix.product(a, bias, PRECISIONS[options["accuracy_level"]])


def prepared_matrix(b: Any, scales: Any, zero_points: Any, g_idx: Any, options: Mapping[str, Any]) -> Matrix:
    """The inputs that replace constant weights, scales, zero points and g_idx; the last is the order of elements."""
    return unpacked_matrix(b, scales, zero_points, g_idx, options).prepared()


def unpacked_matrix(b: Any, scales: Any, zero_points: Any, g_idx: Any, options: Mapping[str, Any]) -> Matrix:
    """The weights of `matmul_nbits` as `matrix_multiply_blocks` takes them. 2-bit weights become 4-bit weights.

    Raises:
      ModelError: if the shapes do not fit the attributes, or g_idx names a block that does not exist.
    """
    depth, columns, bits, block_size = (options[word] for word in ("K", "N", "bits", "block_size"))
    blocks = -(-depth // block_size)
    is_packed = zero_points is not None and zero_points.dtype == np.uint8
    of_row = -(-blocks * bits // 8) if is_packed else blocks  # the size of a row of zero_points
    _check_shape("B", b, (columns, blocks, block_size * bits // 8))
    for name, each, count in (("scales", scales, blocks), ("zero_points", zero_points, of_row)):
        if each is not None:
            _check_shape(name, each, (columns, count), (columns * count,))
    weights, scales, offsets = _of_few_bits(b.reshape(columns, -1), bits, depth), scales.reshape(columns, blocks), None
    if is_packed:
        offsets = _of_few_bits(zero_points.reshape(columns, of_row), bits, blocks)
    elif zero_points is not None:
        offsets = _typed(zero_points.astype(np.uint8).reshape(columns, blocks), bits)
    if g_idx is None:
        return in_blocks(weights, scales, offsets, block_size=block_size)
    _check_shape("g_idx", g_idx, (depth,))
    if g_idx.min() < 0 or g_idx.max() >= blocks:
        text = f"g_idx has numbers from {g_idx.min()} to {g_idx.max()}"
        raise ModelError(f"{text}, expected numbers from 0 to {blocks - 1}, the indices of blocks")
    if np.array_equal(g_idx, np.arange(depth) // block_size):
        return in_blocks(weights, scales, offsets, block_size=block_size)
    return _in_order(weights, scales, offsets, g_idx, size_within(block_size))


def _check_shape(name: str, x: np.ndarray, *allowed: tuple[int, ...]) -> None:
    if x.shape not in allowed:
        expected = " or ".join(map(str, allowed))
        raise ModelError(f"{name} has shape {x.shape}, expected {expected}, as K, N, bits and block_size say")


def _of_few_bits(rows: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Bytes [N, bytes] as uint4 or uint8 [N, count], the lowest bits first."""
    if bits == 8:
        return rows[:, :count]
    parts = np.empty((*rows.shape, 8 // bits), np.uint8)
    for place in range(8 // bits):
        np.bitwise_and(rows >> np.uint8(bits * place), np.uint8(2**bits - 1), out=parts[..., place])
    return _typed(parts.reshape(len(rows), math.prod(parts.shape[1:]))[:, :count], bits)


def _typed(values: np.ndarray, bits: int) -> np.ndarray:
    """uint8 values of few bits as uint8 or uint4. 2-bit values are shifted to the middle of the 4-bit range."""
    if bits == 2:
        values = values + np.uint8(6)
    return values if bits == 8 else values.view(jnp.uint4)


def _in_order(
    weights: np.ndarray, scales: np.ndarray, offsets: np.ndarray | None, g_idx: np.ndarray, size: int
) -> Matrix:
    """The matrix with its columns sorted by block; each block is padded to a multiple of `size` columns."""
    counts = np.bincount(g_idx, minlength=scales.shape[1])
    pieces = -(-counts // size)  # for each block, the number of blocks of `size` that hold its elements
    order = np.full(pieces.sum() * size, len(g_idx), np.int32)
    starts = np.cumsum(pieces * size) - pieces * size
    by_block = np.argsort(g_idx, kind="stable")
    within = np.arange(len(g_idx)) - np.repeat(np.cumsum(counts) - counts, counts)
    order[np.repeat(starts, counts) + within] = by_block
    of_pieces = np.repeat(np.arange(len(counts)), pieces)
    padded = weights[:, np.minimum(order, len(g_idx) - 1)]
    return Matrix(padded, scales[:, of_pieces], None if offsets is None else offsets[:, of_pieces], order)


def matmul_nbits(
    a: Any, b: Any, scales: Any, zero_points: Any | None = None, g_idx: Any | None = None, bias: Any | None = None, *,
    K: int, N: int, bits: int = 4, block_size: int, accuracy_level: int = 0,  # noqa: N803 # the attributes' names
) -> Array:  # fmt: skip
    """The product of float [..., K] with dequantized weights of 2, 4 or 8 bits, plus a bias [N], in the type of `a`.

    Products and sums are float32; the platform chooses the order of sums. accuracy_level, which allows ONNX Runtime to
    lose accuracy, is ignored. With g_idx, ONNX Runtime 1.32 replaces each uint8 zero point by 8; jaxdml uses the given
    zero points.
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
