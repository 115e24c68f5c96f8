"""From a path, bytes or a ModelProto to a checked ModelProto and arrays, within limits.

Whatever is wrong with a file ends in a `ModelError`. Data that a file keeps elsewhere is opened by onnx itself, which
refuses paths that leave the model's folder, links, and lengths that the other file has not.
"""

import math
import time
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path, PureWindowsPath
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import external_data_helper, numpy_helper

from jaxdml.errors import ModelError, ModelFileNotFoundError
from jaxdml.onnx._types import dtype_of


@dataclass(frozen=True)
class Limits:
    """What a model may take, so that a hostile file ends in an error.

    Attributes:
      file_bytes: the size of the file, and of all that is computed from its constants.
      tensor_bytes: the size of a tensor, in the file or while the model runs.
      nodes: the number of nodes.
      seconds: the time for reading the model and computing with its constants.
    """

    file_bytes: int = 2**31
    tensor_bytes: int = 2**30
    nodes: int = 100_000
    seconds: float = 10.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float if field.name == "seconds" else int):
                expected = "a number" if field.name == "seconds" else "an int"
                raise TypeError(f"{field.name} is {value!r}, expected {expected}")
            if not value >= 0:
                raise ValueError(f"{field.name} is {value!r}, expected none below 0")

    def exceeded(self, field: str) -> str:
        """The end of a sentence about what is beyond a limit."""
        return f"more than the limit of {getattr(self, field)}; for a file you trust, set Limits({field}=...)"


class Reader:
    """Reads one model within limits.

    Attributes:
      proto: the model.
      limits: its limits.
    """

    def __init__(self, model: Any, limits: Limits) -> None:
        self.limits = limits
        self._end = time.monotonic() + limits.seconds
        self._folder = ""
        self.proto: onnx.ModelProto = self._parsed(model)
        if not self.proto.HasField("graph"):
            raise ModelError("the model has no graph: it is no ONNX file, or a part of one")
        if len(self.proto.graph.node) > limits.nodes:
            raise ModelError(f"the model has {len(self.proto.graph.node)} nodes, {limits.exceeded('nodes')}")

    def check_time(self) -> None:
        """Raises ModelError where the time is up."""
        if time.monotonic() > self._end:
            raise ModelError(f"reading the model takes time, {self.limits.exceeded('seconds')}")

    def array(self, tensor: onnx.TensorProto) -> np.ndarray:
        """The values of a tensor of the model.

        Raises:
          ModelError: if the type is unknown, or the data are not as long as the shape says, or are not to be read.
        """
        self.check_time()
        name = f"tensor {tensor.name!r}"
        dtype, shape = dtype_of(tensor.data_type, name), tuple(tensor.dims)
        if any(size < 0 for size in shape):
            raise ModelError(f"{name} has the shape {list(shape)}, with a negative dimension")
        # A dimension of 0 hides others that results may have without it.
        most = math.prod(max(size, 1) for size in shape) * dtype.itemsize
        if most > self.limits.tensor_bytes:
            raise ModelError(f"{name} of shape {list(shape)} has {most} bytes, {self.limits.exceeded('tensor_bytes')}")
        try:
            if external_data_helper.uses_external_data(tensor):
                tensor = self._with_data(tensor, _packed_bytes(shape, dtype))
            value = numpy_helper.to_array(tensor)
        except ModelError:
            raise
        except Exception as error:  # onnx raises ValueError, TypeError, its own and C++ errors
            raise ModelError(f"{name} cannot be read: {error}") from error
        if value.shape != shape or value.dtype != dtype:
            raise ModelError(f"{name} holds {value.dtype}{list(value.shape)}, and says {dtype}{list(shape)}")
        return value

    def is_out_of_reach(self, tensor: onnx.TensorProto) -> bool:
        """Whether another file holds the data, and the model has no folder."""
        return external_data_helper.uses_external_data(tensor) and not self._folder

    def _with_data(self, tensor: onnx.TensorProto, size: int) -> onnx.TensorProto:
        """The tensor with the data that another file holds."""
        if self.is_out_of_reach(tensor):
            raise ModelError(f"tensor {tensor.name!r} lies in another file; load the model from its path")
        info = external_data_helper.ExternalDataInfo(tensor)
        if info.length is not None and info.length != size:
            text = f"its external data have {info.length} bytes, its type and shape need {size}"
            raise ModelError(f"tensor {tensor.name!r}: {text}")
        if PureWindowsPath(info.location).drive:  # `D:w.bin` is no absolute path, and leaves the folder on Windows
            raise ModelError(f"tensor {tensor.name!r} lies in {info.location!r}, outside of the model's folder")
        other = Path(self._folder, info.location)
        if other.exists() and not other.is_file():
            raise ModelError(f"tensor {tensor.name!r} lies in {str(other)!r}, which is no regular file")
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        if info.length is None:  # else all of the other file is data
            copy.external_data.add(key="length", value=str(size))
        external_data_helper.load_external_data_for_tensor(copy, self._folder)
        return copy

    def _parsed(self, model: Any) -> onnx.ModelProto:
        if isinstance(model, onnx.ModelProto):
            return model
        if isinstance(model, str | PathLike):
            path = Path(model)
            self._folder = str(path.parent)
            model = self._bytes(path)
        if not isinstance(model, bytes):
            raise TypeError(f"model is of type {type(model).__name__}, expected a path, bytes or an onnx.ModelProto")
        self._check_size(len(model))
        proto = onnx.ModelProto()
        try:
            proto.ParseFromString(model)
        except DecodeError as error:
            raise ModelError(f"the model is no ONNX file, or a part of one: {error}") from error
        return proto

    def _bytes(self, path: Path) -> bytes:
        try:
            if path.exists() and not path.is_file():
                raise ModelError(f"the model cannot be read: {str(path)!r} is no regular file")
            self._check_size(path.stat().st_size)
            return path.read_bytes()
        except (OSError, ValueError) as error:
            if isinstance(error, ModelError):
                raise
            kind = ModelFileNotFoundError if isinstance(error, FileNotFoundError) else ModelError
            raise kind(f"the model cannot be read: {error}") from error

    def _check_size(self, size: int) -> None:
        if size > self.limits.file_bytes:
            raise ModelError(f"the model has {size} bytes, {self.limits.exceeded('file_bytes')}")


def _packed_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """The bytes that the elements take in a file, where two of 4 bits share one."""
    count = math.prod(shape)
    return -(-count // 2) if dtype in (jnp.int4, jnp.uint4) else count * dtype.itemsize
