"""An error in a model says where in the JSON it is."""

import numpy as np
import pytest

import jaxdml as dml
from dxdispatch.models import model, resource, run

f32, u8 = np.float32, np.uint8
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
    (X, resource("UINT5", [1]), "resources.x.initialValuesDataType", "is 'UINT5', expected DML_TENSOR_D"),
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
    (S, resource(None, {"valueCount": 1, "value": 1}), "resources.s", "needs an initialValuesDataType"),
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
        resource("UINT8", {"sourcePath": "."}),
        SOURCE,
        "inside the folder",
    ),
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
        "needs an initialValuesDataType other than UNKNOWN for a raw file",
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
    (f"{D}__type", "hlsl", "dispatchables.d.type", "is 'hlsl', expected DML_OPERATOR_CONVOLUTION_INTEGER, "),
    (f"{D}__kind", 1, "dispatchables.d", "has an unknown field 'kind'"),
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
        "unknown field",
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
    ("resource", {}, "", "the model has an unknown field 'resource'; did you mean resources?"),
]


@pytest.mark.parametrize(("place", "value", "path", "text"), ERRORS, ids=[f"{e[0]} {e[3][:20]}" for e in ERRORS])
def test_errors_say_where(place, value, path, text, tmp_path):
    folder = tmp_path / "models"
    (folder / "folder").mkdir(parents=True)
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
        ("", "as JSON"), ("[" * 100_000, "is nested too deeply to be read; no model needs more than six levels"),
        ("{} x", "as JSON"), ("NaN", 'write the string "nan"'),
        ("-Infinity", 'write the string "-inf"'), ("Infinity", 'write the string "inf"'),
        ('{"a": 1, "a": 2}', "has two members 'a' in one object"), ("/*" * 100_000, "as JSON"),
        ('"\\' * 300_000, "as JSON"), ('{"\\ud800": 1}', "as JSON"),
        ("[]", "expected an object"), ("1" * 5000, "as JSON"), ("{}", "has no resources"), ("null", "is None"),
    ],
)  # fmt: skip
def test_what_is_no_model(text, message, tmp_path):
    with pytest.raises(dml.DxDispatchError, match=message):
        run(tmp_path, text)
