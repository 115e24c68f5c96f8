"""A matrix quantized by blocks, its scales and its zero points, as one leaf in the layout that products read."""

import dataclasses
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._arithmetic import block_panels, panels
from jaxdml._arithmetic.block_panels import Blocks
from jaxdml._arithmetic.kernel_call import Kernel, call
from jaxdml._arithmetic.native_call import Result, library_call
from jaxdml._arithmetic.packing import packed_layout
from jaxdml._arithmetic.panels import namespace_of
from jaxdml._arithmetic.prepared import Prepared, register_for_export

Array = jax.Array


def blocks_of(b: Any, scale: Any, zero_point: Any) -> Blocks:
    """The blocks of a valid matrix [..., columns, depth] with scales [..., columns, count]."""
    columns, depth = b.shape[-2:]
    size = size_of(depth, scale.shape[-1])
    bits = 4 if "int4" in np.dtype(b.dtype).name else 8
    return Blocks(columns, depth, size, bits, np.dtype(scale.dtype).itemsize, zero_point is not None)


def size_of(depth: int, count: int) -> int:
    """The block size for which `count` blocks cover the depth; 0 if there is none.

    Sizes are powers of two, so at most one size gives a particular count above 1. For a count of 1, the result is the
    least size that covers the depth.
    """
    return next((size for size in block_panels.SIZES if -(-depth // size) == count), 0)


@partial(jax.tree_util.register_dataclass, data_fields=["data"], meta_fields=["dtype", "layout", "sizes"])
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PreparedBlocks(Prepared):
    """A matrix B in blocks, repacked by `prepare_matrix_multiply_blocks`: a pytree that the product takes as `b`.

    Attributes:
      data: the only leaf: int8 [..., bytes], weights, scales and zero points together.
      dtype: uint4, int4, uint8 or int8, the type of the array.
      layout: "native" if native kernels packed the matrix, else "xla".
      sizes: (N, K, block size, bits per weight, bytes per scale, whether there are zero points).
      array: the array that was prepared, [..., N, K].
      scale: its scales, [..., N, blocks].
      zero_point: its zero points, [..., N, blocks], or None.
      shape: the shape of the array.
      ndim: the rank of the array.
    """

    @classmethod
    def of(cls, b: Any, scale: Any, zero_point: Any, is_packed: bool = True) -> Self:
        """A matrix [..., N, K] with scales and zero points, packed by native kernels if they are in use and is_packed.

        NumPy arrays stay NumPy arrays if native kernels do not pack them.
        """
        blocks, dtype = blocks_of(b, scale, zero_point), np.dtype(b.dtype)
        if is_packed and packed_layout():
            data = call(_PACK, block_panels.packed_of, b, scale, zero_point, blocks=blocks)
            return cls(data, dtype, "native", tuple(map(int, blocks)))
        if not all(isinstance(x, np.ndarray | None) for x in (b, scale, zero_point)):
            b, scale, zero_point = (None if x is None else jnp.asarray(x) for x in (b, scale, zero_point))
        return cls(block_panels.packed_of(b, scale, zero_point, blocks), dtype, "xla", tuple(map(int, blocks)))

    @property
    def blocks(self) -> Blocks:
        columns, depth, size, bits, scale_bytes, has_zero_points = self.sizes
        return Blocks(columns, depth, size, bits, scale_bytes, bool(has_zero_points))

    @property
    def is_packed(self) -> bool:
        return True

    @property
    def is_consistent(self) -> bool:
        is_array = isinstance(self.data, jax.Array | np.ndarray)
        return is_array and self.data.dtype == np.int8 and self.data.shape[-1:] == (self.blocks.bytes,)

    @property
    def is_intact(self) -> bool:
        return self.is_consistent and self.data.ndim == 1

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.data.shape[:-1], *self.sizes[:2])

    @property
    def array(self) -> Array:
        return jnp.asarray(block_panels.weights_of(self._at_hand().data, self.blocks, self.dtype))

    @property
    def scale(self) -> Array:
        return jnp.asarray(block_panels.scales_of(self._at_hand().data, self.blocks))

    @property
    def zero_point(self) -> Array | None:
        values = block_panels.zero_points_of(self._at_hand().data, self.blocks, self.dtype)
        return None if values is None else jnp.asarray(values)

    def parts(self) -> tuple[Array, Array, Array | None]:
        """The array, its scales and its zero points; NaN as scales if a function changed the data's bytes."""
        data, blocks = self.data, self.blocks
        weights, scale = block_panels.weights_of(data, blocks, self.dtype), block_panels.scales_of(data, blocks)
        scale = namespace_of(data).where(panels.has_all_bytes(data)[..., None, None], scale, scale.dtype.type(np.nan))
        return weights, scale, block_panels.zero_points_of(data, blocks, self.dtype)

    @property
    def described(self) -> str:
        return f"{self.dtype}{list(self.shape)}, blocks of {self.blocks.size}"

    def _packed_size(self) -> int:
        return self.blocks.bytes

    def _prepared(self, array: Any, is_packed: bool) -> Self:
        at_hand = self._at_hand()
        _, scale, zero_point = (None if x is None else np.asarray(x) for x in at_hand.parts())
        return self.of(array, scale, zero_point, is_packed)


def packed(b: Array, scale: Array, zero_point: Array | None, *, blocks: Blocks, leading: int) -> Array:
    """int8 [..., bytes], packed by the native library, with `leading` vmap dimensions prepended to every array."""
    if zero_point is None:
        zero_point = jnp.zeros((1,) * leading + (*b.shape[leading:-2], 0, 0), b.dtype)
    result = (*b.shape[leading:-2], blocks.bytes), jnp.int8
    return library_call("pack_blocks", leading, result, (b, scale, zero_point), block_size=np.int64(blocks.size))


def _pack_result(b: Any, *_: Any, blocks: Blocks) -> Result:
    return (*b.shape[:-2], blocks.bytes), jnp.int8


_PACK = Kernel(packed, _pack_result, is_replicated=True)
register_for_export(PreparedBlocks)
