"""Functions that the operators share: the choice of NumPy or JAX, ONNX's broadcasting, and float arithmetic.

NumPy computes on known values, which constants and shapes determine; JAX computes on all other values.

Each float operation is rounded once, as in ONNX Runtime. XLA changes roundings: it fuses a product and a sum into a
multiply-add, multiplies by the reciprocal of a constant or broadcast divisor instead of dividing, and drops the
rounding to 16 bits between two operations. `sealed` protects its argument from these rewrites. Unlike
`jaxdml._arithmetic.rounding`, this module does not flush subnormals.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import rounding
from jaxdml.errors import ModelError

Array = Any  # jax.Array, or np.ndarray for known values
EXACT = lax.Precision.HIGHEST


# NumPy or JAX --------------------------------------------------------------------------------------------------------


def is_known(*arrays: Any) -> bool:
    """Whether all values are known while JAX traces: none of the arrays is a jax.Array."""
    return not any(isinstance(array, jax.Array) for array in arrays)


def namespace(*arrays: Any) -> Any:
    """The library that computes on these arrays: NumPy if all are known, else jax.numpy."""
    return np if is_known(*arrays) else jnp


def computed(name: str, *arrays: Array) -> Array:
    """Calls the function of this name in NumPy or jax.numpy; overflow and NaN cause no warnings."""
    xp = namespace(*arrays)
    with np.errstate(all="ignore"):
        result = getattr(xp, name)(*arrays)
    return np.asarray(result) if xp is np else rounded(result)


def broadcast(*arrays: Any) -> list[Any]:
    """The arrays broadcast to their common shape; ONNX's rule is NumPy's.

    Raises:
      ModelError: if the shapes do not broadcast.
    """
    xp, shape = namespace(*arrays), broadcast_shape(*(array.shape for array in arrays))
    return [array if array.shape == shape else xp.broadcast_to(array, shape) for array in arrays]


def broadcast_shape(*shapes: tuple[Any, ...]) -> tuple[Any, ...]:
    """The common shape to which the shapes broadcast."""
    try:
        return tuple(lax.broadcast_shapes(*shapes))
    except ValueError as error:
        raise ModelError(f"shapes {' and '.join(map(str, shapes))} do not broadcast") from error


def integers(array: np.ndarray | None) -> tuple[Any, ...] | None:
    """The elements of a known tensor, such as a shape or axes: integers, or symbolic dimensions."""
    return None if array is None else tuple(array.reshape(-1).tolist())


def in_float64(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Wraps a function of float64 arrays for constants: it gets all of them as float64, and its result is rounded once.

    The result has the type of the first array.
    """

    def compute(*arrays: np.ndarray) -> np.ndarray:
        wide_arrays = (array.astype(np.float64) for array in arrays)
        with np.errstate(all="ignore"):
            return np.asarray(function(*wide_arrays)).astype(arrays[0].dtype)

    return compute


# Floats --------------------------------------------------------------------------------------------------------------


def is_float(x: Any) -> bool:
    """Whether the elements are floats, including bfloat16."""
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def is_narrow(x: Any) -> bool:
    """Whether the elements are 16-bit floats."""
    return is_float(x) and x.dtype.itemsize == 2


def wide(x: Array) -> Array:
    """x as float32 if its elements are 16-bit floats, otherwise x unchanged."""
    return x.astype(jnp.float32) if is_narrow(x) else x


def accumulator_type(x: Array) -> Any:
    """The type in which products of x are summed: float32 for 16-bit floats, otherwise x's type."""
    return jnp.float32 if is_narrow(x) else x.dtype


def sealed(x: Array) -> Array:
    """Returns x, and makes XLA round its floats before the next operation; integers and NumPy arrays need no guard."""
    return rounding.sealed(x) if is_float(x) and not is_known(x) else x


def rounded(x: Array) -> Array:
    """`sealed` for sums, differences and roots, which XLA rewrites only for 16-bit floats."""
    return sealed(x) if is_narrow(x) else x


def product(x: Array, y: Array | float) -> Array:
    """x * y, rounded once; a Python number y takes x's type."""
    return sealed(lax.mul(*_operands(x, y)))


def divided(x: Array | float, y: Array | float) -> Array:
    """x / y, rounded once; x or y may be a Python number.

    The divisor is y, except where x + y is NaN. There the divisor is NaN, and the result is the same, because x / y is
    NaN there, too. This divisor depends on x, so XLA cannot treat the divisor as a constant or a broadcast.
    """
    x, y = _operands(x, y)
    total = lax.add(x, y)
    return sealed(lax.div(x, lax.select(lax.ne(total, total), total, y)))


def _operands(x: Any, y: Any) -> list[Array]:
    """x and y, broadcast to their common shape; a Python number becomes an array like the other operand."""
    if isinstance(x, float | int):
        return [jnp.full_like(y, x), y]
    if isinstance(y, float | int):
        return [x, jnp.full_like(x, y)]
    return broadcast(x, y)
