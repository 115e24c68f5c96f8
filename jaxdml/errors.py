"""The exceptions. Every error about a call or a desc is a DescError, which names the operator, tensor and rule."""

import difflib
import errno
import functools
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np

_INTERNAL = frozenset({"jaxdml", "jax", "jaxlib", "numpy", "onnx", "google", *sys.stdlib_module_names})
SIMILAR = 0.55  # difflib's cutoff: low enough to suggest group_count for groups, and output_dtype for dtype


class DescError(ValueError):
    """A desc or a call breaks a rule of its operator.

    Attributes:
      operator: the name of the function, such as ``"quantized_linear_convolution"``; None if unknown.
      tensor: DirectML's name of the wrong tensor or field, such as ``"FilterScaleTensor"``.
      rule: a keyword for the broken rule, such as ``"dimension_count"``; the message explains it.
      expected: what the rule requires.
      received: the value that breaks the rule.
      feature_level: the requested feature level; None if the rule holds at every level.
      minimum_feature_level: the lowest level that allows the value; None if no level does.
    """

    def __init__(
        self,
        message: str,
        *,
        operator: str | None = None,
        tensor: str | None = None,
        rule: str | None = None,
        expected: Any = None,
        received: Any = None,
        feature_level: Any = None,
        minimum_feature_level: Any = None,
    ) -> None:
        super().__init__(message)
        self.operator = operator
        self.tensor = tensor
        self.rule = rule
        self.expected = expected
        self.received = received
        self.feature_level = feature_level
        self.minimum_feature_level = minimum_feature_level


class DxDispatchError(ValueError):
    """A DxDispatch model is invalid or cannot be run.

    Attributes:
      path: the place in the JSON, such as ``"dispatchables.conv.desc.FilterTensor.Sizes[1]"``; empty means the file.
    """

    def __init__(self, path: str, text: str) -> None:
        super().__init__(path, text)  # unpickling calls the class with these arguments
        self.path = path

    def __str__(self) -> str:
        path, text = self.args
        return f"{path or 'the model'} {text}"


class FeatureLevelError(DescError):
    """A feature level does not allow an operator or value; its ``minimum_feature_level`` is the lowest that does."""


class ArgumentTypeError(DescError, TypeError):
    """An argument has the wrong Python type or an unknown name, or a call has too many or too few arguments."""


class ModelError(ValueError):
    """A model cannot be read or run.

    Attributes:
      problems: all problems that were found, one sentence each; the message lists them.
    """

    def __init__(self, message: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(message, problems)  # unpickling calls the class with these arguments
        self.problems = problems or (message,)

    def __str__(self) -> str:
        return str(self.args[0])


class PtqError(ValueError):
    """A float function cannot be quantized as requested, or a quantized model is called with wrong arguments."""


class ExactError(ValueError):
    """A function cannot be made exact, or an argument of `jaxdml.exact` is wrong.

    Attributes:
      problems: all problems that were found, one sentence each; the message lists them.
    """

    def __init__(self, message: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(message, problems)  # unpickling calls the class with these arguments
        self.problems = problems or (message,)

    def __str__(self) -> str:
        return str(self.args[0])


class FileError(OSError):
    """A file cannot be read or written; `filename` is its path. Unlike OSError, the error keeps its attributes when
    pickled.
    """

    errno: int | None = None
    strerror: str | None = None
    filename: str | None = None

    @classmethod
    def of(cls, number: int | None, path: str | os.PathLike[str], *args: str) -> Self:
        """An error made of args, of cls or its subclass that derives from Python's exception for the error number."""
        # ENOTDIR: a folder of the path is a file.
        python = FileNotFoundError if number == errno.ENOTDIR else type(OSError(number, ""))
        kinds = [each for each in cls.__subclasses__() if python is not OSError and issubclass(each, python)]
        error = kinds[0](*args) if kinds else cls(*args)
        error.errno, error.strerror = number, None if number is None else os.strerror(number)
        error.filename = os.fspath(path)
        return error


class MissingFileError(FileError, FileNotFoundError):
    """A file or a folder does not exist; `filename` is its path."""


class ModelFileError(ModelError, FileError):
    """A file of an ONNX model cannot be read or written; `filename` is its path."""


class ModelFileNotFoundError(ModelFileError, MissingFileError):
    """A file of an ONNX model, or the folder to write it to, does not exist; `filename` is its path."""


class ModelIsADirectoryError(ModelFileError, IsADirectoryError):
    """The path of an ONNX model is that of a folder."""


class ModelPermissionError(ModelFileError, PermissionError):
    """A file of an ONNX model may not be read or written."""


class PtqFileError(PtqError, FileError):
    """`ptq.load` or `ptq.save` cannot read or write its file; `filename` is its path."""


class PtqFileNotFoundError(PtqFileError, MissingFileError):
    """`ptq.load`'s file, or the folder that `ptq.save` should write to, does not exist; `filename` is its path."""


class PtqIsADirectoryError(PtqFileError, IsADirectoryError):
    """The path of `ptq.load` or `ptq.save` is that of a folder."""


class PtqPermissionError(PtqFileError, PermissionError):
    """`ptq.load` may not read its file, or `ptq.save` may not write its file."""


class DxDispatchFileError(DxDispatchError, FileError):
    """A file of a DxDispatch model cannot be read or written; `filename` is its path."""


class DxDispatchFileNotFoundError(DxDispatchFileError, MissingFileError):
    """A file of a DxDispatch model does not exist; `filename` is its path."""


class DxDispatchIsADirectoryError(DxDispatchFileError, IsADirectoryError):
    """The path of a file of a DxDispatch model is that of a folder."""


class DxDispatchPermissionError(DxDispatchFileError, PermissionError):
    """A file of a DxDispatch model may not be read or written."""


def in_other_byte_order(name: str, arrays: Any) -> str:
    """A sentence about a pytree's first array that has the byte order of other machines; empty if there is none.

    A jitted function that was called before with a NumPy array of the same shape and type would read the bytes of such
    an array in the wrong order; JAX raises no error.
    """
    if not any(map(_is_swapped, jax.tree.leaves(arrays))):  # paths are found only for an error
        return ""
    for path, x in jax.tree_util.tree_leaves_with_path(arrays):
        if _is_swapped(x):
            where = name + jax.tree_util.keystr(path)
            text = f"{where} has type {x.dtype}, in the byte order of other machines"
            return f"{text}; write {where}.astype(jnp.{x.dtype.name})"
    return ""


def _is_swapped(x: Any) -> bool:
    return isinstance(x, np.ndarray) and not x.dtype.isnative


def path_of(name: str, path: Any, error: Callable[[str], Exception] = ArgumentTypeError) -> Path:
    """The argument `name` as a Path.

    Raises:
      ArgumentTypeError, or another given error: if the argument is not a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise error(f"{name} is of type {type(path).__name__}, expected a path")
    return Path(path)


def file_path(path: str | os.PathLike[str], kind: type[FileError]) -> Path:
    """The path of a file as a Path.

    Raises:
      FileError, of the given kind: if no file can have this path.
    """
    text = os.fspath(path)  # a Path leaves out a separator at the end
    if "\0" in text:
        raise kind.of(errno.EINVAL, text, f"path is {text!r}, and a path cannot contain a NUL character")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        wrong = f"path is {text!r}, and a path cannot contain the character {text[error.start]!r}"
        raise kind.of(errno.EINVAL, text, wrong) from error
    if text.endswith(tuple(filter(None, (os.sep, os.altsep)))):
        wrong = "path ends with a separator, so it names a folder; expected the path of a file"
        raise kind.of(errno.EISDIR, text, f"{wrong}: {text!r}")
    return Path(path)


def check_regular(path: Path, kind: type[FileError], *args: str) -> None:
    """Checks that a path is that of a regular file, or does not exist. Opening a pipe would wait for a writer.

    Raises:
      FileError, of the given kind and made of args: if the path is that of anything else.
    """
    if path.exists() and not path.is_file():
        raise kind.of(errno.EISDIR if path.is_dir() else errno.EINVAL, path, *args)


def misfit(
    function: str, signature: inspect.Signature, positional: Sequence[Any], named: Mapping[str, Any],
    hints: Mapping[str, str] | None = None,
) -> ArgumentTypeError | None:  # fmt: skip
    """The error about a call whose arguments do not fit the function's signature; None if they fit.

    Args:
      function: the name of the function.
      signature: its signature.
      positional, named: the arguments.
      hints: advice about arguments of other libraries, keyed by their names.
    """
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        text = str(error)
    else:
        return None
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    names = {each.name: f"*{each.name}" if each.kind is each.VAR_POSITIONAL else each.name for each in parameters}
    by_name = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    any_name = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD] + by_name
    is_open = any(each.kind is each.VAR_KEYWORD for each in parameters)
    for name in named if not is_open else ():
        if name not in any_name:
            close = difflib.get_close_matches(name, any_name, n=1, cutoff=SIMILAR)
            listed = f"the arguments are {', '.join(names.values())}{'' if any_name else ', by position'}"
            hint = f"did you mean {close[0]}?" if close else listed
            text = f"{function}: there is no argument {name}; {(hints or {}).get(name, hint)}"
            return ArgumentTypeError(text, operator=function, tensor=name, rule="argument")
    takes = f"it takes {', '.join(text for name, text in names.items() if name not in by_name)}"
    takes += f", and by name only: {', '.join(by_name)}" if by_name else ""
    return ArgumentTypeError(f"{function}: {text}; {takes}", operator=function, rule="argument", expected=tuple(names))


def api_boundary[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a public function: in tracebacks of its errors and their causes, only user frames follow the call.

    User frames are, for instance, those of a function that jaxdml traces. All frames are kept if
    `jax_traceback_filtering` is "off". If the arguments do not fit the signature, the call raises ArgumentTypeError.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (DescError, DxDispatchError, ExactError, ModelError, PtqError) as error:
            if jax.config.jax_traceback_filtering == "off":
                raise
            _show_only_user(error)
            raise error from error.__cause__
        except TypeError:
            name = function.__qualname__.removesuffix(".__init__")
            wrong = misfit(name, inspect.signature(function), args, kwargs)
            if wrong is None:
                raise
            raise wrong from None

    return call


def api_class[T](kind: type[T]) -> type[T]:
    """Decorates a public class whose constructor validates: makes the constructor an `api_boundary`."""
    kind.__init__ = api_boundary(kind.__init__)  # type: ignore[method-assign]
    return kind


def _show_only_user(error: BaseException | None) -> None:
    """Drops the frames of jaxdml, and of the packages that it calls, from an error and its causes."""
    seen = list[BaseException]()
    while error is not None and error not in seen:  # an error may be its own cause
        frames = None
        for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
            if frame.f_globals.get("__name__", "").partition(".")[0] not in _INTERNAL:
                frames = TracebackType(frames, frame, frame.f_lasti, line)
        error.__traceback__ = frames
        seen.append(error)
        error = error.__cause__
