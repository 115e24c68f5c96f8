"""Packs and unpacks weights in the layouts of the native library, as JAX and NumPy functions.

The functions serve programs that have packed weights and run without native kernels. native/src/pack_matrix.h and
filter.h define the layouts. The functions skip the sums and Winograd's form, which only native kernels read.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = Any  # a JAX or NumPy array; results are of the same kind as the arguments


class Panels(NamedTuple):
    """A matrix [rows, columns] is stored in panels of `tile` columns, in the order [rows / depth][columns][depth].

    The rows are padded to a multiple of `depth`, and the columns to a multiple of `lanes`. The last panel may be
    narrower. Depthwise filters are stored row by row, in elements of `cell` bytes.
    """

    lanes: int
    tile: int
    depth: int
    cell: int


LAYOUTS = {"avx2": Panels(8, 16, 2, 2), "avx512_vnni": Panels(16, 64, 4, 1), "neon": Panels(4, 16, 4, 1)}
# Instruction sets that share a layout.
OF_OTHERS = {"amx_int8": "avx512_vnni", "neon_dotprod": "neon", "neon_i8mm": "neon"}
SEAL, FLAG = 320, 64  # bytes of the seal, and of the flag between a filter's seal and its sums
# Weights that XLA packs begin with this seal. It has no mark and no fingerprint, so native kernels reject such weights.
XLA_SEAL = np.concatenate([np.zeros(64, np.uint8), np.arange(256, dtype=np.uint8)]).view(np.int8)


def matrix_of(packed: Array, shape: Sequence[int], layout: str) -> Array:
    """Unpacks int8 [..., bytes] into int8 [..., K, N]."""
    panels = LAYOUTS[layout]
    rows, columns = _rounded(shape[0], panels.depth), _rounded(shape[1], panels.lanes)
    start = SEAL + _rounded(columns * 4, 64)
    values = packed[..., start : start + rows * columns]
    if isinstance(values, jax.Array):  # with the slice in its loop, XLA:CPU would move single bytes
        values = lax.optimization_barrier(values)
    return _from_panels(values, rows, columns, panels)[..., : shape[0], : shape[1]]


def packed_matrix_of(values: Array, layout: str, size: int) -> Array:
    """Packs int8 [..., K, N] into int8 [..., size], without sums."""
    panels = LAYOUTS[layout]
    *_, depth, columns = values.shape
    values = _padded(values, [(0, _rounded(depth, panels.depth)), (0, _rounded(columns, panels.lanes))])
    start = SEAL + _rounded(values.shape[-1] * 4, 64)
    return _sealed(_padded(_to_panels(values, panels), [(start, size)]))


def filter_of(packed: Array, shape: Sequence[int], group_count: int, layout: str) -> Array:
    """Unpacks int8 [..., bytes] into int8 [..., O, C / groups, *kernel]."""
    panels, (outputs, channels, *kernel) = LAYOUTS[layout], shape
    height, width = (1, *kernel)[-2:]
    start = SEAL + FLAG + _rounded(outputs * 4, 64)
    *stack, _ = packed.shape
    if channels == 1 and group_count > 1:
        depth = height * width
        cells = packed[..., start : start + outputs * _rounded(depth, panels.depth) * panels.cell]
        values = cells.reshape(*stack, outputs, -1, panels.cell)[..., :depth, 0]
        return values.reshape(*stack, *shape)
    merged, groups, own = _merged(outputs // group_count, group_count, panels), group_count, outputs // group_count
    inside, across, run = merged * own, merged * channels, _rounded(width * merged * channels, panels.depth)
    wide = _rounded(inside, panels.lanes)
    size = height * run * wide
    values = packed[..., start : start + groups // merged * size].reshape(*stack, groups // merged, size)
    values = _from_panels(values, height * run, wide, panels)[..., :inside]
    values = values.reshape(*stack, groups // merged, height, run, inside)[..., : width * across, :]
    values = values.reshape(*stack, groups // merged, height, width, merged, channels, merged, own)
    values = _stack([values[..., each, :, each, :] for each in range(merged)], len(stack) + 1)
    order = (*range(len(stack) + 2), *(len(stack) + axis for axis in (5, 4, 2, 3)))
    return values.transpose(order).reshape(*stack, *shape)


def packed_filter_of(values: Array, group_count: int, layout: str, size: int) -> Array:
    """Packs int8 [O, C / groups, *kernel] into int8 [size], without the flag, the sums or Winograd's form."""
    panels, (outputs, channels, *kernel) = LAYOUTS[layout], values.shape
    height, width = (1, *kernel)[-2:]
    start = SEAL + FLAG + _rounded(outputs * 4, 64)
    if channels == 1 and group_count > 1:
        depth = height * width
        cells = _padded(values.reshape(outputs, depth), [(0, outputs), (0, _rounded(depth, panels.depth))])
        wide = cells.astype(np.dtype(f"<i{panels.cell}")).reshape(-1)
        return _sealed(_padded(wide.view(np.int8).reshape(-1), [(start, size)]))
    merged, groups, own = _merged(outputs // group_count, group_count, panels), group_count, outputs // group_count
    inside, across, run = merged * own, merged * channels, _rounded(width * merged * channels, panels.depth)
    values = values.reshape(groups // merged, merged, own, channels, height, width).transpose(0, 4, 5, 1, 3, 2)
    apart = [
        _padded(values[..., each, :, :], [(each * channels, across), (each * own, inside)]) for each in range(merged)
    ]
    values = sum(apart[1:], start=apart[0]).reshape(groups // merged, height, width * across, inside)
    values = _padded(values, [(0, run), (0, _rounded(inside, panels.lanes))])
    values = values.reshape(groups // merged, height * run, -1)
    return _sealed(_padded(_to_panels(values, panels).reshape(-1), [(start, size)]))


def has_all_bytes(packed: Array) -> Array:
    """Whether the seals of int8 [..., bytes] have all byte values in order, which bytewise functions change."""
    return (packed[..., 64:SEAL] == XLA_SEAL[64:]).all(-1)


def is_sealed(packed: np.ndarray) -> bool:
    """Whether int8 [bytes] have XLA's seal, or are as native kernels packed them. See native/src/seal.h."""
    if not has_all_bytes(packed):
        return False
    return not packed[:64].any() or int.from_bytes(packed[8:16].tobytes(), "little") == fingerprint(packed)


def fingerprint(packed: np.ndarray) -> int:
    """The fingerprint that native kernels write into the seal of packed weights, int8 [bytes]."""
    body = np.zeros(_rounded(packed.size - SEAL, 64), np.int8)
    body[: packed.size - SEAL] = packed[SEAL:]
    chunks = body.view("<u8").reshape(-1, 8)
    count, odd = min(len(chunks), 32), 0x9E3779B97F4A7C15
    lanes = packed.size + np.arange(8, dtype=np.uint64)
    for i in range(count):
        lanes = (lanes ^ chunks[i * len(chunks) // count]) * np.uint64(odd)
    value = 0
    for lane in lanes.tolist():
        value = ((value ^ lane ^ lane >> 32) + 1) * odd % 2**64
    return value


def _sealed(packed: Array) -> Array:
    """Packed weights with XLA's seal in place of their first bytes."""
    seal = np.broadcast_to(XLA_SEAL, (*packed.shape[:-1], SEAL))
    return namespace_of(packed).concatenate([seal, packed[..., SEAL:]], -1)


def _merged(outputs: int, groups: int, panels: Panels) -> int:
    """How many groups of `outputs` outputs share a panel's lanes, with zeros between them."""
    return max(n for n in range(1, groups + 1) if n == 1 or (groups % n == 0 and n * outputs <= panels.lanes))


def _to_panels(values: Array, panels: Panels) -> Array:
    """Rearranges int8 [..., rows, columns], both padded, to int8 [..., bytes]."""
    *stack, _, columns = values.shape
    pieces = []
    for first, count, width in _pieces(columns, panels):
        piece = values[..., first : first + count * width].reshape(*stack, -1, panels.depth, count, width)
        order = (*range(len(stack)), *(len(stack) + axis for axis in (2, 0, 3, 1)))
        pieces.append(piece.transpose(order).reshape(*stack, -1))
    return _concatenated(pieces)


def _from_panels(packed: Array, rows: int, columns: int, panels: Panels) -> Array:
    """The inverse of `_to_panels`: int8 [..., rows, columns]."""
    *stack, _ = packed.shape
    pieces = []
    for first, count, width in _pieces(columns, panels):
        piece = packed[..., first * rows : (first + count * width) * rows]
        piece = piece.reshape(*stack, count, rows // panels.depth, width, panels.depth)
        order = (*range(len(stack)), *(len(stack) + axis for axis in (1, 3, 0, 2)))
        pieces.append(piece.transpose(order).reshape(*stack, rows, count * width))
    return _concatenated(pieces)


def _pieces(columns: int, panels: Panels) -> list[tuple[int, int, int]]:
    """The first column, the count and the width of the whole panels, and of the narrower last one."""
    whole = columns // panels.tile * panels.tile
    pieces = [(0, whole // panels.tile, panels.tile), (whole, 1, columns - whole)]
    return [(first, count, width) for first, count, width in pieces if count * width]


def _rounded(size: int, to: int) -> int:
    return -(-size // to) * to


def _padded(values: Array, ends: Sequence[tuple[int, int]]) -> Array:
    """Pads the last dimensions with zeros; `ends` has the start and the size of each in the result."""
    sizes = values.shape[values.ndim - len(ends) :]
    widths = [(start, size - start - own) for (start, size), own in zip(ends, sizes, strict=True)]
    return namespace_of(values).pad(values, [(0, 0)] * (values.ndim - len(ends)) + widths)


def _concatenated(pieces: Sequence[Array]) -> Array:
    return pieces[0] if len(pieces) == 1 else namespace_of(pieces[0]).concatenate(pieces, -1)


def _stack(pieces: Sequence[Array], axis: int) -> Array:
    return namespace_of(pieces[0]).stack(pieces, axis)


def namespace_of(x: Array) -> Any:
    return jnp if isinstance(x, jax.Array) else np
