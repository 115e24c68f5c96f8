"""Floats scattered into an array. Every step scatters integers, so that the order of the updates changes nothing."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._exact import order, sums
from jaxdml._exact.arithmetic import added
from jaxdml._exact.pairs import INFINITY, bits, floats, power_of_two

Array = jax.Array
Scatter = Callable[..., Array]


def updates_of_an_element(shape: Any, numbers: lax.ScatterDimensionNumbers) -> Any:
    """The maximum number of updates of one element, for indices of this shape."""
    batch = numbers.scatter_indices_batching_dims
    return math.prod(size for axis, size in enumerate(shape[:-1]) if axis not in batch)


def summed(x: Array, indices: Array, updates: Array, params: Any) -> Array:
    """x plus the sum of each element's updates, by the rule of `sums`; its n is the number of an element's updates."""
    if 0 in x.shape:  # JAX refuses to gather from it
        return x
    indices = lax.optimization_barrier(indices)  # as in `rules.gathered`
    add, largest = (functools.partial(scatter, **_options(params)) for scatter in (lax.scatter_add, lax.scatter_max))

    def each(combine: Scatter, of_updates: Array) -> Array:
        return combine(lax.full_like(x, 0, of_updates.dtype), indices, of_updates)

    count = each(add, lax.full_like(updates, 1, jnp.int32))
    k = lax.min(np.int32(22), lax.clz(count) - np.int32(2))  # as sums.digits
    e = sums.exponent_of(each(largest, bits(lax.abs(updates))), k)
    k_of_update, e_of_update = (_gathered(of_place, indices, updates.shape, params) for of_place in (k, e))
    parts = sums.integers_of(updates * power_of_two(k_of_update - e_of_update), k_of_update)
    first, second = (each(add, sums.without_magic(part, 1)) for part in parts)
    has_positive, has_negative = (
        each(largest, lax.convert_element_type((updates != updates) | (updates == infinity), jnp.int32)) > 0
        for infinity in (INFINITY, -INFINITY)
    )
    total = sums.with_specials(sums.joined(first, second, k, e), has_positive, has_negative)
    return lax.select(count == 0, x, added(x, total))


def subtracted(x: Array, indices: Array, updates: Array, params: Any) -> Array:
    """x minus the sum of the updates of each element."""
    return summed(x, indices, lax.neg(updates), params)


def largest(x: Array, indices: Array, updates: Array, params: Any) -> Array:
    """The maximum of each element and its updates."""
    scattered = lax.scatter_max(*_of_keys(x, indices, updates, order.GREATEST), **_options(params))
    return floats(order.turned(scattered))


def smallest(x: Array, indices: Array, updates: Array, params: Any) -> Array:
    """The minimum of each element and its updates."""
    scattered = lax.scatter_min(*_of_keys(x, indices, updates, order.LEAST), **_options(params))
    return floats(order.turned(scattered))


def _of_keys(x: Array, indices: Array, updates: Array, nan: np.int32) -> tuple[Array, Array, Array]:
    return order.keys(x, nan), indices, order.keys(updates, nan)


def _options(params: Any) -> dict[str, Any]:
    return {name: params[name] for name in ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")}


def _gathered(of_place: Array, indices: Array, shape: Any, params: Any) -> Array:
    """For each update, the value in `of_place` of the element that it updates."""
    numbers = params["dimension_numbers"]
    windows = iter(numbers.update_window_dims)
    single = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    return lax.gather(
        of_place,
        indices,
        lax.GatherDimensionNumbers(
            offset_dims=numbers.update_window_dims,
            collapsed_slice_dims=numbers.inserted_window_dims,
            start_index_map=numbers.scatter_dims_to_operand_dims,
            operand_batching_dims=numbers.operand_batching_dims,
            start_indices_batching_dims=numbers.scatter_indices_batching_dims,
        ),
        tuple(1 if axis in single else shape[next(windows)] for axis in range(of_place.ndim)),
        mode=params["mode"],
    )
