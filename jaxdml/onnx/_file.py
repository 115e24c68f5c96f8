"""Reads a model from a path, bytes or a ModelProto, and its tensors as NumPy arrays.

Every problem with a file raises `ModelError`. The package onnx opens external data itself: it rejects paths outside of
the model's folder, links, and lengths beyond the end of the data file.
"""

import errno
import math
from collections.abc import Iterator
from os import PathLike
from pathlib import Path, PureWindowsPath
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import external_data_helper, numpy_helper

from jaxdml.errors import ArgumentTypeError, ModelError, ModelFileError, check_regular, file_path
from jaxdml.onnx._limits import Budget
from jaxdml.onnx._tensors import dtype_of

DEEPEST = 16


class Reader:
    """Reads one model.

    Attributes:
      proto: the model.
      budget: enforces the limits.
    """

    def __init__(self, model: Any, budget: Budget) -> None:
        self.budget = budget
        self._folder = ""
        self.proto: onnx.ModelProto = self._parsed(model)
        if not self.proto.HasField("graph"):
            raise ModelError("the model has no graph: it is not an ONNX file, or is truncated")
        count = 0
        for graph in all_graphs(self.proto.graph):
            count += len(graph.node)
            if count > budget.limits.nodes:
                raise ModelError(f"the model has {count} nodes, {budget.limits.exceeded('nodes')}")

    def array(self, tensor: onnx.TensorProto) -> np.ndarray:
        """The values of a tensor.

        Raises:
          ModelError: if the type is not supported, the data do not match the shape, or the data cannot be read.
        """
        self.budget.check_time()
        name = f"tensor {tensor.name!r}"
        dtype, shape = dtype_of(tensor.data_type, name), tuple(tensor.dims)
        if any(size < 0 for size in shape):
            raise ModelError(f"{name} has the shape {list(shape)}, with a negative dimension")
        # A tensor with a dimension of size 0 has no bytes. But an operator may drop that dimension, so the other
        # dimensions must stay within the limit.
        size, limits = math.prod(max(size, 1) for size in shape) * dtype.itemsize, self.budget.limits
        if size > limits.tensor_bytes:
            raise ModelError(f"{name} of shape {list(shape)} has {size} bytes, {limits.exceeded('tensor_bytes')}")
        try:
            if external_data_helper.uses_external_data(tensor):
                tensor = self._with_data(tensor, _packed_bytes(shape, dtype))
            value = numpy_helper.to_array(tensor)
        except ModelError:
            raise
        except Exception as error:  # onnx raises ValueError, TypeError, its own and C++ errors
            raise ModelError(f"{name} cannot be read: {error}") from error
        if value.shape != shape or value.dtype != dtype:
            raise ModelError(f"{name} holds {value.dtype}{list(value.shape)}, but declares {dtype}{list(shape)}")
        return value

    def is_out_of_reach(self, tensor: onnx.TensorProto) -> bool:
        """Whether the tensor's data are in another file and the model was not loaded from a path."""
        return external_data_helper.uses_external_data(tensor) and not self._folder

    def _with_data(self, tensor: onnx.TensorProto, size: int) -> onnx.TensorProto:
        """A copy of the tensor that holds its external data."""
        if self.is_out_of_reach(tensor):
            raise ModelError(f"tensor {tensor.name!r} lies in another file; load the model from its path")
        info = external_data_helper.ExternalDataInfo(tensor)
        if info.length is not None and info.length != size:
            text = f"its external data have {info.length} bytes, its type and shape need {size}"
            raise ModelError(f"tensor {tensor.name!r}: {text}")
        if PureWindowsPath(info.location).drive:  # `D:w.bin` is a relative path, but leaves the folder on Windows
            raise ModelError(f"tensor {tensor.name!r} lies in {info.location!r}, outside of the model's folder")
        other = Path(self._folder, info.location)
        if not other.exists():
            text = f"tensor {tensor.name!r} lies in {str(other)!r}, which does not exist"
            raise ModelFileError.of(errno.ENOENT, other, text)
        if not other.is_file():
            raise ModelError(f"tensor {tensor.name!r} lies in {str(other)!r}, which is not a regular file")
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        if info.length is None:  # without a length, onnx would read up to the end of the data file
            copy.external_data.add(key="length", value=str(size))
        external_data_helper.load_external_data_for_tensor(copy, self._folder)
        return copy

    def _parsed(self, model: Any) -> onnx.ModelProto:
        if isinstance(model, onnx.ModelProto):
            return model
        if isinstance(model, str | PathLike):
            path = file_path(model, ModelFileError)
            self._folder = str(path.parent)
            model = self._bytes(path)
        if not isinstance(model, bytes):
            text = f"model is of type {type(model).__name__}, expected a path, bytes or an onnx.ModelProto"
            raise ArgumentTypeError(text)
        self._check_size(len(model))
        proto = onnx.ModelProto()
        try:
            proto.ParseFromString(model)
        except DecodeError as error:
            raise ModelError(f"the model is not an ONNX file, or is truncated: {error}") from error
        return proto

    def _bytes(self, path: Path) -> bytes:
        try:
            check_regular(path, ModelFileError, f"the model cannot be read: {str(path)!r} is not a regular file")
            self._check_size(path.stat().st_size)
            return path.read_bytes()
        except ModelError:
            raise
        except OSError as error:
            raise ModelFileError.of(error.errno, path, f"the model cannot be read: {error}") from error

    def _check_size(self, size: int) -> None:
        if size > self.budget.limits.file_bytes:
            raise ModelError(f"the model has {size} bytes, {self.budget.limits.exceeded('file_bytes')}")


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph, and the graphs in the attributes of its nodes, at any depth.

    Raises:
      ModelError: if graphs are nested more than `DEEPEST` levels deep.
    """
    found = [(graph, 0)]
    while found:
        graph, depth = found.pop()
        if depth > DEEPEST:
            raise ModelError(f"the branches of the model are nested more than {DEEPEST} levels deep")
        yield graph
        for node in graph.node:
            found += [(each.g, depth + 1) for each in node.attribute if each.HasField("g")]


def _packed_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """The size in bytes of a tensor's elements in a file; two 4-bit elements share a byte there."""
    count = math.prod(shape)
    return -(-count // 2) if dtype in (jnp.int4, jnp.uint4) else count * dtype.itemsize
