"""The layout of a matrix that is quantized by blocks, as JAX and NumPy functions.

native/src/block_shape.h defines the layout, which all instruction sets and XLA share. Panels of 64 columns are stored
one after another. A panel has a record for each block along the depth: the weights in four units of 16 columns, 64
scales, and 64 zero points if there are any. A 32-bit lane of a unit holds consecutive weights of one column: four
bytes, or eight nibbles, the first four in the low halves of the bytes.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.panels import SEAL, XLA_SEAL, namespace_of
from jaxdml._arithmetic.sharding import replicated_along

Array = Any  # a JAX or NumPy array; results are of the same kind as the arguments
COLUMNS, UNIT = 64, 16  # the columns of a panel and of a unit
SIZES = (16, 32, 64, 128, 256)  # the sizes of blocks
FLOATS = {2: np.float16, 4: np.float32}


class Blocks(NamedTuple):
    """The sizes of a matrix [columns, depth] in blocks of `size` elements along the depth.

    Attributes:
      bits: bits per weight, 4 or 8.
      scale_bytes: bytes per scale, 2 or 4.
      has_zero_points: whether blocks have zero points. Otherwise the zero point is 8 or 128, the middle of the unsigned
        range.
    """

    columns: int
    depth: int
    size: int
    bits: int
    scale_bytes: int
    has_zero_points: bool

    @property
    def number(self) -> int:
        """The number of blocks along the depth."""
        return -(-self.depth // self.size)

    @property
    def panels(self) -> int:
        return -(-self.columns // COLUMNS)

    @property
    def weight_bytes(self) -> int:
        """The size of a record's weights in bytes."""
        return COLUMNS * self.size * self.bits // 8

    @property
    def record(self) -> int:
        return self.weight_bytes + COLUMNS * (self.scale_bytes + self.has_zero_points)

    @property
    def bytes(self) -> int:
        return SEAL + self.panels * self.number * self.record


def as_unsigned(x: Array) -> Array:
    """Weights or zero points as uint8; signed ones are increased by 8 or 128."""
    middle = {"int4": 8, "int8": 128}.get(np.dtype(x.dtype).name, 0)
    return x.astype(np.uint8) if not middle else (x.astype(np.int32) + middle).astype(np.uint8)


def as_given(x: Array, dtype: np.dtype) -> Array:
    """The inverse of `as_unsigned` for weights that had `dtype`."""
    middle = {"int4": 8, "int8": 128}.get(dtype.name, 0)
    return (x.astype(np.int32) - middle).astype(dtype)


def packed_of(w: Array, scale: Array, zero_point: Array | None, blocks: Blocks) -> Array:
    """Packs w [..., columns, depth] and parameters [..., columns, count] into int8 [..., bytes], with XLA's seal."""
    xp, lead = namespace_of(w), w.shape[:-2]
    w, scale, zero_point = map(_on_each_device, (w, scale, zero_point))
    weights = _padded(as_unsigned(w), (blocks.panels * COLUMNS, blocks.number * blocks.size))
    halves, axes = 8 // blocks.bits, tuple(range(len(lead)))
    groups = blocks.size // (4 * halves)
    # axes: panel, unit, column, block, group, half, place; a group of a column fills a lane
    weights = weights.reshape(*lead, blocks.panels, 4, UNIT, blocks.number, groups, halves, 4)
    weights = weights.transpose(*axes, *(len(lead) + axis for axis in (0, 3, 1, 4, 2, 5, 6)))
    if halves == 2:
        weights = weights[..., 0, :] | weights[..., 1, :] << np.uint8(4)
    pieces = [weights.reshape(*lead, blocks.panels, blocks.number, -1)]
    for each in (scale, None if zero_point is None else as_unsigned(zero_point)):
        if each is not None:
            each = _padded(each, (blocks.panels * COLUMNS, blocks.number))
            each = xp.swapaxes(each.reshape(*lead, blocks.panels, COLUMNS, blocks.number), -1, -2)
            pieces.append(_bytes(each))
    records = xp.concatenate(pieces, -1).reshape(*lead, -1)
    seal = xp.broadcast_to(XLA_SEAL, (*lead, SEAL))
    return xp.concatenate([seal, _signed(records)], -1)


def weights_of(packed: Array, blocks: Blocks, dtype: np.dtype) -> Array:
    """Unpacks int8 [..., bytes] into weights of type dtype, [..., columns, depth]."""
    lead, records = packed.shape[:-1], _records(packed, blocks)
    halves, axes = 8 // blocks.bits, tuple(range(packed.ndim - 1))
    lanes = records[..., : blocks.weight_bytes].reshape(*lead, blocks.panels, blocks.number, 4, -1, UNIT, 1, 4)
    if halves == 2:
        lanes = namespace_of(packed).concatenate([lanes & np.uint8(15), lanes >> np.uint8(4)], -2)
    lanes = lanes.transpose(*axes, *(len(lead) + axis for axis in (0, 2, 4, 1, 3, 5, 6)))
    weights = lanes.reshape(*lead, blocks.panels * COLUMNS, blocks.number * blocks.size)
    return as_given(weights[..., : blocks.columns, : blocks.depth], dtype)


def scales_of(packed: Array, blocks: Blocks) -> Array:
    """Unpacks the scales [..., columns, count] from int8 [..., bytes]."""
    start, size = blocks.weight_bytes, blocks.scale_bytes
    pieces = _records(packed, blocks)[..., start : start + COLUMNS * size]
    values = _floats(pieces.reshape(*pieces.shape[:-1], COLUMNS, size), FLOATS[size])
    return _by_column(values, blocks)


def zero_points_of(packed: Array, blocks: Blocks, dtype: np.dtype) -> Array | None:
    """Unpacks the zero points of type dtype, [..., columns, count], or None, from int8 [..., bytes]."""
    if not blocks.has_zero_points:
        return None
    return as_given(_by_column(_records(packed, blocks)[..., -COLUMNS:], blocks), dtype)


def _records(packed: Array, blocks: Blocks) -> Array:
    """The records as uint8 [..., panels, count, record]."""
    body = packed[..., SEAL:].reshape(*packed.shape[:-1], blocks.panels, blocks.number, blocks.record)
    return lax.bitcast_convert_type(body, jnp.uint8) if isinstance(body, jax.Array) else body.view(np.uint8)


def _by_column(values: Array, blocks: Blocks) -> Array:
    """Rearranges [..., panels, count, 64] to [..., columns, count]."""
    values = namespace_of(values).swapaxes(values, -1, -2)
    return values.reshape(*values.shape[:-3], -1, blocks.number)[..., : blocks.columns, :]


def _bytes(x: Array) -> Array:
    """x as uint8, with the bytes of an element next to each other."""
    if x.dtype.itemsize == 1:
        return x
    if isinstance(x, jax.Array):
        return lax.bitcast_convert_type(x, jnp.uint8).reshape(*x.shape[:-1], -1)
    return np.ascontiguousarray(x).view(np.uint8)


def _floats(x: Array, dtype: Any) -> Array:
    """The inverse of `_bytes` for [..., bytes of one float]."""
    if isinstance(x, jax.Array):
        return lax.bitcast_convert_type(x, dtype)
    return np.ascontiguousarray(x).view(dtype)[..., 0]


def _signed(x: Array) -> Array:
    return lax.bitcast_convert_type(x, jnp.int8) if isinstance(x, jax.Array) else x.view(np.int8)


def _on_each_device(x: Array | None) -> Array | None:
    """x [..., columns, depth], replicated on explicit mesh axes, where JAX does not join a sharded axis to the seal."""
    return replicated_along(replicated_along(x, x.ndim - 2), x.ndim - 1) if isinstance(x, jax.Array) else x


def _padded(x: Array, sizes: tuple[int, int]) -> Array:
    """x, padded with zeros to `sizes` in the last two dimensions."""
    ends = [(0, size - own) for size, own in zip(sizes, x.shape[-2:], strict=True)]
    return namespace_of(x).pad(x, [(0, 0)] * (x.ndim - 2) + ends)
