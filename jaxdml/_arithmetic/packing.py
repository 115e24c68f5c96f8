"""Weights packed for native kernels."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.kernel_call import Kernel, call
from jaxdml._arithmetic.kernel_library import library
from jaxdml._arithmetic.native_call import Result, in_two_dimensions, library_call

Array = jax.Array


def packed_matrix(b: Array) -> Array | None:
    """[..., K, N] packed to uint8 [..., bytes]; None if XLA's kernels are in use."""
    return None if library() is None else call(_PACK_MATRIX, _zeros, b, shape=packed_matrix_shape(b.shape))


def packed_filter(filter: Array, group_count: int) -> Array | None:
    """[O, C / groups, *kernel] packed to uint8 [bytes]; None if XLA's kernels are in use."""
    if library() is None:
        return None
    shape = packed_filter_shape(filter.shape, group_count)
    return call(_PACK_FILTER, _zeros, filter, shape=shape, group_count=group_count)


def packed_matrix_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of the packed array of a matrix [..., K, N]; needs the library."""
    return *shape[:-2], library().matrix_bytes(*shape[-2:])


def packed_filter_shape(shape: Sequence[int], group_count: int) -> tuple[int, ...]:
    """The shape of the packed array of a filter [O, C / groups, *kernel]; needs the library."""
    outputs, channels, *kernel = shape
    return (library().filter_bytes((outputs, channels, *(1, *kernel)[-2:]), group_count),)


def _pack_matrix(b: Array, *, shape: tuple[int, ...], leading: int) -> Array:
    return library_call("pack_matrix", leading, (shape, jnp.uint8), (b,))


def _pack_filter(filter: Array, *, shape: tuple[int, ...], group_count: int, leading: int) -> Array:
    filter = in_two_dimensions(filter, filter.ndim - leading - 2)
    return library_call("pack_filter", leading, (shape, jnp.uint8), (filter,), group_count=np.int64(group_count))


def _packed_result(_: Any, *, shape: tuple[int, ...], group_count: int = 1) -> Result:
    return shape, jnp.uint8


def _zeros(_: Array, *, shape: tuple[int, ...], group_count: int = 1) -> Array:
    """The packed array on platforms other than the CPU: zeros, which native kernels refuse."""
    return lax.full(shape, 0, jnp.uint8)


_PACK_MATRIX, _PACK_FILTER = (Kernel(form, _packed_result, is_replicated=True) for form in (_pack_matrix, _pack_filter))
