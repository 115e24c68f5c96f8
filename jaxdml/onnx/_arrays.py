"""What the operators' functions share: NumPy for what is known, JAX for the rest, ONNX's types and broadcasting."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._quantized.axes import axis_of as axis_of
from jaxdml.errors import ModelError

Array = Any  # jax.Array, or np.ndarray where the values are known
_MOST: ContextVar[int] = ContextVar("tensor_bytes", default=2**30)


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


def integers(known: np.ndarray | None) -> tuple[Any, ...] | None:
    """The integers, or symbolic dimensions, in a known tensor: a shape, axes, or starts."""
    return None if known is None else tuple(known.reshape(-1).tolist())


@contextmanager
def limited(tensor_bytes: int) -> Iterator[None]:
    """Sets the limit of `check_size`."""
    token = _MOST.set(tensor_bytes)
    try:
        yield
    finally:
        _MOST.reset(token)


def check_size(shape: tuple[Any, ...], dtype: Any) -> None:
    """Refuses a tensor that a few numbers of a file would make larger than memory.

    Raises:
      ModelError: if a tensor of this shape and type has more bytes than the limit, or a negative dimension.
    """
    if any(isinstance(size, int) and size < 0 for size in shape):
        raise ModelError(f"shape {shape} has a negative dimension")
    known = [size for size in shape if isinstance(size, int)]
    size = math.prod(known) * np.dtype(dtype).itemsize
    if size > _MOST.get():
        text = f"more than the limit of {_MOST.get()}; for a file you trust, set Limits(tensor_bytes=...)"
        raise ModelError(f"its result of shape {shape} has {size} bytes, {text}")
