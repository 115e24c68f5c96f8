"""The files of a model: what may be read and written, and how much of it."""

import json
import os

import numpy as np
import pytest

import jaxdml as dml
from dxdispatch.models import model, resource, run
from helpers.platforms import posix
from jaxdml import dxdispatch

f32, u8 = np.float32, np.uint8
SOURCE = "resources.x.initialValues.sourcePath"


def test_files_that_cannot_be_read(tmp_path):
    for path in (tmp_path, tmp_path / "none", tmp_path / "bytes"):
        (tmp_path / "bytes").write_bytes(b"\xff\xfe{")
        with pytest.raises(dml.DxDispatchError, match="the model cannot be read: "):
            dxdispatch.load(path)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1180591620717411303424,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (True,)}", "(" * 3000 + ")" * 3000, "-" * 9000 + "1",
        "{'descr': '|u1\0', 'fortran_order': False, 'shape': (4,)}", "{[]: 1}", "{'descr': '|u1', 1: 2, 'shape': ()}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (2**40,)}", "", "{'descr': '|O', 'shape': (1,)}",
    ],
    ids=lambda header: header[:50],
)  # fmt: skip
def test_npy_headers_of_all_kinds(header, tmp_path):
    text = header.encode() + b"\n"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(16))
    with pytest.raises(dml.DxDispatchError) as error:
        run(tmp_path, model(resources__x=resource("UINT8", {"sourcePath": "x.npy"})))
    assert error.value.path == SOURCE
    assert "cannot be read" in str(error.value)


@posix
def test_only_files_are_read_and_written(tmp_path):
    """Reading a pipe would wait forever."""
    (tmp_path / "output").mkdir()
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "output" / "pipe")
    with pytest.raises(dml.DxDispatchError, match="the model cannot be read: "):
        dxdispatch.load(tmp_path / "pipe")
    with pytest.raises(dml.DxDispatchError, match="no such file"):
        run(tmp_path, model(resources__x=resource("UINT8", {"sourcePath": "pipe"})))
    with pytest.raises(dml.DxDispatchError, match="which exists and is not a file"):
        run(tmp_path, model(commands__2__targetPath="pipe"))
    assert [path.name for path in (tmp_path / "output").iterdir()] == ["pipe"]


def test_a_file_is_replaced_and_not_written_into(tmp_path):
    """The target may be a link to another file, such as the model."""
    (tmp_path / "output").mkdir()
    (tmp_path / "model.json").write_text("", encoding="utf-8")
    (tmp_path / "output" / "y.npy").hardlink_to(tmp_path / "model.json")
    written = model()
    run(tmp_path, written)
    assert json.loads((tmp_path / "model.json").read_text(encoding="utf-8")) == written
    assert [path.name for path in (tmp_path / "output").iterdir()] == ["y.npy"]
    written_by_us = (tmp_path / "output" / "y.npy").stat()
    assert written_by_us.st_mode == (tmp_path / "model.json").stat().st_mode


def test_what_fails_while_running_is_an_error_of_the_command(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")

    def fail_by_name(*_, **__):
        fail()

    monkeypatch.setattr(dxdispatch._dispatchables.Dispatchable, "dispatch", fail)
    with pytest.raises(dml.DxDispatchError, match=r"commands\[0\] could not be executed: RESOURCE_EXHAUSTED"):
        run(tmp_path, model())
    monkeypatch.setattr(dml.CompiledOperator, "initialize", fail_by_name)
    with pytest.raises(dml.DxDispatchError, match=r"dispatchables\.d could not be initialized: RESOURCE_EXHAUSTED"):
        run(tmp_path, model())


def test_a_model_file_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(dxdispatch._files, "MAXIMUM_JSON_BYTES", 100)
    with pytest.raises(dml.DxDispatchError, match="bytes, more than the limit of 100"):
        run(tmp_path, model())


def test_a_model_does_not_overwrite_what_it_was_read_from(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"1234")
    for target in ("model.json", "./x.bin"):
        written = model(resources__x=resource("UINT8", {"sourcePath": "x.bin"}), commands__2__targetPath=target)
        (tmp_path / "model.json").write_text(json.dumps(written), encoding="utf-8")
        with pytest.raises(dml.DxDispatchError, match="expected another file: the model was read from this one"):
            dxdispatch.load(tmp_path / "model.json").run()
    assert (tmp_path / "x.bin").read_bytes() == b"1234"


def test_files_are_checked_before_anything_runs(tmp_path):
    (tmp_path / "model.json").write_text(json.dumps(model(commands__2__targetPath="../y.npy")), encoding="utf-8")
    shown = []
    with pytest.raises(dml.DxDispatchError, match="inside the folder"):
        dxdispatch.load(tmp_path / "model.json").run(output_dir=tmp_path / "output", show=shown.append)
    assert shown == []


def test_a_model_is_shown_in_a_line(tmp_path):
    (tmp_path / "model.json").write_text(json.dumps(model()), encoding="utf-8")
    loaded = dxdispatch.load(tmp_path / "model.json")
    assert repr(loaded) == "Model(model.json: resources x, s, y; dispatchables d; 3 commands)"
    with pytest.raises(dml.DescError, match=r"dxdispatch.load: feature_level is '4_0', expected a FeatureLevel"):
        dxdispatch.load(tmp_path / "model.json", feature_level="4_0")


def test_no_more_memory_than_allowed(tmp_path):
    with pytest.raises(dml.DxDispatchError, match=r"resources.y.initialValues.valueCount is 4, expected an integer"):
        run(tmp_path, model(), maximum_bytes=20)
    run(tmp_path, model(), maximum_bytes=24)
    (tmp_path / "x.bin").write_bytes(b"1234")
    written = model(resources__x=resource("UINT8", {"sourcePath": "x.bin"}))
    with pytest.raises(dml.DxDispatchError, match="has 4 bytes, more than the limit of 3"):
        run(tmp_path, written, maximum_bytes=3)
    with pytest.raises(dml.DxDispatchError, match="initialValues needs 4 bytes, more than the limit of 3"):
        run(tmp_path, model(), maximum_bytes=3)
    repeated = {"DataType": "UINT8", "Sizes": [1, 1, 2**15, 2**15], "Strides": [0, 0, 0, 0]}
    convolve = model()["dispatchables"]["d"] | {"type": "QUANTIZED_LINEAR_CONVOLUTION"}
    one = {"DataType": "FLOAT32", "Sizes": [1, 1, 1, 1]}
    convolve["desc"] = {
        "InputTensor": repeated, "InputScaleTensor": one, "FilterTensor": repeated | {"Sizes": [1, 1, 1, 1]},
        "FilterScaleTensor": one, "OutputScaleTensor": one, "OutputTensor": repeated | {"Sizes": [1] * 4},
        "DimensionCount": 2, "Strides": [2**15, 2**15], "Dilations": [1, 1], "StartPadding": [0, 0],
        "EndPadding": [0, 0], "GroupCount": 1,
    }  # fmt: skip
    with pytest.raises(
        dml.DxDispatchError, match=r"d\.desc\.InputTensor needs 1073741824 bytes, more than the limit of 10"
    ):
        run(tmp_path, model(dispatchables__d=convolve), maximum_bytes=1000)
