"""Saves and loads models as .npz files of NumPy arrays and JSON, without pickle.

A file has the graph with quantize and dequantize nodes, the integer weights, and the signature of the float function.
The function itself is not in the file: `load` takes the function, traces it, and compares the signatures.
"""

import contextlib
import errno
import json
import os
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._graph.floats import EXACT, FLOATS, VERSION, XLA, Floats, wrong_floats
from jaxdml._graph.graph import Graph, Node
from jaxdml._quantized.kinds import DIRECTML, QUANTIZED
from jaxdml.errors import FileError, PtqError, PtqFileError, api_boundary, check_regular, file_path, path_of
from jaxdml.ptq._choose.modes import STATIC, BlockMode, Mode
from jaxdml.ptq._grids.ranges import BLOCK_SIZES, BLOCK_WEIGHTS
from jaxdml.ptq._integers.changes import as_calibrated, check_shapes
from jaxdml.ptq._integers.operators import operator_named
from jaxdml.ptq._model import Model, check_apply
from jaxdml.ptq._trace.scans import LOOP, Body
from jaxdml.ptq._trace.traced import Traced, other_params, shapes_of

FORMAT, EARLIER = "jaxdml.ptq 7", ("jaxdml.ptq 6", "jaxdml.ptq 5", "jaxdml.ptq 4", "jaxdml.ptq 3", "jaxdml.ptq 2")
OF_EARLIER: tuple[str, int, list[str]] = (XLA, VERSION, [])  # stands for "floats" in files of format 2
TEXT, FACTOR = "model.json", "factor:"
LONG_TABLE, RUNS = 2**16, ":runs"
ENCRYPTED = 1  # the flag of an encrypted part of an archive, for which zipfile raises RuntimeError
# Exceptions of zipfile, NumPy and JSON for damaged files. zipfile raises NotImplementedError for an archive of a later
# version of the format, or with a feature that zipfile does not support.
DAMAGE = (
    AttributeError, EOFError, IndexError, KeyError, MemoryError, NotImplementedError, RecursionError, TypeError,
    ValueError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
DAMAGED = "is not a file that jaxdml.ptq.save wrote, or it is damaged"
GENERATORS = ("threefry2x32", "rbg", "unsafe_rbg")  # jnp.dtype does not know the types of their keys
PARAMS = "write load(path, apply, params); params are the float parameters, or the same pytree of jax.ShapeDtypeStruct"


@api_boundary
def save(path: str | os.PathLike[str], model: Model) -> None:
    """Writes a model to a file. An existing file is replaced only after the new file is complete.

    Args:
      path: path of the file, which usually ends in .npz.
      model: the model.

    Raises:
      PtqError: if path is not a path, or model is not a `jaxdml.ptq.Model`.
      PtqFileError: if the file cannot be written. The error also has Python's class: IsADirectoryError if path is a
        folder, FileNotFoundError if the folder of path does not exist, PermissionError if writing is not permitted.
    """
    if not isinstance(model, Model):
        raise PtqError(f"save was given {type(model).__name__}, expected a model: write save(path, model)")
    path_of("path", path, PtqError)
    graph, traced, path = model.graph, model.traced, file_path(path, PtqFileError)
    names = list(graph.constants)
    arrays = dict[str, np.ndarray]()
    for number, name in enumerate(names):
        arrays |= _stored(str(number), np.asarray(graph.constants[name]))
    arrays |= {f"{FACTOR}{name}": np.asarray(factor) for name, factor in model.factors.items()}
    text = {
        "format": FORMAT,
        "constants": [[name, str(graph.constants[name].dtype)] for name in names],
        "nodes": [_node_as_json(node) for node in graph.nodes],
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "signature": traced.signature,
        "shapes": None if model.calibrated is None else as_calibrated(traced, model.calibrated, graph).shapes(),
        "params": _skeleton(traced.params),
        "calibrated": _skeleton(model.calibrated),
        "modes": model.modes,
        "floats": [model.floats, VERSION, model.by_xla],
        "numerics": model.numerics,
    }
    arrays[TEXT] = np.frombuffer(json.dumps(text, default=int).encode(), np.uint8)
    with os_errors_as(PtqFileError, path):
        check_target(path, PtqFileError)
        with replaced(path) as file:
            np.savez(file, allow_pickle=False, **arrays)


def check_target(path: Path, kind: type[FileError]) -> None:
    """Checks that path is not a folder, and lies in one.

    Raises:
      FileError, of the given kind: if path is a folder, or its folder does not exist.
    """
    if not path.parent.is_dir():
        raise kind.of(errno.ENOENT, path.parent, f"there is no folder {path.parent} to write {path.name} to")
    if path.is_dir():
        raise kind.of(errno.EISDIR, path, f"path is a folder, expected the path of a file: {str(path)!r}")


@contextlib.contextmanager
def os_errors_as(kind: type[FileError], path: Path) -> Iterator[None]:
    """Turns errors of the operating system, which may name a temporary file, into errors of the class `kind`.

    The new errors name path.
    """
    try:
        yield
    except kind:
        raise
    except OSError as error:
        text = f"path cannot be written to: {error.strerror or error}: {str(path)!r}"
        raise kind.of(error.errno, path, text) from error


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """Opens a temporary file for writing that replaces `path` at the end, or is deleted after an exception.

    Raises:
      OSError: if path is a device, a pipe or a socket, which the file would replace.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is a device, a pipe or a socket, expected the path of a file", str(path))
    written = path.with_name(f"{uuid.uuid4().hex}.part")  # path's name may already be as long as names can be
    try:
        with open(written, "wb") as file:
            yield file
        os.replace(written, path)
    except BaseException:
        written.unlink(missing_ok=True)
        raise


@api_boundary
def load(path: str | os.PathLike[str], apply: Callable[..., Any], params: Any = None) -> Model:
    """Reads a model that `save` wrote.

    Args:
      path: path of the file.
      apply: the float function that was quantized. `load` traces it again; its equations must be the same.
      params: the float parameters, or the same pytree with jax.ShapeDtypeStruct in place of arrays; not needed
        if the pytree consists of lists, tuples, and dicts with strings as keys.

    Returns:
      The model. It computes the same bits as the saved model. There is one exception, with floats="exact": if the
      version that saved the model had no rule of `jaxdml.exact` for an operation, and this version has one, the
      operation follows this rule.

    Raises:
      PtqError: if the file cannot be read or is not a saved model, or if apply or params are not those of the model.
    """
    check_apply(apply, "the function that was quantized")
    path_of("path", path, PtqError)
    path = file_path(path, PtqFileError)
    try:
        check_regular(path, PtqFileError, f"{path} cannot be read: it is not a regular file")
        with open(path, "rb") as file, np.load(_checked(file), allow_pickle=False) as arrays:
            text = json.loads(bytes(arrays[TEXT]))
            if text["format"] not in (FORMAT, *EARLIER):
                reads = f"this version reads {EARLIER[-1]!r} to {FORMAT!r}"
                raise PtqError(f"{path} has the format {text['format']!r}, {reads}")
            floats, by_xla = _checked_floats(path, text.get("floats", OF_EARLIER))
            stored = [_restored(str(number), arrays) for number in range(len(text["constants"]))]
            constants = {
                name: array.view(jnp.dtype(dtype)).reshape(array.shape)
                for (name, dtype), array in zip(text["constants"], stored, strict=True)
            }
            factors = {name.removeprefix(FACTOR): arrays[name] for name in arrays.files if name.startswith(FACTOR)}
            nodes = tuple(map(_node_of_json, text["nodes"]))
            graph = Graph(nodes, tuple(text["inputs"]), tuple(text["outputs"]), constants)
            skeleton, calibrated, shapes = text["params"], _tree(text["calibrated"]), text["shapes"]
            structs = _tree(skeleton)
            signature, modes = tuple(text["signature"]), _checked_modes(text["modes"])
            numerics = text.get("numerics", DIRECTML)  # models of formats 2 and 3 always have DirectML's formulas
            if calibrated is not None and not isinstance(shapes, str | dict):  # a digest in formats up to 6
                raise ValueError("shapes")
            if numerics not in QUANTIZED:
                raise ValueError("numerics")
    except PtqError:
        raise
    except OSError as error:
        raise PtqFileError.of(error.errno, path, f"{path} cannot be read: {error.strerror or error}") from error
    except DAMAGE as error:
        raise PtqError(f"{path} {DAMAGED}") from error
    if params is None and skeleton is None:
        others = "nodes other than lists, tuples, and dicts with strings as keys"
        raise PtqError(f"the pytree of parameters of {path} has {others}: {PARAMS}")
    own = structs if params is None else shapes_of(params, "params")
    if skeleton is not None and jax.tree.flatten(own) != jax.tree.flatten(structs):
        raise PtqError(f"params are not those of {path}: {other_params(structs, own)}")
    traced = Traced(apply, own, signature)
    if calibrated is not None:
        check_shapes(path, shapes, as_calibrated(traced, calibrated, graph), graph)
    try:
        return Model(traced, graph, calibrated, modes, floats, numerics, factors, by_xla)
    except DAMAGE as error:
        raise PtqError(f"{path} {DAMAGED}") from error


def _checked(file: Any) -> Any:
    """The file, rewound. Compressed parts are rejected, because a small file could expand to fill the memory.

    Raises:
      ValueError: if a part is compressed or encrypted.
    """
    with zipfile.ZipFile(file) as archive:
        if any(each.compress_type != zipfile.ZIP_STORED or each.flag_bits & ENCRYPTED for each in archive.infolist()):
            raise ValueError("compressed or encrypted")
    file.seek(0)
    return file


def _checked_modes(modes: dict[str, dict[str, Any]]) -> dict[str, dict[str, Mode]]:
    """Validates the modes of contractions that a file has, and converts `BlockMode` from the lists of JSON.

    A model needs the modes for inputs whose sizes differ from those in calibration, and for ONNX files.

    Raises:
      ValueError: if something is not a mode.
    """

    def as_mode(mode: Any) -> Mode:
        if mode in (*STATIC, "dynamic", "float"):
            return str(mode)
        blocks = BlockMode(*mode)
        if blocks.dtype not in BLOCK_WEIGHTS or blocks.size not in BLOCK_SIZES:
            raise ValueError("modes")
        return blocks

    return {scan: {name: as_mode(mode) for name, mode in each.items()} for scan, each in modes.items()}


def _checked_floats(path: Any, stored: Any) -> tuple[Floats, Sequence[str]]:
    """The attribute `floats` of a model, and the names of the nodes whose floats XLA computes.

    A model uses these names if the file has no pytree of the inputs. Any other model computes the names again.

    Raises:
      PtqError: if the rules are of another version, or if XLA_FLAGS turns fast math on.
      ValueError: if floats is neither "exact" nor "xla", or the names are not a list of strings.
    """
    floats, version, by_xla = stored
    if not isinstance(by_xla, list) or not all(isinstance(name, str) for name in by_xla):
        raise ValueError("by_xla")
    if floats not in FLOATS:
        raise ValueError("floats")
    if floats == EXACT and version != VERSION:
        text = f"was saved with version {version} of the rules for exact floats, this version of jaxdml has {VERSION}"
        raise PtqError(f"{path} {text}, which give other bits: quantize the function again")
    if wrong := wrong_floats(floats):
        raise PtqError(wrong)
    return floats, by_xla


def _stored(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """An array as entries of the file: bfloat16 and int4 are stored as bits, and a long table is run-length encoded."""
    if array.dtype.kind == "V":  # .npz files do not support these types
        return {name: array.view(f"u{array.dtype.itemsize}")}
    if array.shape != (LONG_TABLE,) or array.dtype.kind not in "iu" or array.dtype.itemsize > 2:
        return {name: array}
    starts = np.flatnonzero(np.diff(array.astype(np.int32), prepend=np.int32(-(2**16))))
    return {name: array[starts], f"{name}{RUNS}": np.diff(starts, append=array.size)}


def _restored(name: str, arrays: Any) -> np.ndarray:
    """The array that `_stored` encoded."""
    if f"{name}{RUNS}" not in arrays:
        return np.asarray(arrays[name])
    runs = arrays[f"{name}{RUNS}"]
    if runs.sum() != LONG_TABLE or (runs < 1).any():
        raise ValueError("runs")
    return np.repeat(arrays[name], runs)


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
    operator = operator_named(name, kind, is_equation="equation" in options)
    if body is not None:
        operator, (nodes, *fields) = LOOP, body
        options["body"] = Body(tuple(map(_node_of_json, nodes)), *map(_tuples, fields))
    return Node(operator, tuple(inputs), tuple(outputs), options, *map(_tuples, words))


def _tuples(value: Any) -> Any:
    """A JSON value with its lists converted to tuples."""
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    return {key: _tuples(each) for key, each in value.items()} if isinstance(value, dict) else value


# Pytrees of shapes ---------------------------------------------------------------------------------------------------


def _skeleton(tree: Any) -> Any:
    """A pytree of shapes and types as JSON; None if it has other nodes than `_written` takes."""
    try:
        return _written(tree)
    except TypeError:
        return None


def _written(tree: Any) -> Any:
    """A pytree of lists, tuples and dicts with strings as keys, as JSON.

    Raises:
      TypeError: if the pytree has other nodes, or random keys for a generator that is not JAX's own.
    """
    if isinstance(tree, jax.ShapeDtypeStruct):
        _type_named(str(tree.dtype))
        return {"shape": [int(size) for size in tree.shape], "dtype": str(tree.dtype), "weak": tree.weak_type}
    if tree is None:
        return {"none": None}
    if type(tree) is dict and all(isinstance(key, str) for key in tree):
        return {"dict": {key: _written(each) for key, each in tree.items()}}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [_written(each) for each in tree]}
    raise TypeError(type(tree).__name__)


def _tree(written: Any) -> Any:
    """The pytree that `_written` encoded."""
    if written is None:
        return None
    if "shape" in written:
        return jax.ShapeDtypeStruct(tuple(written["shape"]), _type_named(written["dtype"]), weak_type=written["weak"])
    ((kind, parts),) = written.items()
    if kind == "none":
        return None
    if kind == "dict":
        return {key: _tree(each) for key, each in parts.items()}
    return {"list": list, "tuple": tuple}[kind](map(_tree, parts))


def _type_named(name: str) -> Any:
    """The type whose name, as text, is `name`.

    Raises:
      TypeError: if there is none.
    """
    if not name.startswith("key<"):
        return jnp.dtype(name)
    keys = (jax.eval_shape(partial(jax.random.key, impl=impl), 0).dtype for impl in GENERATORS)
    found = [key for key in keys if str(key) == name]
    if not found:
        raise TypeError(name)
    return found[0]
