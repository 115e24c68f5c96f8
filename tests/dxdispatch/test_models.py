"""DxDispatch models: the examples, every initialiser and command, and errors that say where."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxdml as dml
from dxdispatch.models import model, resource, run
from helpers.compare import assert_same_bits, assert_same_values
from jaxdml import dxdispatch, examples, reference
from jaxdml._directml.pages import PAGES
from jaxdml.dxdispatch.__main__ import main

pytestmark = pytest.mark.oldest

EXAMPLES = Path(examples.__file__).parent / "dxdispatch"
f32, f16, u8, i8 = np.float32, np.float16, np.uint8, np.int8


def convolution():
    x = np.arange(0, 256, 8, u8).reshape(1, 4, 4, 2).transpose(0, 3, 1, 2)
    f, bias = np.arange(-12, 12, dtype=i8).reshape(3, 2, 2, 2), np.int32([-300, 0, 300])
    scales = f32(0.5), u8(128), f, f32([0.25, 0.5, 1]), None, bias, f32(16), i8(-3)
    return reference.quantized_linear_convolution(x, *scales).transpose(0, 2, 3, 1)


def dynamic():
    output, scale, zero_point = reference.dynamic_quantize_linear(f32([[-1.5, 0, 0.1], [0.25, 2.5, 3.6]]))
    return reference.element_wise_dequantize_linear(output, scale, zero_point)


def pooling():
    images = np.arange(8, 248, 8, u8).reshape(1, 3, 5, 2).transpose(0, 3, 1, 2)
    scales, options = (f32(0.5), u8(128), f32([0.25, 1]), None), {"end_padding": 1, "output_dtype": i8}
    pooled = reference.quantized_linear_average_pooling(images, *scales, window_size=2, strides=2, **options)
    return pooled.transpose(0, 2, 3, 1)


def nibbles():
    scales, zero_points = f32([[0.25, 0.5], [0.125, 1]]), np.array([[8, 15], [0, 7]], "uint4")
    return reference.quantize(np.arange(-2, 2, 0.25, f32).reshape(2, 8), scales, zero_points), scales, zero_points


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
    "matrix_multiply_integer": lambda: reference.matrix_multiply_integer(
        u8([[100, 110, 120], [90, 80, 70]]), u8([[100], [80]]), i8([[1, -4], [2, 5], [3, -6]]), i8(-3)
    ),
    "convolution_integer": lambda: reference.convolution_integer(
        np.arange(10, 150, 5, u8).reshape(1, 4, 7), u8(128), np.arange(-60, 60, 5, i8).reshape(4, 2, 3),
        i8([0, -1, 1, 2]), strides=2, start_padding=1, end_padding=1, group_count=2,
    ),
    "dynamic_quantize_linear": dynamic,
    "matrix_multiply_integer_to_float": lambda: reference.matrix_multiply_integer_to_float(
        i8([[100, -110, 120], [90, 80, -70]]), f16([[0.5], [0.25]]), i8(-5),
        i8([[1, -4], [2, 5], [3, -6]]), f16([0.1, 0.3]), None, f16([1.5, -20]),
    ),
    "average_pooling": pooling,
    "nibbles": lambda: reference.dequantize(*nibbles()),
}  # fmt: skip


def test_there_is_an_example_for_every_operator():
    operators = {
        dispatchable.operator.desc.operator
        for path in EXAMPLES.glob("*.json")
        for dispatchable in dxdispatch.load(path).dispatchables.values()
    }
    assert operators == set(PAGES)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", EXPECTED)
def test_examples(name, tmp_path):
    printed = []
    model = dxdispatch.load(EXAMPLES / f"{name}.json")
    for _ in range(2):  # each run starts from the initial values
        got = model.run(output_dir=tmp_path, show=printed.append)["output"]
        assert_same_bits(got, EXPECTED[name]().ravel())
        assert got.dtype == EXPECTED[name]().dtype
    assert printed[: len(printed) // 2] == printed[len(printed) // 2 :]


@pytest.mark.rare
def test_names_are_printed_where_the_encoding_lacks_their_letters(tmp_path):
    """For example in a Windows console with an older code page."""
    written = model(commands=[{"type": "print", "resource": "\u03bb"}])
    written["resources"]["\u03bb"] = resource("UINT8", [1, 2, 3, 4])
    (tmp_path / "model.json").write_text(json.dumps(written), encoding="utf-8")
    command = [sys.executable, "-m", "jaxdml.dxdispatch", tmp_path / "model.json"]
    run = subprocess.run(command, env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, check=False)
    assert run.stdout.splitlines() == [rb"Resource '\u03bb': 1, 2, 3, 4"], run.stderr


@pytest.mark.rare
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
    assert_same_values(np.load(tmp_path / "matrix_multiply_output.npy"), [[129, 126], [126, 132]])
    dxdispatch.load(EXAMPLES / "convolution.json").run(output_dir=tmp_path)
    assert_same_bits(np.fromfile(tmp_path / "convolution_output.dat", i8), convolution().ravel())
    assert len(list(tmp_path.iterdir())) == 2


def test_all_outputs_of_an_operator_are_written(tmp_path):
    printed = []
    resources = dxdispatch.load(EXAMPLES / "dynamic_quantize_linear.json").run(output_dir=tmp_path, show=printed.append)
    expected = reference.dynamic_quantize_linear(resources["input"])
    for name, array in zip(("quantized", "scale", "zeroPoint"), expected, strict=True):
        assert_same_bits(resources[name], array.ravel())
    assert printed[:3] == [
        "Resource 'quantized': 0, 75, 80, 87, 200, 255", "Resource 'scale': 0.02", "Resource 'zeroPoint': 75"
    ]  # fmt: skip


def test_nibbles_are_written_two_to_a_byte(tmp_path):
    printed = []
    resources = dxdispatch.load(EXAMPLES / "nibbles.json").run(output_dir=tmp_path, show=printed.append)
    values = nibbles()[0].astype(u8).ravel()
    assert printed[0] == f"Resource 'nibbles': {', '.join(map(str, values))}"
    packed = values[::2] | values[1::2] << 4
    assert_same_bits(resources["nibbles"], packed)
    assert (tmp_path / "nibbles.dat").read_bytes() == packed.tobytes()


def test_the_command_line_says_what_is_wrong(tmp_path, capsys):
    assert main([str(EXAMPLES / "quantize.json"), "--feature-level", "6_0"]) == 1
    assert "dispatchables.quantize.desc is refused: element_wise_quantize_linear: ZeroPoint" in capsys.readouterr().err
    assert main([str(tmp_path / "none.json")]) == 1
    assert "none.json: the model cannot be read: " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["model.json", "--feature-level", "7_0"])
    assert "choose from" in capsys.readouterr().err


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
    assert_same_bits(resources["new"], expected)
    assert resources["new"].dtype == expected.dtype


def test_comments_and_trailing_commas(tmp_path):
    text = json.dumps(model(resources__x=resource("UINT8", [9, 8, 7, 6])))
    text = text.replace("[9, 8, 7, 6]", '[9, // "nine", [\n 8, /* } */ 7, 6,]').replace('"d"', '"// d /* "')
    resources, printed = run(tmp_path, text[:-1] + ",}")
    assert_same_values(resources["y"], [4.5, 4, 3.5, 3])
    assert printed == ["Resource 'y': 4.5, 4, 3.5, 3"]


def test_bindings_with_offsets(tmp_path):
    """Two tensors in one buffer; the output is written after the existing data, which stay."""
    bindings = {
        "InputTensor": {"name": "all", "elementOffset": 16, "elementSizeInBytes": 1, "shape": [4]},
        "ScaleTensor": [{"name": "all"}],
        "OutputTensor": {"name": "all", "elementOffset": 2, "elementSizeInBytes": 16, "elementCount": 4},
    }
    data = [{"type": "FLOAT32", "value": v} for v in (0.5, 0, 0, 0)]
    data += [{"type": "UINT8", "value": v} for v in (1, 2, 3, 4)]
    written = model(resources__all=resource(None, data, sizeInBytes=48), commands__0__bindings=bindings)
    resources, _ = run(tmp_path, written)
    assert_same_values(resources["all"].view(f32)[8:], [0.5, 1, 1.5, 2])
    assert_same_values(resources["all"][16:20], [1, 2, 3, 4])


def test_offsets_count_elements_of_the_resource(tmp_path):
    """As in the tool: the tensor is FLOAT32, the resource UINT8, and offset 16 is byte 16."""
    scales = resource("UINT8", f32([9, 0, 0, 0, 0.5]).view(u8).tolist())
    bindings = model()["commands"][0]["bindings"] | {"ScaleTensor": {"name": "s", "elementOffset": 16}}
    resources, _ = run(tmp_path, model(resources__s=scales, commands__0__bindings=bindings))
    assert_same_values(resources["y"], [0.5, 1, 1.5, 2])
    mixed = resource(None, [{"type": "FLOAT32", "value": 0.5}], sizeInBytes=64)
    with pytest.raises(dml.DxDispatchError, match="counts elements of several types; give elementSizeInBytes"):
        run(tmp_path, model(resources__s=mixed, commands__0__bindings=bindings))


def test_commands_run_in_order(tmp_path):
    """The output of one dispatch is the scale of the next; prints show the values at that moment."""
    again = {"type": "dispatch", "dispatchable": "d", "threadGroupCount": [1, 1, 1]}
    again["bindings"] = {"InputTensor": "x", "ScaleTensor": "y", "OutputTensor": "y"}
    show = {"type": "print", "resource": "y"}
    written = model()
    written["commands"] = [show, written["commands"][0], show, again, show]
    _, printed = run(tmp_path, written)
    assert printed == ["Resource 'y': 0, 0, 0, 0", "Resource 'y': 0.5, 1, 1.5, 2", "Resource 'y': 0.5, 1, 1.5, 2"]


def test_a_resource_of_several_types_is_not_printed(tmp_path):
    mixed = resource(None, [{"type": "FLOAT32", "value": 0.5}, {"type": "UINT8", "value": 1}])
    show = {"type": "print", "resource": "m"}
    with pytest.raises(dml.DxDispatchError, match="has elements of several types, which cannot be printed; write it"):
        run(tmp_path, model(resources__m=mixed, commands__1=show))


@pytest.mark.parametrize(
    "flags", ["DML_EXECUTION_FLAG_NONE", "NONE", ["NONE", "DML_EXECUTION_FLAG_DISABLE_META_COMMANDS"]]
)
def test_execution_flags_change_nothing(tmp_path, flags):
    resources, _ = run(tmp_path, model(dispatchables__d__executionFlags=flags))
    assert_same_bits(resources["y"], run(tmp_path, model())[0]["y"])


def test_numbers_are_printed_as_the_tool_prints_them(tmp_path):
    values = resource("FLOAT32", [1234567, 1e-7, 0.1, "nan", "-inf", 100000])
    show = {"type": "print", "resource": "n", "verbose": True}
    _, printed = run(tmp_path, model(resources__n=values, commands__1=show))
    assert printed[0].splitlines() == [
        "Resource 'n':", "[0] 1.23457e+06 (0x4996B438)", "[1] 1e-07 (0x33D6BF95)", "[2] 0.1 (0x3DCCCCCD)",
        "[3] nan (0x7FC00000)", "[4] -inf (0xFF800000)", "[5] 100000 (0x47C35000)",
    ]  # fmt: skip


def test_a_pickled_model_is_read_again(tmp_path):
    """The pickle holds the path and the options; and no private path of the package."""
    loaded = dxdispatch.load(EXAMPLES / "quantize.json", feature_level=dml.FeatureLevel.LEVEL_6_2, maximum_bytes=1000)
    written = pickle.dumps(loaded)
    assert b"jaxdml._" not in written
    assert b"dxdispatch._" not in written
    again = pickle.loads(written)
    assert (again.path, again.options, list(again.resources)) == (loaded.path, loaded.options, list(loaded.resources))
    assert {d.operator for d in again.dispatchables.values()} == {d.operator for d in loaded.dispatchables.values()}
