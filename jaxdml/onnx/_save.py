"""Writes a quantized function as an ONNX file."""

import errno
import hashlib
import inspect
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np
import onnx
from jax import export
from onnx import TensorProto, helper, numpy_helper

import jaxdml
from jaxdml._graph.grids import NIBBLES
from jaxdml.errors import (
    ArgumentTypeError,
    DescError,
    ModelError,
    ModelFileError,
    PtqError,
    api_boundary,
    file_path,
    path_of,
)
from jaxdml.onnx._table import MICROSOFT
from jaxdml.onnx._write.dimensions import is_known
from jaxdml.onnx._write.graph import graph_of
from jaxdml.onnx._write.names import input_names, output_names
from jaxdml.onnx._write.writer import QDQ, QOPERATOR, Options
from jaxdml.ptq import Model
from jaxdml.ptq._choose.modes import STATIC16, BlockMode
from jaxdml.ptq._files import check_target, os_errors_as, replaced

FIRST, LAST = 17, 21  # opsets
WITH_GELU = 20  # the first opset in which Gelu is an operator
WITH_BLOCKS = 21  # the first opset in which DequantizeLinear takes blocks and integers of 4 and 16 bits
IR_VERSIONS = {17: 8, 18: 8, 19: 9, 20: 9, 21: 10}
LARGEST = 2**31 - 2**20  # the maximum size of a file in bytes; protobuf's limit is 2 GiB
INLINE = 1024  # tensors of fewer bytes stay in the model's file
ALIGNMENT = 4096  # of tensors in a second file, so that they can be memory-mapped
DIGITS = 16  # of the digest in the name of a second file
BATCH = "batch"
CHOICES = {"form": (QDQ, QOPERATOR), "tables": ("float", "gather"), "weights": ("int8", "uint8")}


@api_boundary
def save(
    model: Model, path: str | os.PathLike[str], form: str = QDQ, *, tables: str = "float", weights: str = "int8",
    shapes: Any = BATCH, opset: int | None = None,
) -> None:  # fmt: skip
    """Writes a model from `jaxdml.ptq.quantize` to an ONNX file.

    Inputs and outputs are named after the function's parameters and the keys of its pytrees, and nodes after its
    layers. Scans are unrolled. An existing file is replaced only once the new file is complete; its permissions are
    kept, and a symbolic link is followed. The weights of a model larger than 2 GiB are written to a second file next to
    the first, ``<name>.<digest of the weights>.data``. Second files of the replaced model are deleted at the end.

    Args:
      model: the model.
      path: path of the file, which usually ends in .onnx.
      form: "qdq": float operators between DequantizeLinear and QuantizeLinear, which all tools read. "qoperator":
        operators such as QLinearConv, which compute on integers wherever they run.
      tables: "float": a function from integers to integers is written as float operators. "gather": as an exact look-up
        table.
      weights: "int8", or "uint8" with the zero point 128, for which onnxruntime's sums are exact on every processor.
      shapes: the sizes of the inputs. "batch": the sizes of the first calibration batch, where a symbolic batch size
        replaces the first size of the first array, and the first size of every other array that has the same first
        size. None: the sizes of the first calibration batch. Or a pytree of strings that is a prefix of the tuple of
        inputs. A string such as ``"batch, 3, height, width"`` or ``"1, ..."`` lists numbers and names; ``...`` at its
        end stands for the remaining sizes of the calibration.
      opset: the opset of the file, 17 to 21. None: 21 for weights in blocks and for layers with 16-bit inputs,
        otherwise 17. If 20 or 21 is given, gelu is written as the operator Gelu, which onnxruntime's DirectML provider
        does not have; otherwise gelu is written as several operators.

    Raises:
      DescError: if an argument is wrong; its subclass ArgumentTypeError if the argument's type is wrong.
      ModelError: if nodes have no counterpart in ONNX, or if `model.params` were replaced. The error lists all nodes
        without a counterpart, with remedies.
      PtqError: if the function has changed since it was quantized, or cannot be traced for these sizes.
      ModelFileError: if the file cannot be written. The error also has Python's class: IsADirectoryError if path is a
        folder, FileNotFoundError if the folder of path does not exist, PermissionError if writing is not permitted.

    Source: https://onnx.ai/onnx/operators and
    https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
    """
    _check(model, path, {"form": form, "tables": tables, "weights": weights}, opset)
    with os_errors_as(ModelFileError, Path(path)):
        target = _target(Path(path))
    options = Options(
        form=form, tables=tables, weights=weights, opset=_opset(model, opset), numerics=model.numerics,
        has_gelu=opset is not None and opset >= WITH_GELU,
    )  # fmt: skip
    proto, initializers = _converted(model, shapes, options)
    with os_errors_as(ModelFileError, Path(path)):
        _write(proto, initializers, target)


def _target(path: Path) -> Path:
    """The file to write: the target of path if path is a symbolic link.

    Raises:
      ModelFileError: if there is no such folder, or if path is a folder, or a file without write permission.
      OSError: if path is in a loop of symbolic links.
    """
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    if target.is_symlink():  # realpath stops in a loop of links
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    check_target(target, ModelFileError)
    if target.exists() and not os.access(target, os.W_OK):
        raise ModelFileError.of(errno.EACCES, path, f"path is a file without write permission: {str(path)!r}")
    return target


def _check(model: Any, path: Any, choices: Mapping[str, Any], opset: Any) -> None:
    if not isinstance(model, Model):
        text = f"model is of type {inspect.formatannotation(type(model))}, expected a jaxdml.ptq.Model"
        raise ArgumentTypeError(f"{text}: write save(model, path) with what jaxdml.ptq.quantize returned")
    path_of("path", path)
    file_path(path, ModelFileError)
    for name, value in choices.items():
        if not isinstance(value, str) or value not in CHOICES[name]:
            raise DescError(f"{name} is {value!r}, expected {' or '.join(map(repr, CHOICES[name]))}")
    is_number = isinstance(opset, int | np.integer) and not isinstance(opset, bool)
    if opset is not None and not (is_number and FIRST <= opset <= LAST):
        raise DescError(f"opset is {opset!r}, expected a number from {FIRST} to {LAST}")
    if not model.has_own_params():
        text = "model.params are not those with which the model was made, and the file would have the old ones"
        raise ModelError(f"{text}: quantize the function with the new parameters")


def _opset(model: Model, opset: int | None) -> int:
    """The opset of the file."""
    modes = [mode for modes in model.modes.values() for mode in modes.values()]
    has_blocks = any(isinstance(mode, BlockMode) for mode in modes)
    least = WITH_BLOCKS if has_blocks or STATIC16 in modes else FIRST
    if opset is not None and opset < least:
        what = "weights in blocks need" if has_blocks else "layers with 16-bit inputs need"
        raise DescError(f"opset is {opset}, and {what} opset {least}: leave out the argument opset")
    return least if opset is None else int(opset)


def _specs(model: Model, shapes: Any) -> tuple[Any, ...]:
    """Shapes and types of the inputs, a tuple of pytrees."""
    if model.calibrated is None:
        raise PtqError("the sizes of this model's inputs are not known: quantize the function again")
    structs: tuple[Any, ...] = model.calibrated
    if shapes is None:
        return structs
    if isinstance(shapes, str) and shapes == BATCH:
        size = next((leaf.shape[:1] for leaf in jax.tree.leaves(structs) if leaf.shape), None)
        shapes = jax.tree.map(lambda leaf: f"{BATCH}, ..." if leaf.shape[:1] == size else None, structs)
    scope = export.SymbolicScope()

    def specs(text: Any, within: Any) -> Any:
        return within if text is None else jax.tree.map(lambda leaf: _spec(text, leaf, scope), within)

    try:
        return tuple(jax.tree.map(specs, shapes, structs, is_leaf=lambda text: text is None))
    except Exception as error:  # JAX raises many kinds of exceptions for wrong specifications
        reason = str(error).splitlines()[0].rstrip(".")
        if "pytree" in reason:  # JAX's next lines name places in the trees
            reason = "it has another structure"
        text = f"shapes is {shapes!r}, which does not fit the inputs {_listed(structs)}: {reason}"
        remedy = "write 'batch', None, a string such as 'batch, ...', or a tuple of such strings, one for each input"
        raise DescError(f"{text}; {remedy}") from error


def _spec(text: Any, struct: jax.ShapeDtypeStruct, scope: export.SymbolicScope) -> jax.ShapeDtypeStruct:
    """The shape that a text describes, and the type of an input.

    Raises:
      ValueError: if the text is not a string, has something after `...`, has a size that is negative or neither a
        number nor a name, or does not have as many sizes as the input.
    """
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is not a string")
    named, has_rest, behind = text.partition("...")
    if behind.strip():
        raise ValueError(f"{text!r} has {behind.strip()!r} after '...', which stands for all sizes that follow")
    for word in filter(None, map(str.strip, named.split(","))):
        if not re.fullmatch(r"-?\d+|[A-Za-z_]\w*", word):
            raise ValueError(f"{text!r} has {word!r}, which is neither a number nor a name")
        if not _is_parsed(word):
            raise ValueError(f"{text!r} has {word!r}, which JAX reserves; choose another name")
    shape = tuple(export.symbolic_shape(named.strip().removesuffix(","), scope=scope))
    if any(is_known(size) and size < 0 for size in shape):
        raise ValueError(f"{text!r} has a negative size; give an unknown size a name")
    shape += struct.shape[len(shape) :] if has_rest else ()
    if len(shape) != len(struct.shape):
        raise ValueError(f"{text!r} has {len(shape)} sizes, the input has {len(struct.shape)}")
    return jax.ShapeDtypeStruct(shape, struct.dtype)


def _is_parsed(word: str) -> bool:
    """Whether JAX accepts a word as a size; JAX rejects names of its functions, such as max, and its placeholder _."""
    try:
        export.symbolic_shape(word)
    except Exception:  # JAX raises many kinds of exceptions for wrong specifications
        return False
    return True


def _listed(structs: Any) -> str:
    """Types and shapes of inputs, such as (float32[8, 3], int32[8])."""
    words = (f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]" for leaf in jax.tree.leaves(structs))
    return f"({', '.join(words)})"


def _converted(model: Model, shapes: Any, options: Options) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model without its initializers, and the initializers.

    Raises:
      ModelError, PtqError: for the reasons that `save` lists. If symbolic sizes cause the error, the error says so.
    """
    specs = _specs(model, shapes)
    try:
        return _of_sizes(model, specs, options)
    except (ModelError, PtqError) as error:
        numbers = tuple(jax.tree.map(_with_numbers, specs, model.calibrated))
        if numbers == specs:
            raise
        _of_sizes(model, numbers, options)  # raises the error if it also occurs without symbolic sizes
        text = f"shapes={shapes!r} makes input sizes symbolic: {_listed(specs)}. Write shapes=None for the sizes of "
        text = f"{text}the calibration, or numbers in place of some names, because\n{error}"
        raise (ModelError(text, error.problems) if isinstance(error, ModelError) else PtqError(text)) from error


def _with_numbers(spec: jax.ShapeDtypeStruct, struct: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """A shape with the sizes of the calibration in place of symbolic sizes."""
    pairs = zip(spec.shape, struct.shape, strict=True)
    return jax.ShapeDtypeStruct([size if is_known(size) else number for size, number in pairs], spec.dtype)


def _of_sizes(
    model: Model, specs: tuple[Any, ...], options: Options
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:  # fmt: skip
    flat = model.flat(*specs)
    names = input_names(model.traced.apply, specs), output_names(flat.program.structure)
    graph, initializers, problems = graph_of(flat, jax.tree.leaves(specs), names, options)
    if problems:
        raise ModelError("\n".join(["the model cannot be written:", *(f"- {each}" for each in problems)]), (*problems,))
    opsets = [helper.make_opsetid("", options.opset)]
    if any(node.domain == MICROSOFT for node in graph.node):
        opsets.append(helper.make_opsetid(MICROSOFT, 1))
    proto = helper.make_model(
        graph, opset_imports=opsets, ir_version=IR_VERSIONS[options.opset], producer_name="jaxdml",
        producer_version=jaxdml.__version__,
    )  # fmt: skip
    helper.set_model_props(proto, {"jaxdml": jaxdml.__version__, "form": options.form, "numerics": options.numerics})
    return proto, initializers


def _write(proto: onnx.ModelProto, initializers: Mapping[str, np.ndarray], path: Path) -> None:
    """Writes a model, with large tensors in a second file if one file would be too large."""
    size = sum(value.nbytes for value in initializers.values()) + proto.ByteSize()
    if size <= LARGEST:
        proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in initializers.items())
        with replaced(path) as file:
            _keep_mode(file, path)
            file.write(proto.SerializeToString())
        _delete_data(path)
        return
    outside = {name: value for name, value in initializers.items() if value.nbytes >= INLINE}
    beside = path.with_name(f"{path.name}.{_digest(outside.values())}.data")
    # The old model, which has its weights in a file of another name, stays intact until the new model replaces it.
    with replaced(path) as file:
        _keep_mode(file, path)
        with replaced(beside) as data:
            _keep_mode(data, path)
            for name, value in initializers.items():
                is_outside = name in outside
                tensor = (
                    _external(name, value, data, beside.name) if is_outside else numpy_helper.from_array(value, name)
                )
                proto.graph.initializer.append(tensor)
        file.write(proto.SerializeToString())
    _delete_data(path, beside.name)


def _keep_mode(file: BinaryIO, old: Path) -> None:
    """Gives a file the permissions of an old file, if there is one."""
    if old.exists():
        os.chmod(file.name, stat.S_IMODE(old.stat().st_mode))


def _digest(values: Iterable[np.ndarray]) -> str:
    """A digest of the bytes of tensors."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(f"{value.nbytes},".encode())
        digest.update(_bytes(value))
    return digest.hexdigest()[:DIGITS]


def _delete_data(path: Path, but: str = "") -> None:
    """Deletes the second files of earlier models at this path, except the file named `but`."""
    pattern = re.compile(rf"{re.escape(path.name)}\.[0-9a-f]{{{DIGITS}}}\.data")
    for each in path.parent.iterdir():
        if pattern.fullmatch(each.name) and each.name != but:
            each.unlink(missing_ok=True)


def _external(name: str, value: np.ndarray, data: BinaryIO, location: str) -> TensorProto:
    """Writes a tensor's bytes without copying all of them, and returns a tensor that refers to them."""
    data.seek(-data.tell() % ALIGNMENT, os.SEEK_CUR)
    tensor, offset = TensorProto(name=name, dims=value.shape, data_location=TensorProto.EXTERNAL), data.tell()
    tensor.data_type = helper.np_dtype_to_tensor_dtype(value.dtype)
    data.write(_bytes(value))
    for key, entry in {"location": location, "offset": offset, "length": data.tell() - offset}.items():
        tensor.external_data.add(key=key, value=str(entry))
    return tensor


def _bytes(value: np.ndarray) -> bytes | memoryview:
    """The bytes of a tensor as a file stores them: 4-bit integers are packed."""
    if value.dtype in NIBBLES:
        return bytes(numpy_helper.from_array(value).raw_data)
    return memoryview(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
