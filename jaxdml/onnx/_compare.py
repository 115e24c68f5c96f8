"""A model beside onnxruntime: which outputs differ, and the first value inside that does."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx

from jaxdml.errors import ModelError
from jaxdml.onnx._model import Model
from jaxdml.onnx._tensors import Tensor

INT8 = "session.qdqisint8allowed"
SEVERAL = 8


def compared(path: Path, model: Model, inputs: dict[str, Any] | None) -> int:
    """Prints how many elements of each output differ from onnxruntime's; returns 1 if any does.

    Where an output differs, onnxruntime runs again without floats in place of int8, and the values inside the model are
    compared in order: the first that differs is printed.

    Args:
      path: the model's file.
      model: the model loaded.
      inputs: by name; None: random ones.

    Raises:
      ModelError: if onnxruntime is not installed, or refuses the model.
    """
    if inputs is None:
        inputs = random_inputs(model.inputs)
        made = ", ".join(f"{name}: {value.dtype}{list(value.shape)}" for name, value in inputs.items())
        print(f"on random inputs, {made}; --run gives others")
    names = [output.name for output in model.outputs]
    expected = _onnxruntime(path, inputs, names)
    received = {name: np.asarray(value) for name, value in model.apply(model.params, **inputs).items()}
    for name, value in expected.items():
        text = f"{_count(received[name], value):,} of {value.size:,} elements differ from onnxruntime's"
        print(f"{name}: {text}{_far(received[name], value)}")
    differ = _differ(received, expected)
    if not differ:
        return 0
    left = _differ(received, _onnxruntime(path, inputs, names, with_int8=True))
    if left < differ:
        print(f"onnxruntime computes int8 partly in floats; with {INT8}=1 in its options {left:,} elements differ")
    print(first_difference(path, model, inputs))
    return 1


def _differ(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> int:
    """How many elements of all outputs differ."""
    return sum(_count(ours[name], value) for name, value in theirs.items())


def first_difference(path: Path, model: Model, inputs: dict[str, Any]) -> str:
    """A sentence that names the first value inside the model that differs from onnxruntime's.

    onnxruntime optimizes the graph, as its users have it. Of a fused group only the result is compared.
    """
    names = [name for name in model.value_names if name not in {tensor.name for tensor in model.inputs}]
    theirs = _onnxruntime(path, inputs, names)
    ours = model.values(model.params, [name for name in names if name in theirs], **inputs)
    for name, node in model.makers():
        count = _count(np.asarray(ours[name]), theirs[name]) if name in theirs else 0
        if count:
            far = _far(ours[name], theirs[name])
            return f"values part at {name!r}, which {node} makes: {count:,} of {theirs[name].size:,} elements{far}"
    return "no value inside the model differs: what differs lies in operators that onnxruntime or jaxdml fuses"


def random_inputs(tensors: tuple[Tensor, ...]) -> dict[str, np.ndarray]:
    """Inputs for a model, the same each time: normal floats, all integers of 8 bits, 0 and 1 of the other types.

    Where the first size is open there are several; other open sizes are 1.
    """
    rng, made, sizes = np.random.default_rng(0), {}, dict[str, int]()
    for tensor in tensors:
        if tensor.shape is None:
            raise ModelError(f"input {tensor} has an open rank; give inputs by --run")
        shape = []
        for axis, size in enumerate(tensor.shape):
            several = SEVERAL if axis == 0 else 1
            shape.append(size if isinstance(size, int) else sizes.setdefault(size, several) if size else several)
        made[tensor.name] = _random(rng, shape, tensor.dtype)
    return made


def _random(rng: np.random.Generator, shape: list[int], dtype: np.dtype[Any]) -> np.ndarray:
    if dtype in (np.int8, np.uint8):
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return (rng.integers(0, 2, shape) if dtype.kind in "iub" else rng.standard_normal(shape)).astype(dtype)


def _onnxruntime(
    path: Path, inputs: dict[str, Any], names: list[str], *, with_int8: bool = False
) -> dict[str, np.ndarray]:
    """Values of the model by name, those that are inside it among them, as far as it has them."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelError("--compare needs the package onnxruntime: pip install onnxruntime") from error
    proto = onnx.load(str(path))
    made = {name for node in proto.graph.node for name in node.output}
    declared = {value.name for value in proto.graph.output}
    names = [name for name in names if name in made | declared]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in declared)
    try:
        options = onnxruntime.SessionOptions()
        if with_int8:
            options.add_session_config_entry(INT8, "1")
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        found = session.run(names, {name: np.asarray(value) for name, value in inputs.items()})
    except Exception as error:  # onnxruntime has its own exceptions, of no common class
        raise ModelError(f"onnxruntime does not run the model: {error}") from error
    return dict(zip(names, found, strict=True))


def _count(ours: np.ndarray, theirs: np.ndarray) -> int:
    """How many elements differ; NaN equals NaN."""
    if ours.shape != theirs.shape:
        return max(ours.size, theirs.size)
    return int(np.count_nonzero((ours != theirs) & ~((ours != ours) & (theirs != theirs))))


def _far(ours: Any, theirs: np.ndarray) -> str:
    """By how much they differ at most."""
    if np.shape(ours) != theirs.shape or not _count(np.asarray(ours), theirs):
        return ""
    return f", by at most {np.abs(np.asarray(ours).astype(np.float64) - theirs.astype(np.float64)).max():.3g}"
