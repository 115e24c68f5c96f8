"""A file that is not there is a FileNotFoundError, as Python's own, and an error of the module that reads it."""

import copy
import json
import pickle

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


@pytest.mark.parametrize(
    ("read", "kind"),
    [
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
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(twin) is type(error)
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


def test_they_are_public():
    for name in ("ModelFileNotFoundError", "PtqFileNotFoundError", "DxDispatchFileNotFoundError"):
        assert getattr(errors, name).__module__ == "jaxdml.errors"


def test_a_folder_in_place_of_data_is_no_missing_file(tmp_path):
    (tmp_path / "gone.npy").mkdir()
    with pytest.raises(dml.DxDispatchError, match="no such file") as caught:
        read_data_of_dxdispatch(tmp_path)
    assert not isinstance(caught.value, FileNotFoundError)
