"""What a model says of its inputs and outputs, and whether arrays are like it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import onnx

from jaxdml.errors import ModelError
from jaxdml.onnx._types import dtype_of

Dimension = int | str | None


@dataclass(frozen=True)
class Tensor:
    """An input or output of a model.

    Attributes:
      name: its name.
      shape: its sizes; a name for a size that is open, None for one without a name; None if the rank is open.
      dtype: its type in the file. 64-bit types are 32-bit ones where jax_enable_x64 is off.
    """

    name: str
    shape: tuple[Dimension, ...] | None
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        sizes = "..." if self.shape is None else ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.name}: {self.dtype}[{sizes}]"

    def checked(self, value: Any, sizes: dict[str, Any]) -> Any:
        """An array given for the tensor.

        Args:
          value: what was given.
          sizes: those of the names in shapes so far; what this array adds to them is stored.

        Raises:
          ModelError: if the array has another type or shape.
        """
        if value is None:
            raise ModelError(f"input {self} was given None, expected an array")
        try:
            array = value if isinstance(value, jax.Array) else np.asarray(value)
        except Exception as error:  # lists of lists of different lengths, and whatever objects do
            raise ModelError(f"input {self} was given a {type(value).__name__} that is no array: {error}") from error
        expected = jax.dtypes.canonicalize_dtype(self.dtype)
        if array.dtype not in (self.dtype, expected):
            raise self._error(array, f"convert it to {expected}")
        if self.shape is None:
            return array
        if len(array.shape) != len(self.shape):
            raise self._error(array, f"it has {len(array.shape)} dimensions, expected {len(self.shape)}")
        for axis, (size, given) in enumerate(zip(self.shape, array.shape, strict=True)):
            wanted = sizes.setdefault(size, given) if isinstance(size, str) else size
            if wanted is not None and wanted != given:
                known = f"{size} = {wanted}" if isinstance(size, str) else str(wanted)
                raise self._error(array, f"dimension {axis} is {given}, expected {known}")
        return array

    def _error(self, array: Any, text: str) -> ModelError:
        received = f"{array.dtype}[{', '.join(map(str, array.shape))}]"
        return ModelError(f"input {self} was given {received}: {text}")


def tensors(values: Iterable[onnx.ValueInfoProto]) -> tuple[Tensor, ...]:
    """The tensors that a model declares.

    Raises:
      ModelError: if a value is no tensor, or of an unknown type.
    """
    return tuple(_tensor(value) for value in values)


def _tensor(value: onnx.ValueInfoProto) -> Tensor:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise ModelError(f"{value.name!r} is of the kind {kind or 'unknown'}, supported are tensors")
    tensor = value.type.tensor_type
    shape = tuple(map(_dimension, tensor.shape.dim)) if tensor.HasField("shape") else None
    return Tensor(value.name, shape, dtype_of(tensor.elem_type, f"{value.name!r}"))


def _dimension(dimension: Any) -> Dimension:
    kind = dimension.WhichOneof("value")
    if kind == "dim_value":
        return int(dimension.dim_value) if dimension.dim_value >= 0 else None
    return dimension.dim_param or None if kind else None
