"""Types of the operators' parameters, for annotations in code that calls them."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxdml._directml.data_types import DataType

__all__ = ["Array", "DType", "PerDimension", "Scale", "ZeroPoint"]

type Array = jax.Array | np.ndarray[Any, np.dtype[Any]]
"""An array of JAX or NumPy; inside of `jax.jit` a traced one."""

type Scale = Array | np.floating[Any] | np.integer[Any] | float
"""A scale: a number, which becomes an array of the type that the operator needs, or an array."""

type ZeroPoint = Array | np.integer[Any] | int
"""A zero point: an integer, which becomes an array of the quantized tensor's type, or an array."""

type DType = jax.typing.DTypeLike | DataType
"""A type of elements, such as ``jnp.int8``."""

type PerDimension = int | Sequence[int]
"""An integer for each spatial dimension; a single integer is for all of them."""
