"""Calls that stay one operation under JAX's modes for debugging, as calls of lax do."""

import functools
from collections.abc import Callable
from typing import cast

import jax
import jax.numpy as jnp


def as_one_operation[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """The function, still compiled under `jax.disable_jit`; `jax.debug_nans` and `debug_infs` check only its results.

    These modes are for the caller's code. Inside the function, values may be NaN where a select discards them. If JAX
    found NaN in the compiled function itself, it would call the function under `disable_jit` to find the step.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if jax.config.jax_disable_jit:
            with jax.disable_jit(False):
                return call(*args, **kwargs)
        if jax.config.jax_debug_nans or jax.config.jax_debug_infs:
            with jax.debug_nans(False), jax.debug_infs(False):
                results = function(*args, **kwargs)
            return cast(R, jax.tree.map(jnp.copy, results))
        return function(*args, **kwargs)

    return call
