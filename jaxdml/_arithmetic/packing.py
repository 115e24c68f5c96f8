"""Weights packed for native kernels."""

from collections.abc import Sequence
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
