"""What the operators' functions share: NumPy for what is known, JAX for the rest, ONNX's types and broadcasting."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml.errors import ModelError

Array = Any  # jax.Array, or np.ndarray where the values are known


def is_known(*arrays: Any) -> bool:
    """Whether NumPy computes with these arrays: none of them is JAX's."""
    return not any(isinstance(array, jax.Array) for array in arrays)


def namespace(*arrays: Any) -> Any:
    """The library that computes with these arrays: NumPy where it knows all of them, else jax.numpy."""
    return np if is_known(*arrays) else jnp


def broadcast(*arrays: Any) -> list[Any]:
    """The arrays in their common shape, by ONNX's rule, which is NumPy's.

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


def axis_of(axis: int, rank: int) -> int:
    """An axis from 0 to rank - 1, of one that may count from the end.

    Raises:
      ModelError: if there is no such axis.
    """
    if not -rank <= axis < rank:
        raise ModelError(f"axis {axis} is not in [{-rank}, {rank - 1}]")
    return axis % rank


def integers(known: np.ndarray | None) -> tuple[Any, ...] | None:
    """The integers, or symbolic dimensions, in a known tensor: a shape, axes, or starts."""
    return None if known is None else tuple(known.reshape(-1).tolist())


def check_size(shape: tuple[Any, ...], dtype: Any, limit: int = 2**30) -> None:
    """Refuses a tensor that a few numbers of a file would make larger than memory.

    Raises:
      ModelError: if a tensor of this shape and type has more bytes than the limit, or a negative dimension.
    """
    if any(isinstance(size, int) and size < 0 for size in shape):
        raise ModelError(f"shape {shape} has a negative dimension")
    known = [size for size in shape if isinstance(size, int)]
    if math.prod(known) * np.dtype(dtype).itemsize > limit:
        raise ModelError(f"a tensor of shape {shape} has more bytes than the limit of {limit}")
