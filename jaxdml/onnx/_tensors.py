"""ONNX's data types, the tensors that a model declares, and the types and shapes that the package onnx infers."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx

from jaxdml.errors import ModelError

# ONNX's data types ---------------------------------------------------------------------------------------------------

_NAMES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
    11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16", 21: "uint4", 22: "int4",
}  # fmt: skip
_UNSUPPORTED = {
    8: "string", 14: "complex64", 15: "complex128", 17: "float8e4m3fn", 18: "float8e4m3fnuz", 19: "float8e5m2",
    20: "float8e5m2fnuz", 23: "float4e2m1", 24: "float8e8m0", 25: "uint2", 26: "int2", 27: "float6e2m3",
    28: "float6e3m2",
}  # fmt: skip


def dtype_of(number: int, subject: str) -> np.dtype[Any]:
    """The dtype of an ONNX data type.

    Args:
      number: a value of TensorProto.DataType.
      subject: the subject of the error text, such as "tensor 'w'".

    Raises:
      ModelError: if the type is not supported, or not defined by ONNX.
    """
    if number in _NAMES:
        return jnp.dtype(_NAMES[number])
    if number in _UNSUPPORTED:
        raise ModelError(f"{subject} has the type {_UNSUPPORTED[number]}; supported: {', '.join(_NAMES.values())}")
    raise ModelError(f"{subject} has the data type {number}, which ONNX does not define")


# Declared inputs and outputs -----------------------------------------------------------------------------------------

Dimension = int | str | None


@dataclass(frozen=True)
class Tensor:
    """An input or output of a model.

    Attributes:
      name: its name.
      shape: a tuple of sizes, symbolic names, and None for unnamed dimensions; None if the rank is unknown. A dimension
        named "?" in the file counts as unnamed: several such dimensions need not be equal.
      dtype: its type in the file, or the type that ONNX infers for an output without one; None if neither is known.
        Without jax_enable_x64, JAX computes 64-bit types as 32-bit types.
    """

    name: str
    shape: tuple[Dimension, ...] | None
    dtype: np.dtype[Any] | None

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype or '?'}[{shown_shape(self.shape)}]"

    @property
    def computed_dtype(self) -> np.dtype[Any] | None:
        """The type that JAX computes with; None if unknown."""
        return None if self.dtype is None else jax.dtypes.canonicalize_dtype(self.dtype)

    def validated(self, value: Any, sizes: dict[str, Any]) -> Any:
        """Checks an argument for this input, and returns it as an array.

        Args:
          value: the argument.
          sizes: the sizes of symbolic dimensions, keyed by name; this function adds the argument's sizes.

        Raises:
          ModelError: if the argument is not an array, or has the wrong type or shape.
        """
        if value is None:
            raise ModelError(f"input {self} was given None, expected an array")
        try:
            array = value if isinstance(value, jax.Array) else np.asarray(value)
        except Exception as error:  # ragged lists, and anything that an object's __array__ raises
            text = f"was given a {type(value).__name__} that is not an array: {error}"
            raise ModelError(f"input {self} {text}") from error
        if wrong := self.mismatch(array, sizes):
            raise ModelError(f"input {self} was given {array.dtype}[{shown_shape(array.shape)}]: {wrong}")
        return array

    def mismatch(self, array: Any, sizes: dict[str, Any]) -> str:
        """How the type or shape of an array differs from this tensor's; empty if it does not. Adds to `sizes`."""
        expected = self.computed_dtype
        if expected is not None and array.dtype not in (self.dtype, expected):
            return f"convert it to {expected}"
        if self.shape is None:
            return ""
        if len(array.shape) != len(self.shape):
            return f"it has {len(array.shape)} dimensions, expected {len(self.shape)}"
        for axis, (declared, size) in enumerate(zip(self.shape, array.shape, strict=True)):
            required = sizes.setdefault(declared, size) if isinstance(declared, str) else declared
            if required is not None and required != size:
                shown = f"{declared} = {required}" if isinstance(declared, str) else str(required)
                return f"dimension {axis} is {size}, expected {shown}"
        return ""


def shown_shape(shape: Iterable[Any] | None) -> str:
    """A shape as text: "N, ?, 3", or "..." if the rank is unknown."""
    return "..." if shape is None else ", ".join("?" if size is None else str(size) for size in shape)


def tensors(values: Iterable[onnx.ValueInfoProto]) -> tuple[Tensor, ...]:
    """The tensors that a model declares.

    Raises:
      ModelError: if a value is not a tensor, or its type is not supported.
    """
    return tuple(map(_tensor, values))


def outputs(values: Iterable[onnx.ValueInfoProto], inferred: "Inferred") -> tuple[Tensor, ...]:
    """The tensors that a model declares as outputs; their types or shapes may be missing.

    Raises:
      ModelError: if a value is not a tensor, or its type is not supported.
    """
    return tuple(_output(value, inferred) for value in values)


def _output(value: onnx.ValueInfoProto, inferred: "Inferred") -> Tensor:
    kind, tensor = value.type.WhichOneof("value"), value.type.tensor_type
    if tensor.elem_type or kind not in (None, "tensor_type"):
        return _tensor(value)
    dtype, _ = inferred.get(value.name, (None, None))
    return Tensor(value.name, _shape(tensor), None if dtype is None else jnp.dtype(dtype))


def _tensor(value: onnx.ValueInfoProto) -> Tensor:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise ModelError(f"{value.name!r} is of the kind {kind or 'unknown'}; supported: tensors")
    tensor = value.type.tensor_type
    return Tensor(value.name, _shape(tensor), dtype_of(tensor.elem_type, f"{value.name!r}"))


def _shape(tensor: Any) -> tuple[Dimension, ...] | None:
    return tuple(map(_dimension, tensor.shape.dim)) if tensor.HasField("shape") else None


def _dimension(dimension: Any) -> Dimension:
    kind = dimension.WhichOneof("value")
    if kind == "dim_value":
        return int(dimension.dim_value) if dimension.dim_value >= 0 else None
    return None if dimension.dim_param in ("", "?") else dimension.dim_param


# Inferred types and shapes -------------------------------------------------------------------------------------------

Inferred = Mapping[str, tuple[str | None, tuple[Any, ...] | None]]
SMALL = 1024  # shape inference reads the values of tensors with at most this many elements


def inferred_types(proto: onnx.ModelProto, nodes: Iterable[onnx.NodeProto]) -> Inferred:
    """The types and shapes that the package onnx infers from a model's nodes in topological order, keyed by name.

    They are used in error texts, in early type checks, and for outputs that declare no type; some values may be
    missing.
    """
    without_data = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    graph = without_data.graph
    graph.name = "graph"
    graph.node.extend(node for node in nodes if not any(a.HasField("g") for a in node.attribute))
    for node in graph.node:
        if node.op_type == "Slice":  # with known bounds, the inference aborts on the negative sizes of a malformed file
            node.input[1:] = [""] * (len(node.input) - 1)
    graph.input.extend(proto.graph.input)
    for value in graph.input:
        for size in value.type.tensor_type.shape.dim:
            if size.dim_value < 0:  # some exporters write -1 for a dynamic size, on which the inference can abort
                size.ClearField("dim_value")
    graph.output.extend(proto.graph.output)
    declared = {value.name for value in proto.graph.input}
    for tensor in proto.graph.initializer:
        if math.prod(tensor.dims) <= SMALL and tensor.data_location != onnx.TensorProto.EXTERNAL:
            graph.initializer.append(tensor)
        elif tensor.name not in declared:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    try:
        inferred = onnx.shape_inference.infer_shapes(without_data).graph
    except Exception:  # a malformed model; the checks in _convert list its problems
        inferred = graph
    types: dict[str, tuple[str | None, tuple[Any, ...] | None]] = {}
    for value in (*inferred.value_info, *inferred.input, *inferred.output):
        try:
            tensor = _tensor(value)
        except ModelError:  # a sequence, or an unsupported type
            continue
        types[value.name] = (str(tensor.dtype), tensor.shape)
    for tensor in inferred.initializer:
        types[tensor.name] = (_NAMES.get(tensor.data_type), tuple(tensor.dims))
    return types
