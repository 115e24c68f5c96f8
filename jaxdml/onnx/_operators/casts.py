"""Casts between types.

Floats are truncated to integers. ONNX does not define the result for a float that the integer type cannot hold. Here,
a cast to 32 or 64 bits saturates, and turns NaN into 0. A cast to fewer bits goes through int32, and keeps the lower
bits. ONNX Runtime's results may differ where a cast saturates, or turns NaN into 0. Casts between integers drop the
upper bits.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.rounding import limits_of
from jaxdml.onnx._operators._arrays import is_float, is_known, sealed
from jaxdml.onnx._table import operator
from jaxdml.onnx._tensors import dtype_of


def _options(*, to: int) -> dict[str, Any]:
    return {"dtype": dtype_of(to, "the result")}


def _options_19(*, to: int, saturate: int = 1, round_mode: str = "up") -> dict[str, Any]:
    return _options(to=to)  # the other attributes concern 8-bit floats


@operator("Cast", until=18, kind="cast", is_exact=True, only_selects=True, options=_options)
@operator("Cast", since=19, kind="cast", is_exact=True, only_selects=True, options=_options_19)
def cast(x: Any, *, dtype: np.dtype[Any]) -> Any:
    """x, cast to another type."""
    if x.dtype == object:
        return _cast_symbols(x, dtype)
    if x.dtype == dtype:
        return x
    is_truncated = is_float(x) and jnp.issubdtype(dtype, jnp.integer)
    if is_truncated and limits_of(dtype).bits < 32:
        return cast(cast(x, dtype=np.dtype(np.int32)), dtype=dtype)
    if is_known(x):
        with np.errstate(over="ignore"):  # overflow gives infinity, as in JAX
            return _truncated(x, dtype) if is_truncated else x.astype(dtype)
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    converted = lax.convert_element_type(x, dtype)
    # Without `sealed`, XLA would remove a cast to a narrow float and back.
    return sealed(converted) if is_float(x) and dtype.itemsize < x.dtype.itemsize else converted


@operator("CastLike", since=15, is_exact=True, only_selects=True)
def cast_like(x: Any, target: Any, *, saturate: int = 1, round_mode: str = "up") -> Any:
    """x, cast to the type of another tensor."""
    return cast(x, dtype=np.dtype(np.int64) if target.dtype == object else target.dtype)


def _truncated(x: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Casts known floats to integers."""
    limits = limits_of(dtype)
    wide = x.astype(np.float64)
    is_low, is_high = wide <= limits.min, wide >= limits.max
    inside = np.where(is_low | is_high | np.isnan(wide), 0, wide)
    whole = inside.astype(np.uint64 if dtype == np.uint64 else np.int64).astype(dtype)
    return np.where(is_low, dtype.type(limits.min), np.where(is_high, dtype.type(limits.max), whole))


def _cast_symbols(x: np.ndarray, dtype: np.dtype[Any]) -> Any:
    """Casts symbolic dimensions: 32- and 64-bit integers stay symbolic; JAX computes all other types at run time."""
    if jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize >= 4:
        return x
    values = [cast(jnp.asarray(size), dtype=dtype) for size in x.reshape(-1)]
    return jnp.stack(values).reshape(x.shape) if values else jnp.zeros(x.shape, dtype)
