"""Products of floats and 4-bit or 8-bit matrices in blocks, as functions of graph nodes."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxdml._arithmetic.block_panels import SIZES
from jaxdml._arithmetic.prepared_blocks import PreparedBlocks
from jaxdml._operators.matrix_multiply_blocks import matrix_multiply_blocks, prepare_matrix_multiply_blocks

Array = Any


class Matrix(NamedTuple):
    """A matrix in blocks as `matrix_multiply_blocks` takes it. A prepared `b` contains its scales and zero points.

    Attributes:
      b: 4-bit or 8-bit [N, K], or prepared.
      scale: float [N, blocks]; None if `b` is prepared.
      zero_point: [N, blocks] of b's type, or None.
      order: int32 [K]; maps each column of b to the index of its factor in a row of `a`, or to the row's length if the
        factor is 0. None means that rows of `a` have the order of the columns.
    """

    b: Array
    scale: Array
    zero_point: Array | None
    order: Array | None = None

    def prepared(self) -> "Matrix":
        b, scale, zero_point, order = self
        return Matrix(prepare_matrix_multiply_blocks(b, scale, zero_point), None, None, order)

    def product(self, a: Array, bias: Array | None, precision: Any) -> Array:
        if self.order is not None:
            a = jnp.take(a, self.order, -1, mode="fill", fill_value=0)
        return matrix_multiply_blocks(a, self.b, self.scale, self.zero_point, bias=bias, precision=precision)


def size_within(block_size: int) -> int:
    """The largest block size that the product accepts and that divides `block_size`; 0 if there is none."""
    return next((size for size in reversed(SIZES) if block_size % size == 0), 0)


def in_blocks(b: np.ndarray, scale: np.ndarray, zero_point: np.ndarray | None, *, block_size: int) -> Matrix:
    """The matrix b [N, K] in blocks of `size_within(block_size)`, given parameters for blocks of `block_size`."""
    size = size_within(block_size)
    block = np.arange(-(-b.shape[1] // size)) * size // block_size  # the given block that contains each smaller block
    return Matrix(b, scale[:, block], None if zero_point is None else zero_point[:, block])


def dequantized_matrix(b: Any, scale: Any, zero_point: Any, *, block_size: int, trans_b: bool) -> Matrix:
    """A constant matrix as DequantizeLinear takes it: [K, N] in blocks along K, or [N, K] with `trans_b`.

    An absent zero point is 0 here; in `matrix_multiply_blocks` it is the middle of an unsigned range.
    """
    if zero_point is None and b.dtype.name.startswith("u"):
        zero_point = np.zeros(scale.shape, b.dtype)
    if not trans_b:
        b, scale, zero_point = (None if x is None else x.T for x in (b, scale, zero_point))
    return in_blocks(b, scale, zero_point, block_size=block_size)


def prepared_matrix(b: Any, scale: Any, zero_point: Any, options: Mapping[str, Any]) -> tuple[Any, None, None]:
    """The prepared matrix, and None for the scales and zero points, which the prepared matrix contains."""
    matrix = dequantized_matrix(b, scale, zero_point, block_size=options["block_size"], trans_b=options["trans_b"])
    return matrix.prepared().b, None, None


def product(
    a: Array, b: Array, scale: Array | None = None, zero_point: Array | None = None, bias: Array | None = None, *,
    precision: str, block_size: int, trans_b: bool,
) -> Array:  # fmt: skip
    """Product of float `a` and a `dequantized_matrix`, or a prepared one."""
    if isinstance(b, PreparedBlocks):
        return Matrix(b, None, None).product(a, bias, precision)
    matrix = dequantized_matrix(b, scale, zero_point, block_size=block_size, trans_b=trans_b)
    return matrix.product(a, bias, precision)
