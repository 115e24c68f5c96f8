"""The inputs on which a model is compared."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._arithmetic.rounding import limits_of
from jaxdml._graph.parameters import difference
from jaxdml.errors import ModelError
from jaxdml.onnx._model import Model

SEVERAL = 8


def named(inputs: Any, model: Model) -> tuple[dict[str, Any], list[str]]:
    """The inputs keyed by name, in the order of the file, and notes on them.

    Raises:
      ModelError: if an input is missing or unknown, or has the wrong type or shape.
    """
    tensors, names = model.inputs, [tensor.name for tensor in model.inputs]
    if inputs is None:
        given = random_inputs(model)
        shown = ", ".join(f"{name}: {value.dtype}{list(value.shape)}" for name, value in given.items())
        return given, [f"on random inputs, {shown}"]
    if not isinstance(inputs, Mapping):
        leaves = jax.tree.leaves(inputs)
        if len(leaves) != len(names):
            raise ModelError(f"inputs has {len(leaves)} arrays, the file {len(names)} inputs: {names}")
        inputs = dict(zip(names, leaves, strict=True))
    if wrong := difference("inputs", names, inputs):
        raise ModelError(f"{wrong}; its inputs are {', '.join(map(str, tensors))}")
    sizes = dict[str, Any]()
    return {tensor.name: tensor.validated(inputs[tensor.name], sizes) for tensor in tensors}, []


def random_inputs(model: Model) -> dict[str, np.ndarray]:
    """Reproducible inputs: the full range for integers of up to 8 bits, 0 or 1 for wider ones and bool, normally
    distributed floats.

    A symbolic first dimension becomes `SEVERAL`, and any other symbolic dimension becomes 1.
    """
    rng, inputs, sizes = np.random.default_rng(0), {}, dict[str, int]()
    for tensor in model.inputs:
        if tensor.shape is None or tensor.dtype is None:  # only an output may have no type
            raise ModelError(f"input {tensor} has no fixed rank; give the inputs")
        shape = []
        for axis, size in enumerate(tensor.shape):
            chosen = SEVERAL if axis == 0 else 1
            shape.append(size if isinstance(size, int) else sizes.setdefault(size, chosen) if size else chosen)
        inputs[tensor.name] = _random(rng, shape, tensor.dtype)
    return inputs


def _random(rng: np.random.Generator, shape: list[int], dtype: np.dtype[Any]) -> np.ndarray:
    if not jnp.issubdtype(dtype, jnp.integer):
        return (rng.integers(0, 2, shape) if dtype.kind == "b" else rng.standard_normal(shape)).astype(dtype)
    limits = limits_of(dtype)
    low, high = (limits.min, limits.max) if limits.bits <= 8 else (0, 1)
    return rng.integers(low, high, shape, endpoint=True).astype(dtype)
