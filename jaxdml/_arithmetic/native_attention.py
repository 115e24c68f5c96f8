"""The native kernel of attention. Products of queries and keys and sums of values are exact, computed in float64."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.float_products import OF_ROWS
from jaxdml._arithmetic.kernel_call import Kernel
from jaxdml._arithmetic.native_call import Result, library_call

Array = jax.Array
RESULTS = ("output", "scores", "capped", "masked", "weights")  # in the order of AttentionResult in native/src/kernels.h
MOST_DEPTH = OF_ROWS.terms  # the maximum number of elements of a key whose products with a query have an exact sum


def _attention(
    query: Array, key: Array, value: Array, seen: Array | None, bias: Array | None, sink: Array | None, *,
    leading: int, which: str, scale: float, softcap: float,
) -> Array:  # fmt: skip
    last = value.shape[-1] if which == "output" else key.shape[-2]
    operands = (
        query,
        key,
        value,
        _over_keys(seen, key.shape[-2], leading, jnp.bool_),
        _over_keys(bias, key.shape[-2], leading, jnp.float32),
        lax.full((*(1,) * leading, 0), 0, jnp.float32) if sink is None else sink,
    )
    return library_call(
        "attention",
        leading,
        ((*query.shape[leading:-1], last), jnp.float32),
        operands,
        which=np.int64(RESULTS.index(which)),
        scale=np.float32(scale),
        softcap=np.float32(softcap),
    )


def _over_keys(x: Array | None, keys: int, leading: int, dtype: Any) -> Array:
    """x with four dimensions after the leading ones, broadcast along the last to all keys; None becomes empty."""
    if x is None:
        return lax.full((*(1,) * leading, 1, 1, 1, 0), 0, dtype)
    x = lax.reshape(x, (*x.shape[:leading], *(1,) * (4 + leading - x.ndim), *x.shape[leading:]))
    return jnp.broadcast_to(x, (*x.shape[:-1], keys))


def _result(query: Any, key: Any, value: Any, *_: Any, which: str, **statics: Any) -> Result:
    return (*query.shape[:-1], value.shape[-1] if which == "output" else key.shape[-2]), jnp.float32


def _takes(query: Any, key: Any, value: Any, *_: Any, **statics: Any) -> bool:
    sizes = (*query.shape, *key.shape, *value.shape)
    return all(isinstance(size, int) and size > 0 for size in sizes) and query.shape[-1] <= MOST_DEPTH


ATTENTION = Kernel(_attention, _result, _takes)
