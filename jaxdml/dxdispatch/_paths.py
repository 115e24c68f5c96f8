"""Paths in a model. Each must stay inside a folder and name the same file on Windows, macOS and Linux."""

import re
import unicodedata
from pathlib import Path, PureWindowsPath

from jaxdml._directml.json_values import Value
from jaxdml._directml.messages import shown

_SEPARATOR = re.compile(r"[\\/]")
_FORBIDDEN = re.compile(r'[\x00-\x1f<>:"|?*]')  # in names on Windows, where x.npy:y means a second stream of x.npy
_DEVICE = re.compile(r"(CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(COM|LPT)[1-9¹²³]) *(\..*)?", re.I)


def inside(folder: Path, relative: Value) -> Path:
    r"""The absolute path of a file in the folder, with links resolved.

    The path must be portable: on all platforms, `/` and `\` separate names, and each name must be valid on Windows.

    Raises:
      DxDispatchError: if the path is not portable, or leads out of the folder.
    """
    names = _names(relative)
    try:
        root = folder.resolve()
        path = root.joinpath(*names).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # unencodable characters, cyclic links
        raise relative.fail(f"is {shown(relative.value)}, which is not a path: {error}") from error
    if path == root or not path.is_relative_to(root):
        raise relative.expected("the path of a file inside the folder, such as 'data/x.npy'")
    return path


def folded(path: Path) -> str:
    """A path as case-insensitive file systems compare it.

    Unlike Windows, macOS treats ß and ss as equal. This function does, too, so that no input file is overwritten.
    """
    return unicodedata.normalize("NFC", str(path).casefold())


def _names(relative: Value) -> list[str]:
    """The folders and the file in a portable path."""
    text = relative.string()
    names = [name for name in _SEPARATOR.split(text) if name not in ("", ".")]
    path = PureWindowsPath(text)
    if path.anchor:  # a drive, a server, or a leading slash
        instead = shown("x.npy" if not path.name or _problem(path.name) else path.name)
        raise relative.expected(f"a path inside the folder, such as {instead}, without a drive or a leading slash")
    if ".." in names:  # Windows and POSIX resolve '..' after a link differently
        raise relative.expected("the path of a file inside the folder, without '..'")
    for name in names:
        if problem := _problem(name):
            raise relative.fail(f"is {shown(text)}, and {problem}; rename {shown(name)}")
    return names


def _problem(name: str) -> str | None:
    """Why Windows does not allow the name of a file; None if Windows allows the name."""
    if found := _FORBIDDEN.search(name):
        return f"Windows allows no {found[0]!r} in the name of a file"
    if name.endswith((".", " ")):
        return f"Windows drops the {name[-1]!r} at the end of a name"
    if device := _DEVICE.fullmatch(name):
        return f"{device[1]} is a device on Windows"
    return None
