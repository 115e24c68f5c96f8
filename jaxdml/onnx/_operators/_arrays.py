"""What the operators' functions share: NumPy or JAX, ONNX's broadcasting, and float arithmetic.

NumPy computes on known values, which constants and shapes determine; JAX computes on the others.

Each float operation is rounded once, as in ONNX Runtime. XLA would save roundings: it contracts a product and a sum to
a multiply-add, replaces a division by a constant or broadcast by a product with the reciprocal, and drops the rounding
to 16 bits between two operations. `sealed` keeps its argument out of such rewrites. Unlike in
`jaxdml._arithmetic.rounding`, no subnormals are flushed here.
"""

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
    """Whether all values are known while JAX traces: none of the arrays is JAX's."""
    return not any(isinstance(array, jax.Array) for array in arrays)


def namespace(*arrays: Any) -> Any:
    """The library that computes on these arrays: NumPy if all are known, else jax.numpy."""
    return np if is_known(*arrays) else jnp


def computed(name: str, *arrays: Array) -> Array:
    """The result of NumPy's or jax.numpy's function of this name; overflow and NaN raise no warnings."""
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
    """The common shape of shapes that broadcast."""
    try:
        return tuple(lax.broadcast_shapes(*shapes))
    except ValueError as error:
        raise ModelError(f"shapes {' and '.join(map(str, shapes))} do not broadcast") from error


def integers(array: np.ndarray | None) -> tuple[Any, ...] | None:
    """The elements of a known tensor, such as a shape or axes: integers, or symbolic dimensions."""
    return None if array is None else tuple(array.reshape(-1).tolist())


# Floats --------------------------------------------------------------------------------------------------------------


def is_float(x: Any) -> bool:
    """Whether elements are floats, bfloat16 included."""
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def is_narrow(x: Any) -> bool:
    """Whether elements are 16-bit floats."""
    return is_float(x) and x.dtype.itemsize == 2


def wide(x: Array) -> Array:
    """16-bit floats as float32; any other x as it is."""
    return lax.convert_element_type(x, jnp.float32) if is_narrow(x) else x


def accumulator_type(x: Array) -> Any:
    """The type that sums products of x: float32 for 16-bit floats."""
    return jnp.float32 if is_narrow(x) else x.dtype


def sealed(x: Array) -> Array:
    """x; XLA must round floats before any further operation. Integers and NumPy arrays need no guard."""
    return rounding.sealed(x) if is_float(x) and not is_known(x) else x


def rounded(x: Array) -> Array:
    """`sealed` for sums, differences and roots: XLA rewrites only those of 16-bit floats."""
    return sealed(x) if is_narrow(x) else x


def product(x: Array, y: Array | float) -> Array:
    """x * y, rounded once; a Python number y takes x's type."""
    return sealed(lax.mul(*_operands(x, y)))


def divided(x: Array | float, y: Array | float) -> Array:
    """x / y, rounded once; x or y may be a Python number.

    The divisor is y, but NaN where x + y is NaN; there x / y is NaN, too. As the divisor depends on x, XLA cannot treat
    it as a constant or a broadcast.
    """
    x, y = _operands(x, y)
    total = lax.add(x, y)
    return sealed(lax.div(x, lax.select(lax.ne(total, total), total, y)))


def _operands(x: Any, y: Any) -> list[Array]:
    """x and y broadcast; a Python number becomes an array like the other operand."""
    if isinstance(x, float | int):
        return [jnp.full_like(y, x), y]
    if isinstance(y, float | int):
        return [x, jnp.full_like(x, y)]
    return broadcast(x, y)
