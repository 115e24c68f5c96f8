"""Limits on the size and the loading time of a model, and the checks that enforce them."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from jaxdml._graph.evaluate import described
from jaxdml._graph.graph import Node
from jaxdml.errors import ArgumentTypeError, DescError, ModelError, api_class

MOST_WALL_CLOCK = 10  # seconds that may pass for each second of `Limits.seconds`


@api_class
@dataclass(frozen=True)
class Limits:
    """Limits on the size and the loading time of a model, so that loading a hostile file raises an error.

    Attributes:
      file_bytes: the size of the file. The same limit applies to the total size of all values computed from constants.
      tensor_bytes: the size of each tensor, in the file or while the model runs. A linear Resize of a constant needs
        several arrays of its result's size at once, which count together.
      nodes: the number of nodes.
      seconds: the time to load the model: wall-clock time while it is read, then CPU time of the loading thread, which
        folds constants and repacks weights. CPU time excludes other programs, so a busy machine loads the same models
        as an idle one. It also excludes other threads, such as XLA's, so the wall-clock time of the whole load is
        limited to ten times `seconds`.
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
                raise ArgumentTypeError(f"{field.name} is {value!r}, expected {expected}")
            if not value >= 0:
                raise DescError(f"{field.name} is {value!r}, expected at least 0")

    def exceeded(self, field: str) -> str:
        """The end of an error text: the limit, and how to set a higher one."""
        return f"more than the limit of {getattr(self, field)}; for a file you trust, set Limits({field}=...)"


class Budget:
    """The time and the memory that one call of `load` may still use.

    Attributes:
      limits: the limits to enforce.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._start = time.monotonic()
        self._spent: Callable[[], float] = time.monotonic
        self._buffers: dict[int, np.ndarray] = {}  # counted arrays, keyed by id; ids of live arrays are unique
        self._folded_bytes = 0

    def count_computing(self) -> None:
        """From now on, counts this thread's CPU time instead of wall-clock time."""
        before = time.monotonic() - time.thread_time()
        self._spent = lambda: before + time.thread_time()

    def check_time(self) -> None:
        """Raises ModelError if the time is up."""
        most = self.limits.seconds
        if self._spent() - self._start > most or time.monotonic() - self._start > MOST_WALL_CLOCK * most:
            raise ModelError(f"loading the model takes too long: {self.limits.exceeded('seconds')}")

    def check_result(self, node: Node, value: Any) -> None:
        """Counts the memory of a folded result; raises ModelError if a limit is exceeded."""
        self.check_time()
        check_result(node, value)
        while isinstance(value, np.ndarray) and isinstance(value.base, np.ndarray):
            value = value.base
        if isinstance(value, np.ndarray) and id(value) not in self._buffers:
            self._buffers[id(value)] = value
            self._folded_bytes += value.nbytes
        if self._folded_bytes > self.limits.file_bytes:
            text = f"{self._folded_bytes} bytes are computed from constants, {self.limits.exceeded('file_bytes')}"
            raise ModelError(f"{described(node)}: {text}")


_LIMITS: ContextVar[Limits] = ContextVar("limits", default=Limits())  # noqa: B039 # it is frozen


@contextmanager
def limited_by(limits: Limits) -> Iterator[None]:
    """Sets the limits that `check_size` and `check_result` enforce."""
    token = _LIMITS.set(limits)
    try:
        yield
    finally:
        _LIMITS.reset(token)


def check_size(shape: tuple[Any, ...], dtype: Any, count: int = 1) -> None:
    """Checks a result before it is computed, because a tiny file may describe a tensor larger than the memory.

    Args:
      shape: the shape of the result.
      dtype: its type.
      count: how many arrays of this size are in memory at once while the result is computed.

    Raises:
      ModelError: if the shape has a negative dimension, or the arrays would exceed `Limits.tensor_bytes`.
    """
    sizes = [size for size in shape if isinstance(size, int)]  # all other dimensions are symbolic
    if any(size < 0 for size in sizes):
        raise ModelError(f"shape {shape} has a negative dimension")
    size, limits = math.prod(sizes) * np.dtype(dtype).itemsize * count, _LIMITS.get()
    if size > limits.tensor_bytes:
        what = (
            f"its result of shape {shape} has" if count == 1 else f"{count} arrays of its result's shape {shape} have"
        )
        raise ModelError(f"{what} {size} bytes, {limits.exceeded('tensor_bytes')}")


def check_result(node: Node, value: Any) -> None:
    """`check_size` for the result of a node; the error names the node."""
    try:
        check_size(np.shape(value), value.dtype)
    except ModelError as error:
        raise ModelError(f"{described(node)}: {error}") from error
