"""DxDispatch models: the examples, every initialiser and command, and errors that say where."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxdml as dml
from jaxdml import dxdispatch, examples, reference
from jaxdml.dxdispatch.__main__ import main

EXAMPLES = Path(examples.__file__).parent / "dxdispatch"
f32, u8, i8 = np.float32, np.uint8, np.int8


def convolution():
    x = np.arange(0, 256, 8, u8).reshape(1, 4, 4, 2).transpose(0, 3, 1, 2)
    f, bias = np.arange(-12, 12, dtype=i8).reshape(3, 2, 2, 2), np.int32([-300, 0, 300])
    scales = f32(0.5), u8(128), f, f32([0.25, 0.5, 1]), None, bias, f32(16), i8(-3)
    return reference.quantized_linear_convolution(x, *scales).transpose(0, 2, 3, 1)


EXPECTED = {
    "dequantize": lambda: reference.element_wise_dequantize_linear(u8([0, 127, 128, 255]), f32(0.5), u8(128)),
    "quantize": lambda: reference.element_wise_quantize_linear(np.arange(-1, 3, 0.75, f32), f32(0.5), u8(0)),
    "add": lambda: reference.element_wise_quantized_linear_add(
        u8([[100, 110, 120], [130, 140, 150]]), f32(0.5), None,
        i8([[-10, 0, 10]] * 2), f32(0.25), None, f32(0.75), u8(0),
    ),
    "matrix_multiply": lambda: reference.quantized_linear_matrix_multiply(
        u8([[100, 110, 120], [90, 80, 70]]), f32(0.5), u8(100),
        i8([[1, -4], [2, 5], [3, -6]]), f32([0.25, 0.5]), None, f32(8), u8(128),
    ),
    "convolution": convolution,
}  # fmt: skip


def test_there_is_an_example_for_every_operator():
    operators = {
        dispatchable.operator.desc.operator
        for path in EXAMPLES.glob("*.json")
        for dispatchable in dxdispatch.load(path).dispatchables.values()
    }
    assert operators == set(dml.feature_levels.SUPPORT)


@pytest.mark.parametrize("name", EXPECTED)
def test_examples(name, tmp_path):
    printed = []
    model = dxdispatch.load(EXAMPLES / f"{name}.json")
    for _ in range(2):  # each run starts from the initial values
        got = model.run(output_dir=tmp_path, show=printed.append)["output"]
        np.testing.assert_array_equal(got, EXPECTED[name]().ravel())
        assert got.dtype == EXPECTED[name]().dtype
    assert printed[: len(printed) // 2] == printed[len(printed) // 2 :]


def test_what_is_printed_and_written(tmp_path, capsys):
    assert main([str(EXAMPLES / "quantize.json"), "--output-dir", str(tmp_path / "quantize")]) == 0
    assert capsys.readouterr().out == (
        "Resource 'input': -1, -0.25, 0.5, 1.25, 2, 2.75\n"
        "Resource 'output':\n[0] 0 (0x00)\n[1] 0 (0x00)\n[2] 1 (0x01)\n[3] 2 (0x02)\n[4] 4 (0x04)\n[5] 6 (0x06)\n"
    )
    assert not (tmp_path / "quantize").exists()
    command = [sys.executable, "-m", "jaxdml.dxdispatch", EXAMPLES / "matrix_multiply.json", "--output-dir", tmp_path]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert run.stdout == "Resource 'output': 129, 126, 126, 132\n"
    np.testing.assert_array_equal(np.load(tmp_path / "matrix_multiply_output.npy"), [[129, 126], [126, 132]])
    dxdispatch.load(EXAMPLES / "convolution.json").run(output_dir=tmp_path)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "convolution_output.dat", i8), convolution().ravel())
    assert len(list(tmp_path.iterdir())) == 2


def test_the_command_line_says_what_is_wrong(tmp_path, capsys):
    assert main([str(EXAMPLES / "quantize.json"), "--feature-level", "6_0"]) == 1
    assert "dispatchables.quantize.desc is refused: element_wise_quantize_linear: ZeroPoint" in capsys.readouterr().err
    assert main([str(tmp_path / "none.json")]) == 1
    assert "none.json: the model cannot be read: " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["model.json", "--feature-level", "7_0"])
    assert "choose from" in capsys.readouterr().err


def resource(data_type, values, **members):
    kind = {} if data_type is None else {"initialValuesDataType": data_type}
    return kind | {"initialValues": values} | members


def model(**changes):
    """x * 0.5, of four elements."""
    tensors = {
        "InputTensor": {"DataType": "UINT8", "Sizes": [4]},
        "ScaleTensor": {"DataType": "FLOAT32", "Sizes": [4], "Strides": [0]},
        "OutputTensor": {"DataType": "FLOAT32", "Sizes": [4]},
    }
    written = {
        "resources": {
            "x": resource("UINT8", [1, 2, 3, 4]),
            "s": resource("FLOAT32", [0.5]),
            "y": resource("FLOAT32", {"valueCount": 4, "value": 0}),
        },
        "dispatchables": {"d": {"type": "ELEMENT_WISE_DEQUANTIZE_LINEAR", "desc": tensors}},
        "commands": [
            {
                "type": "dispatch",
                "dispatchable": "d",
                "bindings": {"InputTensor": "x", "ScaleTensor": "s", "OutputTensor": "y"},
            },
            {"type": "print", "resource": "y"},
            {"type": "writeFile", "resource": "y", "targetPath": "y.npy", "dimensions": [2, 2]},
        ],
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = written
        for name in parents:
            place = place[int(name)] if isinstance(place, list) else place[name]
        place[int(last) if isinstance(place, list) else last] = value
    return written


def run(folder, written, **options):
    """The resources at the end, and what was printed."""
    (folder / "model.json").write_text(written if isinstance(written, str) else json.dumps(written))
    printed = []
    (folder / "output").mkdir(exist_ok=True)
    loaded = dxdispatch.load(folder / "model.json", **options)
    return loaded.run(output_dir=folder / "output", show=printed.append), printed


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (resource("UINT8", [0, 255]), u8([0, 255])),
        (resource("DML_TENSOR_DATA_TYPE_INT64", [-(2**63), 2**63 - 1]), np.int64([-(2**63), 2**63 - 1])),
        (resource("FLOAT16", [65504, "NaN", "inf", "-Inf", 1]), np.float16([65504, np.nan, np.inf, -np.inf, 1])),
        (resource("FLOAT32", [1, 0.1, 1e-45, 3.4028235e38]), f32([1, 0.1, 1e-45, 3.4028235e38])),
        (resource("FLOAT16", [65505, 1.0004882812500002]), np.float16([65504, 1])),
        (resource("INT16", {"valueCount": 3, "value": -7}), np.int16([-7] * 3)),
        (resource("FLOAT32", {"valueCount": 4, "valueStart": 1, "valueDelta": 2.5}), f32([1, 3.5, 6, 8.5])),
        (resource("FLOAT16", {"valueCount": 3, "valueStart": 2048, "valueDelta": 1}), np.float16([2048, 2048, 2048])),
        (resource("INT8", {"valueCount": 3, "valueStart": 127, "valueDelta": -127}), i8([127, 0, -127])),
        (resource("UINT16", [1], sizeInBytes=6), np.uint16([1, 0, 0])),
        (resource("UINT16", [1], initialValuesOffsetInBytes=2), np.uint16([0, 1])),
        (
            resource("UNKNOWN", [{"name": "n", "type": "UINT16", "value": 513}, {"type": "INT8", "value": -1}]),
            u8([1, 2, 255]),
        ),
        (resource(None, [{"type": "FLOAT32", "value": "nan"}]), f32([np.nan]).view(u8)),
        (resource(None, {"sourcePath": "data/a.npy"}), np.int16([[1, 2], [3, 4]]).ravel()),
        (resource("INT16", {"sourcePath": "data/a.npy"}), np.int16([[1, 2], [3, 4]]).ravel()),
        (resource("UINT16", {"sourcePath": "data/raw.bin"}), np.uint16([1, 2])),
    ],
    ids=str,
)  # fmt: skip
def test_initial_values(written, expected, tmp_path):
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "a.npy", np.asfortranarray(np.int16([[1, 2], [3, 4]])))
    np.uint16([1, 2]).tofile(tmp_path / "data" / "raw.bin")
    resources, _ = run(tmp_path, model(resources__new=written))
    np.testing.assert_array_equal(resources["new"], expected)
    assert resources["new"].dtype == expected.dtype


def test_comments_and_trailing_commas(tmp_path):
    text = json.dumps(model(resources__x=resource("UINT8", [9, 8, 7, 6])))
    text = text.replace("[9, 8, 7, 6]", '[9, // "nine", [\n 8, /* } */ 7, 6,]').replace('"d"', '"// d /* "')
    resources, printed = run(tmp_path, text[:-1] + ",}")
    np.testing.assert_array_equal(resources["y"], [4.5, 4, 3.5, 3])
    assert printed == ["Resource 'y': 4.5, 4, 3.5, 3"]


def test_bindings_with_offsets(tmp_path):
    """Two tensors in one buffer; the output goes behind what is there, which stays."""
    bindings = {
        "InputTensor": {"name": "all", "elementOffset": 16, "elementSizeInBytes": 1, "shape": [4]},
        "ScaleTensor": [{"name": "all"}],
        "OutputTensor": {"name": "all", "elementOffset": 2, "elementSizeInBytes": 16, "elementCount": 4},
    }
    data = [{"type": "FLOAT32", "value": v} for v in (0.5, 0, 0, 0)]
    data += [{"type": "UINT8", "value": v} for v in (1, 2, 3, 4)]
    written = model(resources__all=resource(None, data, sizeInBytes=48), commands__0__bindings=bindings)
    resources, _ = run(tmp_path, written)
    np.testing.assert_array_equal(resources["all"].view(f32)[8:], [0.5, 1, 1.5, 2])
    np.testing.assert_array_equal(resources["all"][16:20], [1, 2, 3, 4])


def test_offsets_count_elements_of_the_resource(tmp_path):
    """As in the tool: the tensor is FLOAT32, the resource UINT8, and offset 16 is byte 16."""
    scales = resource("UINT8", f32([9, 0, 0, 0, 0.5]).view(u8).tolist())
    bindings = model()["commands"][0]["bindings"] | {"ScaleTensor": {"name": "s", "elementOffset": 16}}
    resources, _ = run(tmp_path, model(resources__s=scales, commands__0__bindings=bindings))
    np.testing.assert_array_equal(resources["y"], [0.5, 1, 1.5, 2])
    mixed = resource(None, [{"type": "FLOAT32", "value": 0.5}], sizeInBytes=64)
    with pytest.raises(dml.DxDispatchError, match="counts elements of several types; give elementSizeInBytes"):
        run(tmp_path, model(resources__s=mixed, commands__0__bindings=bindings))


def test_commands_run_in_order(tmp_path):
    """The output of one dispatch is the scale of the next; prints show what is there at that moment."""
    again = {"type": "dispatch", "dispatchable": "d", "threadGroupCount": [1, 1, 1]}
    again["bindings"] = {"InputTensor": "x", "ScaleTensor": "y", "OutputTensor": "y"}
    show = {"type": "print", "resource": "y"}
    written = model()
    written["commands"] = [show, written["commands"][0], show, again, show]
    _, printed = run(tmp_path, written)
    assert printed == ["Resource 'y': 0, 0, 0, 0", "Resource 'y': 0.5, 1, 1.5, 2", "Resource 'y': 0.5, 1, 1.5, 2"]


def test_numbers_are_printed_as_the_tool_prints_them(tmp_path):
    values = resource("FLOAT32", [1234567, 1e-7, 0.1, "nan", "-inf", 100000])
    show = {"type": "print", "resource": "n", "verbose": True}
    _, printed = run(tmp_path, model(resources__n=values, commands__1=show))
    assert printed[0].splitlines() == [
        "Resource 'n':", "[0] 1.23457e+06 (0x4996B438)", "[1] 1e-07 (0x33D6BF95)", "[2] 0.1 (0x3DCCCCCD)",
        "[3] nan (0x7FC00000)", "[4] -inf (0xFF800000)", "[5] 100000 (0x47C35000)",
    ]  # fmt: skip


D, SOURCE, INITIAL = "dispatchables__d", "resources.x.initialValues.sourcePath", "resources.s.initialValues"
X, S = "resources__x", "resources__s"
ERRORS = [
    (X, 3, "resources.x", "is 3, expected an object"),
    (X, None, "resources", "has 'x', which is null"),
    (X, {"initialValue": [1]}, "resources.x", "did you mean initialValues?"),
    (X, resource("UINT8", []), "resources.x.initialValues", "is empty"),
    (X, resource("UINT8", "deferred"), "resources.x.initialValues", "is 'deferred', expected an object"),
    (X, resource("UINT8", [1, 256]), "resources.x.initialValues[1]", "is 256, expected an integer from 0"),
    (X, resource("UINT8", [1.0]), "resources.x.initialValues[0]", "is 1.0, expected an integer"),
    (X, resource("UINT4", [1]), "resources.x.initialValuesDataType", "is 'UINT4', expected DML_TENSOR_D"),
    (S, resource("FLOAT32", ["big"]), "resources.s.initialValues[0]", "is 'big', expected a number, "),
    (S, resource("FLOAT32", [1e39]), "resources.s.initialValues[0]", "a number that FLOAT32 can hold"),
    (S, resource("FLOAT32", [True]), "resources.s.initialValues[0]", "is True, expected a number"),
    (S, resource("FLOAT64", [10**400]), "resources.s.initialValues[0]", "a number that FLOAT64 can hold"),
    (S, resource(None, [1]), "resources.s.initialValues[0]", 'expected an object with "type" and "value"'),
    (
        S,
        resource(None, [{"type": "UNKNOWN", "value": 1}]),
        "resources.s.initialValues[0].type",
        "other th",
    ),
    (S, resource(None, {"valueCount": 1, "value": 1}), "resources.s", "has no initialValuesDataType"),
    (S, resource("INT8", {"valueCount": 0, "value": 1}), "resources.s.initialValues.valueCount", "from 1"),
    (S, resource("INT8", {"valueCount": 2**40, "value": 1}), "resources.s.initialValues.valueCount", "is"),
    (
        S,
        resource("INT8", {"valueCount": 3, "valueStart": 100, "valueDelta": 20}),
        INITIAL,
        "ends at 140, which INT8 cannot hold",
    ),
    (
        S,
        resource("INT8", {"valueCount": 3, "valueStart": 1}),
        INITIAL,
        "no valueDelta",
    ),
    (
        S,
        resource("INT8", {"value": 1, "valueCount": 1, "valueDelta": 1}),
        INITIAL,
        "field",
    ),
    (
        "resources__x",
        resource("UINT8", [1] * 4, sizeInBytes=3),
        "resources.x.sizeInBytes",
        "is 3, too small for 4 bytes",
    ),
    (X, resource("UINT8", [1] * 4, sizeInBytes=2**50), "resources.x.sizeInBytes", "expected an integer"),
    (
        "resources__x",
        resource("UINT8", {"sourcePath": "no.bin"}),
        SOURCE,
        "no such file",
    ),
    (
        "resources__x",
        resource("UINT8", {"sourcePath": "x.png"}),
        SOURCE,
        "images are not",
    ),
    (
        "resources__x",
        resource("UINT8", {"sourcePath": "../x"}),
        SOURCE,
        "inside the fol",
    ),
    (
        "resources__x",
        resource("UINT8", {"sourcePath": "/etc/passwd"}),
        SOURCE,
        "inside",
    ),
    (
        "resources__x",
        resource("UINT8", {"sourcePath": "link"}),
        SOURCE,
        "inside the fol",
    ),
    (
        "resources__x",
        resource("UINT8", {"sourcePath": "."}),
        SOURCE,
        "inside the folder",
    ),
    (X, resource("UINT8", {"sourcePath": "a\0b"}), SOURCE, "is no path"),
    (
        "resources__x",
        resource("UINT8", {"sourcePath": "folder"}),
        SOURCE,
        "no such file",
    ),
    (
        "resources__x",
        resource(None, {"sourcePath": "raw.bin"}),
        "resources.x",
        "has no initialValuesDataType, or UNKNOWN",
    ),
    (
        "resources__x",
        resource("UINT16", {"sourcePath": "raw.bin"}),
        SOURCE,
        "has 5 bytes",
    ),
    (
        "resources__x",
        resource("UINT8", {"sourcePath": "big.npy"}),
        SOURCE,
        "cannot be read",
    ),
    (
        "resources__x",
        resource("UINT8", {"sourcePath": "pickled.npy"}),
        SOURCE,
        "cannot be",
    ),
    (
        "resources__x",
        resource("UINT8", {"sourcePath": "bool.npy"}),
        SOURCE,
        "has type bool",
    ),
    (
        "resources__x",
        resource("INT8", {"sourcePath": "u8.npy"}),
        SOURCE,
        "has type UINT8,",
    ),
    (f"{D}__type", "hlsl", "dispatchables.d.type", "is 'hlsl', expected DML_OPERATOR_ELEMENT_WISE_DEQUANTIZE_LINEAR, "),
    (f"{D}__kind", 1, "dispatchables.d", "has no field 'kind'"),
    (f"{D}__dmlCompileType", "Graph", "dispatchables.d.dmlCompileType", "is 'Graph', expected DmlCompileOp or DmlCom"),
    (
        f"{D}__executionFlags",
        ["NONE", "FAST"],
        "dispatchables.d.executionFlags[1]",
        "is 'FAST', expected DML_EXECUTION",
    ),
    (
        f"{D}__desc__InputTensor__Sizes",
        [0],
        "dispatchables.d.desc.InputTensor",
        "is refused: element_wise_dequantize_l",
    ),
    (f"{D}__desc__InputTensor__Sizes", [5], "dispatchables.d.desc.OutputTensor", "has Sizes [4], expected [5]"),
    (f"{D}__desc__OutputTensor__Strides", [0], "dispatchables.d.desc.OutputTensor", "elements overlap"),
    (
        f"{D}__desc__InputTensor__Flags",
        "OWNED_BY_DML",
        "dispatchables.d.bindings",
        "has no InputTensor, which the desc",
    ),
    (f"{D}__desc__ScaleTensor", None, "dispatchables.d.desc", "ScaleTensor is missing"),
    (
        f"{D}__bindings",
        {"InputTensor": "x"},
        "dispatchables.d.bindings.InputTensor",
        "Flags NONE in the desc: it is bou",
    ),
    ("commands__0__bindings__InputTensor", "z", "commands[0].bindings.InputTensor", "is 'z', expected x, s or y"),
    ("commands__0__bindings__InputTensor", ["x", "x"], "commands[0].bindings.InputTensor", "expected one resource"),
    (
        "commands__0__bindings__Weights",
        "x",
        "commands[0].bindings.Weights",
        "has no such tensor; there are InputTensor",
    ),
    ("commands__0__bindings__ZeroPointTensor", "x", "commands[0].bindings.ZeroPointTensor", "absent from the desc"),
    ("commands__0__bindings__InputTensor", None, "commands[0].bindings", "has no InputTensor, which the desc has"),
    (
        "commands__0__bindings__OutputTensor",
        "s",
        "commands[0].bindings.OutputTensor",
        "has 4 bytes from offset 0 on, the",
    ),
    (
        "commands__0__bindings__ScaleTensor",
        {"name": "y", "elementOffset": 1, "elementSizeInBytes": 2},
        "commands[0].bindings.ScaleTensor",
        "has an offset of 2 bytes, the desc needs a multiple of 16",
    ),
    (
        "commands__0__bindings__InputTensor",
        {"name": "x", "count": 4},
        "commands[0].bindings.InputTensor",
        "no field",
    ),
    (
        "commands__0__bindings__InputTensor",
        {"name": "x", "elementOffset": 9},
        "commands[0].bindings.InputTensor",
        "0 byt",
    ),
    ("commands__0__threadGroupCount", [0], "commands[0].threadGroupCount[0]", "is 0, expected an integer from 1"),
    ("commands__0__dispatchable", "e", "commands[0].dispatchable", "is 'e', expected d"),
    ("commands__1__type", "Show", "commands[1].type", "is 'show', expected dispatch, print or writefile"),
    ("commands__1__verbose", "yes", "commands[1].verbose", "is 'yes', expected true or false"),
    ("commands__1", {"type": "print"}, "commands[1]", "has no resource, which is required"),
    (
        "commands__2__targetPath",
        "../y.npy",
        "commands[2].targetPath",
        "is '../y.npy', expected the path of a file inside",
    ),
    ("commands__2__targetPath", "y.PNG", "commands[2].targetPath", "images are not supported"),
    ("commands__2__targetPath", "../model.json", "commands[2].targetPath", "inside the folder"),
    ("commands__2__targetPath", "n" * 400, "commands[2].targetPath", "cannot be written"),
    ("commands__2__dimensions", [3], "commands[2].dimensions", "is [3], expected dimensions of 4 elements"),
    ("commands__2__dimensions", [2**31, 2**31, 0], "commands[2].dimensions[2]", "is 0, expected an integer from 1"),
    ("commands", {}, "commands", "is {}, expected a list"),
    ("resource", {}, "", "the model has no field 'resource'; did you mean resources?"),
]


@pytest.mark.parametrize(("place", "value", "path", "text"), ERRORS, ids=[f"{e[0]} {e[3][:20]}" for e in ERRORS])
def test_errors_say_where(place, value, path, text, tmp_path):
    folder = tmp_path / "models"
    (folder / "folder").mkdir(parents=True)
    (tmp_path / "x").write_bytes(b"1234")
    (folder / "link").symlink_to(tmp_path / "x")
    (folder / "raw.bin").write_bytes(b"12345")
    for name, array in {"pickled": np.array([{}]), "bool": np.ones(4, bool), "u8": np.ones(4, u8)}.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=True)
    with (folder / "big.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (2**50,)})
    with pytest.raises(dml.DxDispatchError) as error:
        run(folder, model(**{place: value}))
    assert error.value.path == path
    assert str(error.value).startswith(f"{path or 'the model'} ")
    assert text in str(error.value)
    assert [path.name for path in (folder / "output").iterdir()] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no JSON"), ("[" * 100_000, "is no JSON"), ("{} x", "is no JSON"), ("NaN", 'write the string "nan"'),
        ('{"a": 1, "a": 2}', "has two members 'a' in one object"), ("/*" * 100_000, "is no JSON"),
        ('"\\' * 300_000, "is no JSON"), ('{"\\ud800": 1}', "is no JSON"),
        ("[]", "expected an object"), ("1" * 5000, "is no JSON"), ("{}", "has no resources"), ("null", "is None"),
    ],
)  # fmt: skip
def test_what_is_no_model(text, message, tmp_path):
    with pytest.raises(dml.DxDispatchError, match=message):
        run(tmp_path, text)


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


def test_only_files_are_read_and_written(tmp_path):
    """A pipe would wait for somebody; a link to the model would overwrite it."""
    (tmp_path / "output").mkdir()
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "output" / "pipe")
    with pytest.raises(dml.DxDispatchError, match="the model cannot be read: "):
        dxdispatch.load(tmp_path / "pipe")
    with pytest.raises(dml.DxDispatchError, match="no such file"):
        run(tmp_path, model(resources__x=resource("UINT8", {"sourcePath": "pipe"})))
    with pytest.raises(dml.DxDispatchError, match="which is there and no file"):
        run(tmp_path, model(commands__2__targetPath="pipe"))
    (tmp_path / "model.json").write_text("")
    (tmp_path / "output" / "y.npy").hardlink_to(tmp_path / "model.json")
    written = model()
    run(tmp_path, written)
    assert json.loads((tmp_path / "model.json").read_text()) == written
    assert sorted(path.name for path in (tmp_path / "output").iterdir()) == ["pipe", "y.npy"]
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
        (tmp_path / "model.json").write_text(json.dumps(written))
        with pytest.raises(dml.DxDispatchError, match="expected another file: the model was read from this one"):
            dxdispatch.load(tmp_path / "model.json").run()
    assert (tmp_path / "x.bin").read_bytes() == b"1234"


def test_files_are_checked_before_anything_runs(tmp_path):
    (tmp_path / "model.json").write_text(json.dumps(model(commands__2__targetPath="../y.npy")))
    shown = []
    with pytest.raises(dml.DxDispatchError, match="inside the folder"):
        dxdispatch.load(tmp_path / "model.json").run(output_dir=tmp_path / "output", show=shown.append)
    assert shown == []


def test_a_model_is_shown_in_a_line(tmp_path):
    (tmp_path / "model.json").write_text(json.dumps(model()))
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
    with pytest.raises(dml.DxDispatchError, match="initialValues makes 4 bytes, more than the limit of 3"):
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
        dml.DxDispatchError, match=r"d\.desc\.InputTensor makes 1073741824 bytes, more than the limit of 10"
    ):
        run(tmp_path, model(dispatchables__d=convolve), maximum_bytes=1000)
