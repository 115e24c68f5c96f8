"""Compares a model with onnxruntime: the outputs, and the first intermediate value that differs."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx

from jaxdml.errors import ModelError
from jaxdml.onnx._model import Model
from jaxdml.onnx._tensors import Tensor

INT8 = "session.qdqisint8allowed"
SEVERAL = 8


def compare(path: Path, model: Model, inputs: dict[str, Any] | None) -> int:
    """Prints how many elements of each output differ from onnxruntime's; returns 1 if any differ, else 0.

    If any differ, this function also prints the first intermediate value that differs. It counts the differing elements
    again with onnxruntime's option for integer int8 kernels, and prints the new count if that is smaller.

    Args:
      path: the model's file.
      model: the loaded model.
      inputs: the inputs, keyed by name; None for random inputs.

    Raises:
      ModelError: if onnxruntime is not installed, or refuses the model.
    """
    if inputs is None:
        inputs = random_inputs(model.inputs)
        shown = ", ".join(f"{name}: {value.dtype}{list(value.shape)}" for name, value in inputs.items())
        print(f"on random inputs, {shown}; use --run for your own inputs")
    names = [output.name for output in model.outputs]
    expected = _onnxruntime(path, inputs, names)
    received = {name: np.asarray(value) for name, value in model.apply(model.params, **inputs).items()}
    for name, value in expected.items():
        text = f"{_count(received[name], value):,} of {value.size:,} elements differ from onnxruntime's"
        print(f"{name}: {text}{_largest(received[name], value)}")
    count = _total(received, expected)
    if not count:
        return 0
    remaining = _total(received, _onnxruntime(path, inputs, names, with_int8=True))
    if remaining < count:
        text = f"{remaining:,} elements differ with {INT8}=1 in its options"
        print(f"onnxruntime computes int8 partly in floats; {text}")
    print(first_difference(path, model, inputs))
    return 1


def _total(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> int:
    """The number of differing elements in all outputs."""
    return sum(_count(ours[name], value) for name, value in theirs.items())


def first_difference(path: Path, model: Model, inputs: dict[str, Any]) -> str:
    """A sentence about the first intermediate value that differs from onnxruntime's.

    onnxruntime runs with its default optimizations. Values inside fused operators are not compared.
    """
    names = [name for name in model.value_names if name not in {tensor.name for tensor in model.inputs}]
    theirs = _onnxruntime(path, inputs, names)
    ours = model.values(model.params, [name for name in names if name in theirs], **inputs)
    for name, node in model.makers():
        count = _count(np.asarray(ours[name]), theirs[name]) if name in theirs else 0
        if count:
            text = f"{count:,} of {theirs[name].size:,} elements{_largest(ours[name], theirs[name])}"
            return f"the first value that differs is {name!r}, which {node} computes: {text}"
    return "no intermediate value differs: the difference arises inside operators that onnxruntime or jaxdml fuses"


def random_inputs(tensors: tuple[Tensor, ...]) -> dict[str, np.ndarray]:
    """Reproducible inputs: normally distributed floats, 8-bit integers of the full range, 0 or 1 for all other types.

    A symbolic first dimension becomes `SEVERAL`, any other symbolic dimension 1.
    """
    rng, inputs, sizes = np.random.default_rng(0), {}, dict[str, int]()
    for tensor in tensors:
        if tensor.shape is None or tensor.dtype is None:  # inputs have types, outputs may lack them
            raise ModelError(f"input {tensor} has no fixed rank; give the inputs with --run")
        shape = []
        for axis, size in enumerate(tensor.shape):
            chosen = SEVERAL if axis == 0 else 1
            shape.append(size if isinstance(size, int) else sizes.setdefault(size, chosen) if size else chosen)
        inputs[tensor.name] = _random(rng, shape, tensor.dtype)
    return inputs


def _random(rng: np.random.Generator, shape: list[int], dtype: np.dtype[Any]) -> np.ndarray:
    if dtype in (np.int8, np.uint8):
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return (rng.integers(0, 2, shape) if dtype.kind in "iub" else rng.standard_normal(shape)).astype(dtype)


def _onnxruntime(
    path: Path, inputs: dict[str, Any], names: list[str], *, with_int8: bool = False
) -> dict[str, np.ndarray]:
    """onnxruntime's outputs and intermediate values, keyed by name; names that are not in the file are left out."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelError("--compare needs the package onnxruntime: pip install onnxruntime") from error
    proto = onnx.load(str(path))
    computed = {name for node in proto.graph.node for name in node.output}
    declared = {value.name for value in proto.graph.output}
    names = [name for name in names if name in computed | declared]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in declared)
    try:
        options = onnxruntime.SessionOptions()
        if with_int8:
            options.add_session_config_entry(INT8, "1")
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        values = session.run(names, {name: np.asarray(value) for name, value in inputs.items()})
    except Exception as error:  # onnxruntime's exceptions have no common class
        raise ModelError(f"onnxruntime does not run the model: {error}") from error
    return dict(zip(names, values, strict=True))


def _count(ours: np.ndarray, theirs: np.ndarray) -> int:
    """The number of differing elements; NaN equals NaN."""
    if ours.shape != theirs.shape:
        return max(ours.size, theirs.size)
    return int(np.count_nonzero((ours != theirs) & ~((ours != ours) & (theirs != theirs))))


def _largest(ours: Any, theirs: np.ndarray) -> str:
    """The largest difference, as the end of a sentence; empty if there is none, or if the shapes differ."""
    if np.shape(ours) != theirs.shape or not _count(np.asarray(ours), theirs):
        return ""
    return f", by at most {np.abs(np.asarray(ours).astype(np.float64) - theirs.astype(np.float64)).max():.3g}"
