"""A benchmark case: how jaxdml and its peers compute it, and the result that NumPy computes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

import jaxdml as dml

Run = Callable[[], Any]
Form = tuple[Callable[..., Any], tuple[Any, ...]]
PREPARED, PLAIN, XLA = "jaxdml, prepared weights", "jaxdml", "jaxdml, XLA's kernels"
ONNX = "jaxdml.onnx"  # from the model that onnxruntime runs
OURS = (PREPARED, PLAIN, XLA, ONNX)
ORT, ORT_U8 = "onnxruntime", "onnxruntime, uint8 weights"
AQT = "AQT"
LOOP = "a loop"
TWIN, COPY = "its quantized twin", "bytes to float32"  # a call of jaxdml, and one of JAX


@dataclass
class Case:
    """One row of the benchmark.

    `jitted` holds functions to be compiled, with their arguments; `calls` holds functions that need no compiling.
    `at_most` limits the ratio of jaxdml's time to that of `rival`.
    """

    family: str
    name: str
    expected: Callable[[], np.ndarray]
    jitted: dict[str, Form]
    calls: dict[str, Run] = field(default_factory=dict)
    at_most: float | None = None
    multiply_adds: int = 0

    @property
    def first(self) -> str:
        """The form of jaxdml that is compared with others."""
        return PREPARED if PREPARED in {*self.calls, *self.jitted} else PLAIN

    @property
    def rival(self) -> str | None:
        """The peer that `at_most` refers to: jaxdml or JAX, or onnxruntime, if possible with uint8 weights."""
        peers = {**self.calls, **self.jitted}
        return next((name for name in (TWIN, COPY, ORT_U8, ORT, LOOP) if name in peers), None)


def ours(
    function: Callable[..., Any], plain: tuple[Any, ...] | None = None, prepared: Callable[[], Any] | None = None
) -> dict[str, Form]:
    """jaxdml's forms: with prepared weights, with plain ones, and, if kernels are native, also on XLA's kernels."""
    forms: dict[str, Form] = {}
    if prepared is not None:
        forms[PREPARED] = function, prepared()
    if plain is not None:
        forms[PLAIN] = function, plain
    if dml.kernels().startswith("native"):
        with dml.use_kernels("xla"):
            forms[XLA] = function, plain if prepared is None else prepared()
    return forms


def data(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def on_device(*arrays: np.ndarray) -> tuple[jax.Array, ...]:
    return tuple(jax.numpy.asarray(x) for x in arrays)
