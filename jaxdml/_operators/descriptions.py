"""Builds the desc of a call from its converted arguments."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxdml._directml.data_types import DataType, TensorFlags
from jaxdml._directml.desc import OperatorDesc, TensorDesc, fields_of, parameter_name
from jaxdml._directml.fields import Option
from jaxdml._directml.quantization import QuantizationType
from jaxdml._directml.strides import packed_strides
from jaxdml._shapes import Shape, aligned, per_channel


class Given(dict[str, Any]):
    """Maps names to the converted arguments of a call; absent tensors are None, and `output_dtype` is never None."""

    def desc(
        self,
        kind: type[OperatorDesc],
        output: Shape,
        *,
        output_type: Any = None,
        form: Callable[[str, Any], TensorDesc] | None = None,
        **options: Any,
    ) -> OperatorDesc:
        """Builds the desc of the call.

        Args:
          kind: the desc's class.
          output: the sizes of the output.
          output_type: the dtype of the output; None means output_dtype.
          form: maps the field and the array of an input to its tensor desc. By default, data tensors keep their sizes,
            and scales and zero points are aligned to the rank of the first tensor.
          **options: values of fields that are not arguments of the call.
        """
        fields, values = fields_of(kind), dict[str, Any](options)
        rank = self[parameter_name(next(iter(fields)))].ndim
        for field, is_ in fields.items():
            if isinstance(is_, Option):
                values.setdefault(field, self.get(field))
                continue
            if is_.role().is_output:
                dtype = self["output_dtype"] if output_type is None else output_type
                values[field] = TensorDesc(DataType.of(dtype), output)
                continue
            descs = []
            for place, name in enumerate(is_.parameters or (parameter_name(field),)):
                if (array := self.get(name)) is None:
                    continue
                if form is not None:
                    descs.append(form(field, array))
                else:
                    is_parameter = is_.role(place).parameter
                    descs.append(parameter_desc(array, rank) if is_parameter else tensor_desc(array))
            if descs:
                values[field] = tuple(descs) if is_.is_many else descs[0]
        return kind(**values)


def tensor_desc(array: Any) -> TensorDesc:
    """The packed desc of an array; prepared weights are OWNED_BY_DML."""
    is_array = isinstance(array, jax.Array | np.ndarray)
    flags = TensorFlags.NONE if is_array else TensorFlags.OWNED_BY_DML
    return TensorDesc(DataType.of(array.dtype), array.shape, flags=flags)


def parameter_desc(array: Any, rank: int, channels: int | None = None) -> TensorDesc:
    """The packed desc of a scale, zero point or bias, aligned to rank; the shape [channels] means per channel."""
    return TensorDesc(DataType.of(array.dtype), per_channel(array.shape, rank, channels))


def scale_of_input(given: Given, scale: Any) -> type[np.floating]:
    """The type for a Python number that divides input: float16 if input is float16, else float32."""
    return np.float16 if given["input"].dtype == np.float16 else np.float32


def scale_of_output(given: Given, scale: Any) -> type[np.floating]:
    """The type of the output and of the number `scale`: float16 if `scale` is an np.float16, else float32."""
    return np.float16 if isinstance(scale, np.float16) else np.float32


def block_desc(array: Any, rank: int) -> TensorDesc:
    """The packed desc of a blockwise parameter; a scalar has one block."""
    return TensorDesc(DataType.of(array.dtype), array.shape or (1,) * rank)


def quantization_options(given: Given) -> dict[str, Any]:
    """The fields of QUANTIZE and DEQUANTIZE that depend on whether there is a zero point."""
    has_zero_point = given["zero_point"] is not None
    kind = QuantizationType.SCALE_ZERO_POINT if has_zero_point else QuantizationType.SCALE
    return {"quantization_type": kind, "quantization_tensor_count": int(kind)}


def broadcast_desc(array: Any, sizes: Shape) -> TensorDesc:
    """The desc of array, broadcast to `sizes` by strides of 0; if that is impossible, the desc has array's sizes."""
    shape = aligned(array.shape, len(sizes))
    if (
        shape == sizes
        or len(shape) != len(sizes)
        or any(have not in (1, want) for have, want in zip(shape, sizes, strict=True))
    ):
        return TensorDesc(DataType.of(array.dtype), shape)
    strides = tuple(stride if size != 1 else 0 for size, stride in zip(shape, packed_strides(shape), strict=True))
    return TensorDesc(DataType.of(array.dtype), sizes, strides)
