"""A file that cannot be read or written raises an error of Python's own class, which is also an error of the module."""

import copy
import errno
import functools
import json
import os
import pickle
from pathlib import Path

import numpy as np
import onnx
import pytest

import jaxdml as dml
from jaxdml import errors

EMPTY_MODEL = {"resources": {}, "dispatchables": {}, "commands": []}
FROM_DATA = {
    "initialValuesDataType": "FLOAT32",
    "initialValues": {"sourcePath": "gone.npy"},
}


def read_onnx(folder):
    dml.onnx.load(folder / "gone.onnx")


def read_quantized(folder):
    dml.ptq.load(folder / "gone.npz", lambda params, x: x)


def read_dxdispatch(folder):
    dml.dxdispatch.load(folder / "gone.json")


def read_data_of_dxdispatch(folder):
    resources = {"x": FROM_DATA}
    (folder / "model.json").write_text(json.dumps(EMPTY_MODEL | {"resources": resources}))
    dml.dxdispatch.load(folder / "model.json")


def read_data_of_onnx(folder):
    tensor = onnx.numpy_helper.from_array(np.ones((2, 2), np.float32), "w")
    onnx.external_data_helper.set_external_data(tensor, "gone.bin")
    tensor.ClearField("raw_data")
    types = [onnx.helper.make_tensor_value_info(name, 1, (2, 2)) for name in "xy"]
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([node], "graph", types[:1], types[1:], [tensor])
    opset = onnx.helper.make_opsetid("", 21)
    (folder / "model.onnx").write_bytes(onnx.helper.make_model(graph, opset_imports=[opset]).SerializeToString())
    dml.onnx.load(folder / "model.onnx")


@functools.cache
def quantized():
    params = {"w": np.ones((3, 2), np.float32)}
    return dml.ptq.quantize(lambda params, x: x @ params["w"], params, [params["w"].T], progress=False)


def write_quantized(folder):
    dml.ptq.save(folder / "gone" / "model.npz", quantized())


@pytest.mark.parametrize(
    ("read", "kind"),
    [
        (write_quantized, dml.ptq.PtqError),
        (read_data_of_onnx, dml.onnx.ModelError),
        (read_onnx, dml.onnx.ModelError),
        (read_quantized, dml.ptq.PtqError),
        (read_dxdispatch, dml.DxDispatchError),
        (read_data_of_dxdispatch, dml.DxDispatchError),
    ],
)
def test_a_missing_file_is_both_errors(read, kind, tmp_path):
    with pytest.raises(FileNotFoundError, match="gone") as caught:
        read(tmp_path)
    error = caught.value
    assert isinstance(error, kind)
    assert (error.errno, error.strerror) == (errno.ENOENT, os.strerror(errno.ENOENT))
    assert Path(error.filename).parent == tmp_path
    assert Path(error.filename).stem == "gone"
    assert not Path(error.filename).exists()
    assert not str(error).startswith("[Errno")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(twin) is type(error)
        assert (twin.errno, twin.strerror, twin.filename) == (error.errno, error.strerror, error.filename)
        assert (str(twin), twin.args, vars(twin)) == (str(error), error.args, vars(error))


@pytest.mark.parametrize(
    ("read", "kind"),
    [
        (dml.onnx.load, dml.onnx.ModelError),
        (lambda path: dml.ptq.load(path, lambda params, x: x), dml.ptq.PtqError),
        (dml.dxdispatch.load, dml.DxDispatchError),
    ],
)
def test_another_problem_with_a_file_is_no_missing_file(read, kind, tmp_path):
    for name in ("", "wrong"):
        (tmp_path / "wrong").write_bytes(b"{")
        with pytest.raises(kind) as caught:
            read(tmp_path / name)
        assert not isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize("module", ["Model", "Ptq", "DxDispatch"])
def test_they_are_public(module):
    for python in ("FileNotFoundError", "IsADirectoryError", "PermissionError"):
        kind = getattr(errors, f"{module}{python}")
        assert kind.__module__ == "jaxdml.errors"
        assert issubclass(kind, (getattr(errors, f"{module}Error"), errors.FileError))


ACCESSES = {
    "onnx.load": (dml.onnx.load, dml.onnx.ModelError),
    "onnx.save": (lambda path: dml.onnx.save(quantized(), path), dml.onnx.ModelError),
    "ptq.load": (lambda path: dml.ptq.load(path, lambda params, x: x), dml.ptq.PtqError),
    "ptq.save": (lambda path: dml.ptq.save(path, quantized()), dml.ptq.PtqError),
    "dxdispatch.load": (dml.dxdispatch.load, dml.DxDispatchError),
}


@pytest.mark.parametrize("name", ACCESSES)
def test_a_problem_with_a_file_is_an_error_of_python_and_of_the_module(name, tmp_path):
    access, kind = ACCESSES[name]
    for path, number, python in (
        (tmp_path, errno.EISDIR, IsADirectoryError),
        (tmp_path / ("n" * 300), errno.ENAMETOOLONG, errors.FileError),
    ):
        with pytest.raises(python) as caught:
            access(path)
        error = caught.value
        assert isinstance(error, kind)
        assert (error.errno, error.strerror, error.filename) == (number, os.strerror(number), str(path))
        assert not isinstance(error, FileNotFoundError)
        assert not str(error).startswith("[Errno")
        assert str(error).count("cannot be") <= 1
        twin = pickle.loads(pickle.dumps(error))
        assert (type(twin), str(twin), vars(twin)) == (type(error), str(error), vars(error))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ACCESSES)
def test_a_file_that_may_not_be_opened(name, tmp_path, monkeypatch):
    access, kind = ACCESSES[name]
    quantized()
    path = tmp_path / "file"
    path.write_bytes(b"old")
    refuse(monkeypatch)
    with pytest.raises(PermissionError) as caught:
        access(path)
    assert isinstance(caught.value, kind)
    assert caught.value.filename == str(path)


def refuse(monkeypatch):
    """The user may be root, who may open every file."""

    def opened(*args, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "name")

    monkeypatch.setattr("builtins.open", opened)
    monkeypatch.setattr("io.open", opened)


OF_ONE_FILE = [name for name in ACCESSES if name != "dxdispatch.load"]
NO_PATHS = {  # the end of a path that no file can have, and the words of its error
    "a\0b": (r"^path is '[^']*a\\x00b', and a path cannot contain a NUL character$", errno.EINVAL),
    "a\ud800b": (r"^path is '[^']*a\\ud800b', and a path cannot contain the character '\\ud800'$", errno.EINVAL),
    f"file{os.sep}": (r"^path ends with a separator, so it names a folder; expected the path of a file", errno.EISDIR),
}


@pytest.mark.parametrize("end", NO_PATHS, ids=ascii)
@pytest.mark.parametrize("name", OF_ONE_FILE)
def test_a_path_that_no_file_can_have(name, end, tmp_path):
    access, kind = ACCESSES[name]
    words, number = NO_PATHS[end]
    with pytest.raises(kind, match=words) as caught:
        access(f"{tmp_path}{os.sep}{end}")
    assert isinstance(caught.value, errors.FileError)
    assert (caught.value.errno, caught.value.filename) == (number, f"{tmp_path}{os.sep}{end}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ACCESSES)
def test_no_file_is_in_a_file(name, tmp_path):
    access, kind = ACCESSES[name]
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileNotFoundError) as caught:
        access(tmp_path / "file" / "other")
    assert isinstance(caught.value, kind)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="only POSIX has pipes among files")
@pytest.mark.parametrize("name", ACCESSES)
def test_a_pipe_is_not_opened(name, tmp_path):
    """Opening it would wait for a program at its other end."""
    access, kind = ACCESSES[name]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(errors.FileError) as caught:
        access(tmp_path / "pipe")
    assert isinstance(caught.value, kind)
    assert caught.value.errno == errno.EINVAL


def test_a_folder_in_place_of_results(tmp_path):
    resources = {"x": {"initialValuesDataType": "FLOAT32", "initialValues": [1]}}
    commands = [{"type": "writeFile", "resource": "x", "targetPath": "out.npy"}]
    (tmp_path / "model.json").write_text(json.dumps(EMPTY_MODEL | {"resources": resources, "commands": commands}))
    model = dml.dxdispatch.load(tmp_path / "model.json")
    (tmp_path / "out.npy").mkdir()
    with pytest.raises(errors.DxDispatchIsADirectoryError, match=r"which exists and is not a file$") as told:
        model.run()
    assert (told.value.path, told.value.filename) == ("commands[0].targetPath", str(tmp_path / "out.npy"))


def test_a_folder_in_place_of_data_is_no_missing_file(tmp_path):
    (tmp_path / "gone.npy").mkdir()
    with pytest.raises(errors.DxDispatchIsADirectoryError, match=r"and there is no such file$") as caught:
        read_data_of_dxdispatch(tmp_path)
    assert not isinstance(caught.value, FileNotFoundError)
