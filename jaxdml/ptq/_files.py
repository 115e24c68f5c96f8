"""Models in files: arrays of NumPy and JSON in one .npz, and no pickle.

A file holds the graph with quantize and dequantize nodes, integers in place of weights, and the equations of the float
function as text. The function itself is not in it: `load` is given the function, traces it, and compares.
"""

import json
import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._graph.graph import Graph, Node
from jaxdml.errors import PtqError
from jaxdml.ptq._loops import LAYERS, Body
from jaxdml.ptq._model import Model
from jaxdml.ptq._operators import OPERATORS, equation
from jaxdml.ptq._traced import Traced

FORMAT = "jaxdml.ptq 1"
TEXT = "model.json"
PARAMS = "write load(path, apply, params), with the float parameters or jax.ShapeDtypeStruct in their place"


def save(path: str | os.PathLike[str], model: Model) -> None:
    """Writes a model to a file; one of this name is replaced once the new one is complete.

    Args:
      path: of the file; by custom it ends in .npz.
      model: the model.

    Raises:
      PtqError: if model is none of jaxdml.ptq.
      OSError: if the file cannot be written.
    """
    if not isinstance(model, Model):
        raise PtqError(f"save was given {type(model).__name__}, expected a model that jaxdml.ptq.quantize made")
    graph, traced, path = model.graph, model.traced, Path(path)
    names = list(graph.constants)
    arrays = {f"{number}": _plain(np.asarray(graph.constants[name])) for number, name in enumerate(names)}
    text = {
        "format": FORMAT,
        "constants": [[name, str(graph.constants[name].dtype)] for name in names],
        "nodes": [_node_as_json(node) for node in graph.nodes],
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "signature": traced.signature,
        "params": _skeleton(traced.params),
        "calibrated": _skeleton(model.calibrated),
    }
    arrays[TEXT] = np.frombuffer(json.dumps(text, default=int).encode(), np.uint8)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} to")
    handle, written = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        os.replace(written, path)
    except BaseException:
        os.unlink(written)
        raise


def load(path: str | os.PathLike[str], apply: Callable[..., Any], params: Any = None) -> Model:
    """Reads a model that `save` wrote.

    Args:
      path: of the file.
      apply: the float function that was quantized. It is traced again, and its equations must be the same.
      params: the float parameters, or a pytree of jax.ShapeDtypeStruct like them; needed where they are held by other
        than dicts, lists and tuples.

    Returns:
      The model, with the bits that it was saved with.

    Raises:
      PtqError: if the file is no such model, or apply or params are others.
      OSError: if the file cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            text = json.loads(bytes(arrays[TEXT]))
            if text["format"] != FORMAT:
                raise PtqError(f"{path} has the format {text['format']!r}, this version reads {FORMAT!r}")
            stored = [arrays[f"{number}"] for number in range(len(text["constants"]))]
            constants = {
                name: array.view(jnp.dtype(dtype)).reshape(array.shape)
                for (name, dtype), array in zip(text["constants"], stored, strict=True)
            }
            nodes = tuple(map(_node_of_json, text["nodes"]))
            graph = Graph(nodes, tuple(text["inputs"]), tuple(text["outputs"]), constants)
            structs, calibrated = _tree(text["params"]), _tree(text["calibrated"])
            signature = tuple(text["signature"])
    except (KeyError, ValueError, TypeError, zipfile.BadZipFile, EOFError) as error:
        if isinstance(error, PtqError):
            raise
        raise PtqError(f"{path} is no file that jaxdml.ptq.save wrote, or it is damaged") from error
    if params is None and structs is None:
        raise PtqError(f"the parameters of {path} are held by other than dicts, lists and tuples: {PARAMS}")
    traced = Traced(apply, structs if params is None else params, signature)
    if calibrated is not None:
        traced.program(calibrated)
    return Model(traced, graph, calibrated)


def _plain(array: np.ndarray) -> np.ndarray:
    """The array in a type that NumPy's files know; bfloat16 as its bits."""
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array


def _node_as_json(node: Node) -> list[Any]:
    options = dict(node.options)
    if "body" in options:
        body = options["body"]
        nodes = [_node_as_json(each) for each in body.nodes]
        options["body"] = [nodes, body.inputs, body.outputs, body.stacked, body.data]
    return [node.operator.name, node.operator.kind, node.inputs, node.outputs, options, *_words(node)]


def _words(node: Node) -> tuple[Any, ...]:
    return node.name, node.source, node.remark


def _node_of_json(stored: list[Any]) -> Node:
    name, kind, inputs, outputs, options, *words = stored
    body = options.pop("body", None)
    options = _tuples(options)
    operator = equation(name, kind) if "equation" in options else OPERATORS[name]
    if body is not None:
        operator, (nodes, *fields) = LAYERS, body
        options["body"] = Body(tuple(map(_node_of_json, nodes)), *map(_tuples, fields))
    return Node(operator, tuple(inputs), tuple(outputs), options, *map(_tuples, words))


def _tuples(value: Any) -> Any:
    """JSON with tuples in place of lists."""
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    return {key: _tuples(each) for key, each in value.items()} if isinstance(value, dict) else value


# Pytrees of shapes ---------------------------------------------------------------------------------------------------


def _skeleton(tree: Any) -> Any:
    """A pytree of dicts, lists and tuples with shapes and types; None if it holds other nodes."""
    try:
        return _written(tree)
    except TypeError:
        return None


def _written(tree: Any) -> Any:
    if isinstance(tree, jax.ShapeDtypeStruct):
        return {"shape": [int(size) for size in tree.shape], "dtype": str(tree.dtype)}
    if tree is None:
        return {"none": None}
    if type(tree) is dict and all(isinstance(key, str) for key in tree):
        return {"dict": {key: _written(each) for key, each in tree.items()}}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [_written(each) for each in tree]}
    raise TypeError(type(tree).__name__)


def _tree(written: Any) -> Any:
    """The pytree that `_written` wrote."""
    if written is None:
        return None
    if "shape" in written:
        return jax.ShapeDtypeStruct(tuple(written["shape"]), jnp.dtype(written["dtype"]))
    ((kind, parts),) = written.items()
    if kind == "none":
        return None
    if kind == "dict":
        return {key: _tree(each) for key, each in parts.items()}
    return {"list": list, "tuple": tuple}[kind](map(_tree, parts))
