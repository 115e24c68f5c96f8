"""Weights packed for native kernels."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._arithmetic import panels
from jaxdml._arithmetic.int8 import signed
from jaxdml._arithmetic.kernel_call import Kernel, call
from jaxdml._arithmetic.kernel_library import library
from jaxdml._arithmetic.native_call import Result, in_two_dimensions, library_call

Array = jax.Array


def packed_layout() -> str:
    """The layout of packed weights for the native kernels in use; "" if XLA's kernels are in use."""
    own = library()
    return "" if own is None else panels.OF_OTHERS.get(own.kernels, own.kernels)


def packed_matrix(b: Array) -> Array:
    """[..., K, N] packed to int8 [..., bytes]; needs the library."""
    return call(_PACK_MATRIX, _packed_matrix, b, layout=packed_layout(), size=packed_matrix_size(b.shape))


def packed_filter(filter: Array, group_count: int) -> Array:
    """[O, C / groups, *kernel] packed to int8 [bytes]; needs the library."""
    size = packed_filter_size(filter.shape, group_count)
    return call(_PACK_FILTER, _packed_filter, filter, layout=packed_layout(), size=size, group_count=group_count)


def packed_matrix_size(shape: Sequence[int]) -> int:
    """The size of a packed matrix [..., K, N] in bytes; needs the library."""
    return int(library().matrix_bytes(*shape[-2:]))


def packed_filter_size(shape: Sequence[int], group_count: int) -> int:
    """The size of a packed filter [O, C / groups, *kernel] in bytes; needs the library."""
    outputs, channels, *kernel = shape
    return int(library().filter_bytes((outputs, channels, *(1, *kernel)[-2:]), group_count))


# Programs for many weights -------------------------------------------------------------------------------------------

# A program packs at most MOST_BYTES of weights, or a single array. Each array counts as LEAST_BYTES or more.
MOST_BYTES, LEAST_BYTES = 2**26, 2**20


@dataclasses.dataclass(frozen=True, eq=False)
class Waiting:
    """Weights that wait for `packed`: the leaf of prepared weights that are not packed yet.

    Attributes:
      array: [..., K, N], or [O, C / groups, *kernel].
      group_count: the number of groups of a filter; None for a matrix.
    """

    array: np.ndarray
    group_count: int | None = None


def packed[T](tree: T, check_time: Callable[[], None] = lambda: None) -> T:
    """Packs all leaves of type `Waiting`, many in one program: XLA need not compile a program for each.

    Args:
      tree: a pytree.
      check_time: called between programs; raises if time is up.
    """
    leaves, structure = jax.tree.flatten(tree)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Waiting)]
    for chunk in _chunks(places, leaves):
        check_time()
        counts = tuple(leaves[place].group_count for place in chunk)
        for place, data in zip(chunk, _packed(counts, [leaves[place].array for place in chunk]), strict=True):
            leaves[place] = data
    whole: T = jax.tree.unflatten(structure, leaves)
    return whole


def _chunks(places: Sequence[int], leaves: Sequence[Any]) -> Iterator[list[int]]:
    chunk, size = list[int](), 0
    for place in places:
        size += max(leaves[place].array.nbytes, LEAST_BYTES)
        if chunk and size > MOST_BYTES:
            yield chunk
            chunk, size = [], max(leaves[place].array.nbytes, LEAST_BYTES)
        chunk.append(place)
    if chunk:
        yield chunk


@partial(jax.jit, static_argnums=0)
def _packed(group_counts: tuple[int | None, ...], arrays: list[Array]) -> list[Array]:
    return [
        packed_matrix(array) if count is None else packed_filter(array, count)
        for count, array in zip(group_counts, arrays, strict=True)
    ]


# Kernels -------------------------------------------------------------------------------------------------------------


def _pack_matrix(b: Array, *, layout: str, size: int, leading: int) -> Array:
    return library_call("pack_matrix", leading, ((*b.shape[leading:-2], size), jnp.int8), (b,))


def _pack_filter(filter: Array, *, layout: str, size: int, group_count: int, leading: int) -> Array:
    filter = in_two_dimensions(filter, filter.ndim - leading - 2)
    return library_call("pack_filter", leading, ((size,), jnp.int8), (filter,), group_count=np.int64(group_count))


# Programs without native kernels pack weights with XLA, and write a seal that makes native kernels reject them.


def _packed_matrix(b: Array, *, layout: str, size: int) -> Array:
    return panels.packed_matrix_of(signed(b), layout, size)


def _packed_filter(filter: Array, *, layout: str, size: int, group_count: int) -> Array:
    return panels.packed_filter_of(signed(filter), group_count, layout, size)


def _matrix_result(b: Any, *, layout: str, size: int) -> Result:
    return (*b.shape[:-2], size), jnp.int8


def _filter_result(_: Any, *, layout: str, size: int, group_count: int) -> Result:
    return (size,), jnp.int8


_PACK_MATRIX = Kernel(_pack_matrix, _matrix_result, is_replicated=True)
_PACK_FILTER = Kernel(_pack_filter, _filter_result, is_replicated=True)
