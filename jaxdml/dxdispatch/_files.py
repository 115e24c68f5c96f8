"""Reads and writes the files of a model: JSON, initial values and results."""

import errno
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from jaxdml._directml.json_values import Value
from jaxdml.errors import DxDispatchError, DxDispatchFileError, check_regular

_STRING = r'"(?:\\.|[^"\\\n])*"?'  # an unclosed string ends at the line's end, which keeps the search linear
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?(?:\*/|\Z)", re.S)
_TRAILING_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])")
MAXIMUM_JSON_BYTES = 2**28
IMAGES = (".png", ".jpg")


def read_json(path: Path) -> Value:
    """Reads JSON; as in DxDispatch, comments and trailing commas are allowed."""
    try:
        check_regular(path, DxDispatchFileError, "", f"cannot be read: {path} is not a file")
        if path.stat().st_size > MAXIMUM_JSON_BYTES:
            raise DxDispatchError("", f"has {path.stat().st_size} bytes, more than the limit of {MAXIMUM_JSON_BYTES}")
        text = path.read_text("utf-8-sig")
    except DxDispatchError:
        raise
    except OSError as error:
        raise DxDispatchFileError.of(error.errno, path, "", f"cannot be read: {error}") from error
    except ValueError as error:  # bytes that are not UTF-8
        raise DxDispatchError("", f"cannot be read: {error}") from error
    text = _COMMENT.sub(lambda match: match[0] if match[0].startswith('"') else re.sub(r"[^\n]", " ", match[0]), text)
    text = _TRAILING_COMMA.sub(lambda match: match[0] if match[0].startswith('"') else " ", text)
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
        json.dumps(value, ensure_ascii=False).encode()  # raises for a lone surrogate, which could not be printed
    except RecursionError as error:
        raise DxDispatchError("", "is nested too deeply to be read; no model needs more than six levels") from error
    except ValueError as error:
        if isinstance(error, DxDispatchError):
            raise
        raise DxDispatchError("", f"cannot be read as JSON: {error}") from error
    return Value(value, "", DxDispatchError)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DxDispatchError("", f"has two members {twice!r} in one object")
    return members


def _constant(name: str) -> Any:
    text = f'has the number {name}, which JSON does not have; write the string "{name.lower().removesuffix("inity")}"'
    raise DxDispatchError("", text)


def read_data(path: Path, source: Value, limit: int) -> tuple[bytes, np.dtype | None]:
    """The bytes of a file, and their type if it is a .npy file."""
    if path.suffix.lower() in IMAGES:
        raise source.expected("a .npy or raw file; images are not supported")
    try:
        text = f"is {source.value!r}, and there is no such file"
        check_regular(path, DxDispatchFileError, source.path, text)
        if not path.exists():
            raise DxDispatchFileError.of(errno.ENOENT, path, source.path, text)
        if path.stat().st_size > limit:
            raise source.fail(f"has {path.stat().st_size} bytes, more than the limit of {limit}; see maximum_bytes")
        if path.suffix.lower() != ".npy":
            return path.read_bytes(), None
        array = np.lib.format.open_memmap(path, mode="r")  # neither unpickles nor trusts the header's size
        return array.tobytes(), array.dtype
    except DxDispatchError:
        raise
    except OSError as error:
        text = f"is {source.value!r}, which cannot be read: {error}"
        raise DxDispatchFileError.of(error.errno, path, source.path, text) from error
    except Exception as error:  # NumPy parses the header as Python, which can raise anything
        raise source.fail(f"is {source.value!r}, which cannot be read: {error}") from error


def write_data(path: Path, target: Value, array: np.ndarray) -> None:
    """Writes a .npy file or raw bytes."""
    try:
        text = f"is {target.value!r}, which exists and is not a file"
        check_regular(path, DxDispatchFileError, target.path, text)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # writing to a hard link would change another file
        with path.open("xb") as file:
            if path.suffix.lower() == ".npy":
                np.save(file, array, allow_pickle=False)
            else:
                file.write(array.tobytes())
    except DxDispatchError:
        raise
    except OSError as error:
        text = f"is {target.value!r}, which cannot be written: {error}"
        raise DxDispatchFileError.of(error.errno, path, target.path, text) from error
