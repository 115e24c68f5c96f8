"""A missing file raises a FileNotFoundError, like Python's own, which is also an error of the module that reads it."""

import copy
import errno
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


def write_quantized(folder):
    params = {"w": np.ones((3, 2), np.float32)}
    model = dml.ptq.quantize(lambda params, x: x @ params["w"], params, [params["w"].T], progress=False)
    dml.ptq.save(folder / "gone" / "model.npz", model)


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


def test_they_are_public():
    for name in ("ModelFileNotFoundError", "PtqFileNotFoundError", "DxDispatchFileNotFoundError"):
        assert getattr(errors, name).__module__ == "jaxdml.errors"


def test_a_folder_in_place_of_data_is_no_missing_file(tmp_path):
    (tmp_path / "gone.npy").mkdir()
    with pytest.raises(dml.DxDispatchError, match="no such file") as caught:
        read_data_of_dxdispatch(tmp_path)
    assert not isinstance(caught.value, FileNotFoundError)
