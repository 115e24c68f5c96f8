"""The files of a model: JSON as DxDispatch reads it, data to start from, and data to write."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from jaxdml._directml.json_values import Value
from jaxdml.errors import DxDispatchError, DxDispatchFileNotFoundError

_STRING = r'"(?:\\.|[^"\\\n])*"?'  # one that does not end goes to the end, or all would be searched for each quote
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?(?:\*/|\Z)", re.S)
_TRAILING_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])")
MAXIMUM_JSON_BYTES = 2**28
IMAGES = (".png", ".jpg")


def read_json(path: Path) -> Value:
    """The JSON in a file; as in DxDispatch, comments and commas behind the last element are allowed."""
    try:
        if path.exists() and not path.is_file():
            raise DxDispatchError("", f"cannot be read: {path} is no file")
        if path.stat().st_size > MAXIMUM_JSON_BYTES:
            raise DxDispatchError("", f"has {path.stat().st_size} bytes, more than the limit of {MAXIMUM_JSON_BYTES}")
        text = path.read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        if isinstance(error, DxDispatchError):
            raise
        kind = DxDispatchFileNotFoundError if isinstance(error, FileNotFoundError) else DxDispatchError
        raise kind("", f"cannot be read: {error}") from error
    text = _COMMENT.sub(lambda match: match[0] if match[0].startswith('"') else re.sub(r"[^\n]", " ", match[0]), text)
    text = _TRAILING_COMMA.sub(lambda match: match[0] if match[0].startswith('"') else " ", text)
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair could not be printed
    except RecursionError as error:
        raise DxDispatchError("", "is nested too deeply to be read; models need six levels") from error
    except ValueError as error:
        if isinstance(error, DxDispatchError):
            raise
        raise DxDispatchError("", f"is no JSON that can be read: {error}") from error
    return Value(value, "", DxDispatchError)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DxDispatchError("", f"has two members {twice!r} in one object")
    return members


def _constant(name: str) -> Any:
    raise DxDispatchError("", f'has the number {name}, which JSON has not; write the string "{name.lower()[:4]}"')


def read_data(path: Path, source: Value, limit: int) -> tuple[bytes, np.dtype | None]:
    """The bytes in a file, and their type if it is a .npy."""
    if path.suffix.lower() in IMAGES:
        raise source.expected("a .npy or raw file; images are not supported")
    try:
        if not path.is_file():
            kind = DxDispatchError if path.exists() else DxDispatchFileNotFoundError
            raise kind(source.path, f"is {source.value!r}, and there is no such file")
        if path.stat().st_size > limit:
            raise source.fail(f"has {path.stat().st_size} bytes, more than the limit of {limit}; see maximum_bytes")
        if path.suffix.lower() != ".npy":
            return path.read_bytes(), None
        array = np.lib.format.open_memmap(path, mode="r")  # which reads no pickled objects, and no more than there is
        return array.tobytes(), array.dtype
    except DxDispatchError:
        raise
    except Exception as error:  # NumPy's parser of headers raises whatever Python's does
        raise source.fail(f"is {source.value!r}, which cannot be read: {error}") from error


def write_data(path: Path, target: Value, array: np.ndarray) -> None:
    """Writes a .npy, or raw bytes."""
    try:
        if path.exists() and not path.is_file():
            raise target.fail(f"is {target.value!r}, which is there and no file")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # and not written into: it may be a link to another file
        with path.open("xb") as file:
            if path.suffix.lower() == ".npy":
                np.save(file, array, allow_pickle=False)
            else:
                file.write(array.tobytes())
    except OSError as error:
        raise target.fail(f"is {target.value!r}, which cannot be written: {error}") from error
