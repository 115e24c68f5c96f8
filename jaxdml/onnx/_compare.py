"""A model beside onnxruntime: which outputs differ, and the first value inside that does."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx

from jaxdml.errors import ModelError
from jaxdml.onnx._model import Model
from jaxdml.onnx._tensors import Tensor


def compared(path: Path, model: Model, inputs: dict[str, Any] | None) -> int:
    """Prints how many elements of each output differ from onnxruntime's; returns 1 if any does.

    Where an output differs, the values inside the model are compared in order, and the first that differs is printed.

    Args:
      path: the model's file.
      model: the model loaded.
      inputs: by name; None: random ones.

    Raises:
      ModelError: if onnxruntime is not installed, or refuses the model.
    """
    inputs = random_inputs(model.inputs) if inputs is None else inputs
    expected = _onnxruntime(path, inputs, [output.name for output in model.outputs])
    received = model.apply(model.params, **inputs)
    differ = {name: _count(np.asarray(received[name]), value) for name, value in expected.items()}
    for name, value in expected.items():
        far = _far(received[name], value)
        print(f"{name}: {differ[name]:,} of {value.size:,} elements differ from onnxruntime's{far}")
    if not any(differ.values()):
        return 0
    print(first_difference(path, model, inputs))
    return 1


def first_difference(path: Path, model: Model, inputs: dict[str, Any]) -> str:
    """A sentence that names the first value inside the model that differs from onnxruntime's.

    onnxruntime optimizes the graph, as its users have it. Of a fused group only the result is compared.
    """
    names = [name for name in model.value_names if name not in {tensor.name for tensor in model.inputs}]
    theirs = _onnxruntime(path, inputs, names)
    ours = model.values(model.params, names=[name for name in names if name in theirs], **inputs)
    for name, node in model.makers():
        count = _count(np.asarray(ours[name]), theirs[name]) if name in theirs else 0
        if count:
            far = _far(ours[name], theirs[name])
            return f"values part at {name!r}, which {node} makes: {count:,} of {theirs[name].size:,} elements{far}"
    return "no value inside the model differs: what differs lies in operators that onnxruntime or jaxdml fuses"


def random_inputs(tensors: tuple[Tensor, ...]) -> dict[str, np.ndarray]:
    """Inputs for a model, the same each time: normal floats, small integers; open sizes are 1."""
    rng, made = np.random.default_rng(0), {}
    for tensor in tensors:
        if tensor.shape is None:
            raise ModelError(f"input {tensor} has an open rank; give inputs by --run")
        shape = [size if isinstance(size, int) else 1 for size in tensor.shape]
        is_float = tensor.dtype.kind not in "iub"
        values = rng.standard_normal(shape) if is_float else rng.integers(0, 2, shape)
        made[tensor.name] = values.astype(tensor.dtype)
    return made


def _onnxruntime(path: Path, inputs: dict[str, Any], names: list[str]) -> dict[str, np.ndarray]:
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
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
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
