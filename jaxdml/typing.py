"""The types of the operators' parameters, for annotations in your own code."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxdml._directml.data_types import DataType

__all__ = ["Array", "DType", "PerDimension", "Scale", "ZeroPoint"]

type Array = jax.Array | np.ndarray[Any, np.dtype[Any]]
type Scale = Array | np.floating[Any] | np.integer[Any] | float
type ZeroPoint = Array | np.integer[Any] | int
type DType = jax.typing.DTypeLike | DataType
type PerDimension = int | Sequence[int]
