"""The paths that a model names: one rule on all platforms, decided from the text."""

import ntpath
import sys

import numpy as np
import pytest

import jaxdml as dml
from dxdispatch.models import model, resource, run
from helpers.platforms import symlink
from jaxdml import dxdispatch

SOURCE, TARGET = "resources.x.initialValues.sourcePath", "commands[2].targetPath"
ROOTED = r"expected a path inside the folder, such as '(x|data)', without a drive or a leading slash"
UPWARD = r"expected the path of a file inside the folder, without '\.\.'"
ITSELF = "expected the path of a file inside the folder, such as 'data/x.npy'"
DEVICE = r"and \S+ is a device on Windows; rename '"
REFUSED = {
    "a drive": (ROOTED, [r"C:\x", "C:/x", "c:x", "1:x"]),
    "a drive alone": ("such as 'x.npy', without a drive", ["C:", "C:/", "D:NUL", r"C:x:y"]),
    "a server": (ROOTED, [r"\\server\share\x", "//server/share/x", r"\/server\share/x"]),
    "a device path": (ROOTED, [r"\\?\C:\x", "//?/C:/x", r"\\?\UNC\server\share\x", r"\\.\C:\x", r"\??\C:\x"]),
    "a root": (ROOTED, ["/x", r"\x", "/etc/x", r"\etc\x", "/../x"]),
    "a root alone": ("such as 'x.npy', without a drive or a leading slash", ["/", "\\", "//", r"\\.\NUL"]),
    "upward": (UPWARD, ["..", "../x", r"..\x", "a/../x", r"a\..\x", r"a/..\x", "a/b/../../../x", "./../x", "x/.."]),
    "the folder": (ITSELF, ["", ".", "./", ".\\", "././."]),
    "a drive within": ("Windows allows no ':' in the name of a file; rename 'C:'", [r"x\C:\y", "x/C:/y", "./C:"]),
    "a stream": ("Windows allows no ':' in the name of a file; rename '", ["x.npy:y", "data/x.npy:y:$DATA", "ab:x"]),
    "a wildcard": ("in the name of a file; rename '", ["x*", "data/?.npy", "<x", "x>", 'x"', "a|b"]),
    "a control character": ("in the name of a file; rename '", ["a\0b", "a\nb", "a\x1fb"]),
    "a dropped end": ("at the end of a name; rename '", ["x.", "x ", "x. .", "data./x", r"data \x", "...", ".. /x"]),
    "a device": (DEVICE, ["NUL", "con.npy", "data/Aux", "PRN.tar.gz", "COM1", "lpt9.x", "NUL/x", "CONIN$"]),
    "a device, spelled otherwise": (DEVICE, ["COM¹", "LPT².npy", "lpt³", "NUL .npy", "com1  .x.y", "conout$.x"]),
}  # fmt: skip
EACH = [(message, path) for message, paths in REFUSED.values() for path in paths]
ACCEPTED = [
    "data/x.npy", r"data\x.npy", "./data/x.npy", r".\data\x.npy", "data//x.npy", r"data\\x.npy", r"data/.\x.npy",
]  # fmt: skip
ALIKE = [
    "NULL",
    "console.npy",
    "COM0",
    "COM10",
    "LPT",
    "auxiliary/x",
    ".hidden",
    "..x",
    "a..b",
    "a b",
    "~",
    "é",
    "$DATA",
]


@pytest.fixture
def folder(tmp_path):
    """A model's folder in which everything that a path could mean on POSIX exists."""
    folder = tmp_path / "models"
    (folder / "data").mkdir(parents=True)
    np.save(folder / "data" / "x.npy", np.uint8([9, 8, 7, 6]))
    return folder


def read(folder, path):
    return run(folder, model(resources__x=resource(None, {"sourcePath": path})))[0]["x"].tolist()


def written(folder, path):
    """The files in the output folder after a model wrote to this path."""
    run(folder, model(commands__2__targetPath=path))
    return {path.relative_to(folder / "output").as_posix() for path in (folder / "output").rglob("*")}


@pytest.mark.parametrize(("message", "path"), EACH, ids=[ascii(path) for _, path in EACH])
def test_a_path_that_is_not_portable_is_refused(message, path, folder):
    for where, attempt in ((SOURCE, read), (TARGET, written)):
        with pytest.raises(dml.DxDispatchError, match=message) as error:
            attempt(folder, path)
        assert error.value.path == where
        assert f"{where} is {path!r}, " in str(error.value)
    assert list((folder / "output").iterdir()) == []


@pytest.mark.parametrize("path", ACCEPTED)
def test_both_separators_mean_the_same_on_all_platforms(path, folder):
    assert written(folder, path) == {"data", "data/x.npy"}
    assert read(folder, path) == [9, 8, 7, 6]


@pytest.mark.parametrize("path", ALIKE)
def test_names_that_only_look_reserved_are_names(path, folder):
    assert path in written(folder, path)


def test_the_rule_is_that_of_python_for_windows():
    """Python 3.13 has a function for reserved names; it is looked up, as Python 3.12 has none."""
    is_reserved = getattr(ntpath, "isreserved", None)
    assert (is_reserved is None) == (sys.version_info < (3, 13))
    names = {name for _, path in EACH for name in path.replace("\\", "/").split("/")} | set(ALIKE)
    for name in names - {"", ".", ".."}:
        if is_reserved and not ntpath.splitdrive(name)[0]:
            assert bool(dxdispatch._paths._problem(name)) == is_reserved(name), name


def test_a_link_does_not_lead_out(folder):
    (folder.parent / "secret").write_bytes(b"1234")
    (folder / "output").mkdir()
    for link in (folder / "link", folder / "output" / "link"):
        symlink(link, folder.parent / "secret")
    symlink(folder / "away", folder.parent)
    symlink(folder / "self", folder)
    for path in ("link", "away/secret", r"away\secret", "self"):
        with pytest.raises(dml.DxDispatchError, match=ITSELF):
            read(folder, path)
    with pytest.raises(dml.DxDispatchError, match=ITSELF):
        written(folder, "link")
    assert (folder.parent / "secret").read_bytes() == b"1234"
    symlink(folder / "circle", folder / "circle")
    with pytest.raises(
        dml.DxDispatchError, match=r"is not a path: |there is no such file"
    ):  # Python 3.12, and later ones
        read(folder, "circle")
    symlink(folder / "within", folder / "data")
    assert read(folder, "within/x.npy") == [9, 8, 7, 6]


@pytest.mark.parametrize(
    ("source", "target"),
    [("e\u0301.bin", "\u00c9.BIN"), ("x.bin", "X.Bin"), ("x.bin", r".\X.bin"), ("\u00df.bin", "ss.bin")],
)
def test_another_spelling_of_a_file_that_was_read_is_that_file(source, target, folder):
    """On Windows and macOS it is that file, because the file system ignores case and the composition of letters."""
    (folder / source).write_bytes(b"1234")
    changes = {"resources__x": resource("UINT8", {"sourcePath": source}), "commands__2__targetPath": target}
    run(folder, model(**changes))  # into another folder
    with pytest.raises(dml.DxDispatchError, match="expected another file: the model was read from this one"):
        dxdispatch.load(folder / "model.json").run()
    assert (folder / source).read_bytes() == b"1234"


def test_the_caller_may_write_any_path(folder, monkeypatch):
    """`load` and `output_dir` take paths as the system understands them."""
    run(folder, model())
    monkeypatch.chdir(folder / "data")
    dxdispatch.load("../model.json").run(output_dir="../data/../written", show=str)
    assert (folder / "written" / "y.npy").is_file()
