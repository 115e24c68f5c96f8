"""What a model computes, within limits."""

from typing import Any

import numpy as np

from jaxdml._graph.evaluate import described
from jaxdml._graph.graph import Node
from jaxdml.errors import ModelError
from jaxdml.onnx._file import Limits, Reader


class Limit:
    """Refuses results that are larger than the limit of the reader, and work that takes longer."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._arrays: dict[int, np.ndarray] = {}  # by id, those that own memory
        self._total = 0

    def __call__(self, node: Node, value: Any) -> None:
        """Raises ModelError where a node's result is beyond the limits."""
        self._reader.check_time()
        check_result(node, value, self._reader.limits)
        while isinstance(value, np.ndarray) and isinstance(value.base, np.ndarray):
            value = value.base
        if isinstance(value, np.ndarray) and id(value) not in self._arrays:
            self._arrays[id(value)] = value
            self._total += value.nbytes
        if self._total > self._reader.limits.file_bytes:
            text = f"{self._total} bytes are computed from constants, {self._reader.limits.exceeded('file_bytes')}"
            raise ModelError(f"{described(node)}: {text}")


def check_result(node: Node, value: Any, limits: Limits) -> None:
    """Raises ModelError where a node's result has too many bytes."""
    sizes = [size for size in np.shape(value) if isinstance(size, int)]
    size = np.prod(sizes, dtype=object) * np.dtype(value.dtype).itemsize
    if size > limits.tensor_bytes:
        raise ModelError(f"{described(node)}: its result has {size} bytes, {limits.exceeded('tensor_bytes')}")
