"""Constants, and conversions between types.

Floats become integers by truncation. What does not fit, ONNX leaves open: a type of 32 or 64 bits takes the nearest
limit, and 0 for NaN; a type of fewer bits takes the lower ones of an int32 made so. ONNX Runtime differs for floats
that an int32 does not hold. Integers that another integer type does not hold lose their upper bits.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.rounding import limits_of
from jaxdml.errors import ModelError
from jaxdml.onnx._arrays import check_size, integers, is_known
from jaxdml.onnx._operators._floats import is_float, sealed
from jaxdml.onnx._table import operator
from jaxdml.onnx._types import dtype_of


@operator("Constant", is_exact=True)
def constant(
    *,
    value: np.ndarray | None = None,
    value_int: int | None = None,
    value_ints: tuple[int, ...] | None = None,
    value_float: float | None = None,
    value_floats: tuple[float, ...] | None = None,
) -> Any:
    """The tensor that an attribute holds."""
    held = [value, value_int, value_ints, value_float, value_floats]
    given = [(place, each) for place, each in enumerate(held) if each is not None]
    if len(given) != 1:
        raise ModelError(f"it has {len(given)} values, expected one")
    place, each = given[0]
    return value if place == 0 else np.array(each, np.int64 if place < 3 else np.float32)


@operator("ConstantOfShape", is_exact=True, known=(0,))
def constant_of_shape(shape: Any, *, value: np.ndarray = np.zeros(1, np.float32)) -> Any:  # noqa: B008 # never written
    """The tensor of a shape, each element the same."""
    sizes = integers(shape) or ()
    check_size(sizes, value.dtype)
    if all(isinstance(size, int) for size in sizes):
        return np.broadcast_to(value.reshape(()), sizes)
    return jnp.broadcast_to(value.reshape(()), sizes)


def _without_saturation(*, to: int) -> dict[str, Any]:
    return {"dtype": dtype_of(to, "the result")}


def _with_saturation(*, to: int, saturate: int = 1, round_mode: str = "up") -> dict[str, Any]:
    return _without_saturation(to=to)  # the other attributes are about 8-bit floats


@operator("Cast", until=18, is_exact=True, options=_without_saturation)
@operator("Cast", since=19, is_exact=True, options=_with_saturation)
def cast(x: Any, *, dtype: np.dtype[Any]) -> Any:
    """The elements in another type."""
    if x.dtype == object:
        return _of_symbols(x, dtype)
    if x.dtype == dtype:
        return x
    is_truncated = is_float(x) and jnp.issubdtype(dtype, jnp.integer)
    if is_truncated and limits_of(dtype).bits < 32:
        return cast(cast(x, dtype=np.dtype(np.int32)), dtype=dtype)
    if is_known(x):
        with np.errstate(over="ignore"):  # infinity, as everywhere
            return _truncated(x, dtype) if is_truncated else x.astype(dtype)
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    converted = lax.convert_element_type(x, dtype)
    # XLA would take a conversion to a narrow float and back for none.
    return sealed(converted) if is_float(x) and dtype.itemsize < x.dtype.itemsize else converted


@operator("CastLike", since=15, is_exact=True)
def cast_like(x: Any, target: Any, *, saturate: int = 1, round_mode: str = "up") -> Any:
    """The elements in the type of another tensor."""
    return cast(x, dtype=np.dtype(np.int64) if target.dtype == object else target.dtype)


def _truncated(x: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Known floats as integers."""
    limits = limits_of(dtype)
    wide = x.astype(np.float64)
    is_low, is_high = wide <= limits.min, wide >= limits.max
    inside = np.where(is_low | is_high | np.isnan(wide), 0, wide)
    whole = inside.astype(np.uint64 if dtype == np.uint64 else np.int64).astype(dtype)
    return np.where(is_low, dtype.type(limits.min), np.where(is_high, dtype.type(limits.max), whole))


def _of_symbols(x: np.ndarray, dtype: np.dtype[Any]) -> Any:
    """Symbolic sizes as they are if integers are asked for, else as numbers that JAX knows when it runs."""
    if jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize >= 4:
        return x
    values = [cast(jnp.asarray(size), dtype=dtype) for size in x.reshape(-1)]
    return jnp.stack(values).reshape(x.shape) if values else jnp.zeros(x.shape, dtype)
