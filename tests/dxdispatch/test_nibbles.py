"""Resources of INT4 and UINT4, two elements to a byte: how models fill, bind, print and write them."""

import numpy as np
import pytest

import jaxdml as dml
from dxdispatch.models import model, resource, run
from helpers.compare import assert_same_bits

f32, u8 = np.float32, np.uint8
INITIAL = "resources.x.initialValues"


def packed(*values):
    """The first of two elements in the low bits of their byte."""
    values = [*values, *[0] * (len(values) % 2)]
    return u8([low & 15 | (high & 15) << 4 for low, high in zip(values[::2], values[1::2], strict=True)])


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (resource("UINT4", [1, 15, 0, 8]), [0xF1, 0x80]),
        (resource("DML_TENSOR_DATA_TYPE_UINT4", [7]), [0x07]),
        (resource("INT4", [-1, -8, 7, 3, -2]), [0x8F, 0x37, 0x0E]),
        (resource("UINT4", {"valueCount": 5, "value": 9}), [0x99, 0x99, 0x09]),
        (resource("INT4", {"valueCount": 2, "value": -3}), [0xDD]),
        (resource("UINT4", {"valueCount": 4, "valueStart": 3, "valueDelta": 4}), [0x73, 0xFB]),
        (resource("INT4", {"valueCount": 3, "valueStart": 7, "valueDelta": -7}), [0x07, 0x09]),
        (resource("UINT4", {"sourcePath": "raw.bin"}), [0x21, 0x43, 0x65]),
        (resource("INT4", {"sourcePath": "raw.bin"}), [0x21, 0x43, 0x65]),
        (resource("UINT4", {"sourcePath": "bytes.npy"}), [0x10, 0xFE]),
        (resource("INT4", {"sourcePath": "bytes.npy"}), [0x10, 0xFE]),
        (resource("UINT4", [1, 2, 3], sizeInBytes=5), [0x21, 0x03, 0, 0, 0]),
        (resource("UINT4", [1, 2], initialValuesOffsetInBytes=2), [0, 0, 0x21]),
    ],
    ids=str,
)
def test_initial_values(written, expected, tmp_path):
    u8([0x21, 0x43, 0x65]).tofile(tmp_path / "raw.bin")
    np.save(tmp_path / "bytes.npy", u8([[0x10], [0xFE]]))
    resources, _ = run(tmp_path, model(resources__new=written))
    assert_same_bits(resources["new"], u8(expected))


@pytest.mark.parametrize(
    ("written", "path", "text"),
    [
        (resource("UINT4", [1, 16]), f"{INITIAL}[1]", "is 16, expected an integer from 0 to 15"),
        (resource("UINT4", [-1]), f"{INITIAL}[0]", "is -1, expected an integer from 0 to 15"),
        (resource("INT4", [8]), f"{INITIAL}[0]", "is 8, expected an integer from -8 to 7"),
        (resource("INT4", [0, 0, -9]), f"{INITIAL}[2]", "is -9, expected an integer from -8 to 7"),
        (resource("INT4", [1.0]), f"{INITIAL}[0]", "is 1.0, expected an integer from -8 to 7"),
        (resource("UINT4", ["nan"]), f"{INITIAL}[0]", "is 'nan', expected an integer from 0 to 15"),
        (resource("UINT4", {"valueCount": 2, "value": 16}), f"{INITIAL}.value", "is 16, expected an integer from 0"),
        (resource("UINT4", {"valueCount": 0, "value": 1}), f"{INITIAL}.valueCount", "is 0, expected an integer from 1"),
        (resource("UINT4", {"valueCount": 4, "valueStart": 4, "valueDelta": 4}), INITIAL,
         "ends at 16, which UINT4 cannot hold"),
        (resource("INT4", {"valueCount": 4, "valueStart": -7, "valueDelta": 7}), INITIAL,
         "ends at 14, which INT4 cannot hold"),
        (resource("UINT4", {"valueCount": 2, "valueStart": 4, "valueDelta": -1, "value": 1}), INITIAL, "unknown field"),
        (resource("UINT4", [1, 2, 3], sizeInBytes=1), "resources.x.sizeInBytes", "too small for 2 bytes of initialVa"),
        (resource(None, [{"type": "UINT4", "value": 1}]), f"{INITIAL}[0].type", "is 'UINT4', expected DML_TENSOR_DAT"),
        (resource("UINT4", {"sourcePath": "words.npy"}), f"{INITIAL}.sourcePath",
         "has type UINT16, but initialValuesDataType is UINT4"),
        (resource("UINT4", {"sourcePath": "signed.npy"}), f"{INITIAL}.sourcePath",
         "has type INT8, but initialValuesDataType is UINT4"),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_initial_values(written, path, text, tmp_path):
    np.save(tmp_path / "words.npy", np.uint16([1]))
    np.save(tmp_path / "signed.npy", np.int8([1]))
    with pytest.raises(dml.DxDispatchError) as error:
        run(tmp_path, model(resources__x=written))
    assert error.value.path == path
    assert text in str(error.value)


def test_printed_as_numbers(tmp_path):
    """Both elements of each byte, the second of the last byte, too."""
    values = [-8, -1, 0, 7, 3]
    show = [{"type": "print", "resource": name, "verbose": v} for name in ("i", "u") for v in (False, True)]
    written = model(
        resources__i=resource("INT4", values), resources__u=resource("UINT4", [v & 15 for v in values], sizeInBytes=9)
    )
    written["commands"] = show
    _, printed = run(tmp_path, written)
    digits = ["(0x8)", "(0xF)", "(0x0)", "(0x7)", "(0x3)", "(0x0)"]
    for name, shown, texts in (("i", [*values, 0], printed[:2]), ("u", [8, 15, 0, 7, 3, 0], printed[2:])):
        assert texts[0] == f"Resource '{name}': {', '.join(map(str, shown))}"
        lines = [f"[{i}] {value} {bits}" for i, (value, bits) in enumerate(zip(shown, digits, strict=True))]
        assert texts[1].splitlines() == [f"Resource '{name}':", *lines]


def test_written_as_bytes(tmp_path):
    """Raw or .npy; dimensions count bytes, and the files include bytes that were not initialised."""
    written = model(resources__x=resource("INT4", [-1, 2, 3], sizeInBytes=4))
    targets = ({"targetPath": "x.dat"}, {"targetPath": "x.npy"}, {"targetPath": "y.npy", "dimensions": [2, 2]})
    written["commands"] = [{"type": "writeFile", "resource": "x", **target} for target in targets]
    run(tmp_path, written)
    expected = u8([0x2F, 0x03, 0, 0])
    assert (tmp_path / "output" / "x.dat").read_bytes() == expected.tobytes()
    assert_same_bits(np.load(tmp_path / "output" / "x.npy"), expected)
    assert_same_bits(np.load(tmp_path / "output" / "y.npy"), expected.reshape(2, 2))
    written["commands"] = [{"type": "writeFile", "resource": "x", "targetPath": "z.npy", "dimensions": [8]}]
    with pytest.raises(dml.DxDispatchError, match=r"is \[8\], expected dimensions of 4 elements"):
        run(tmp_path, written)


def there_and_back(data_type, count, **changes):
    """input / 0.5 + zero point in 4 bits, and back to floats."""
    tensors = [{"DataType": "FLOAT32", "Sizes": [1]}, {"DataType": data_type, "Sizes": [1]}]
    floats, integers = ({"DataType": kind, "Sizes": [count]} for kind in ("FLOAT32", data_type))
    options = {
        "QuantizationType": "SCALE_ZERO_POINT",
        "QuantizationTensorCount": 2,
        "QuantizationTensors": tensors,
    }
    bound = {"QuantizationTensors": ["s", "z"]}
    written = {
        "resources": {
            "x": resource("FLOAT32", {"valueCount": count, "valueStart": -6, "valueDelta": 1.25}),
            "s": resource("FLOAT32", [0.5]),
            "z": resource(data_type, [3]),
            "q": resource(data_type, {"valueCount": count, "value": 5}, sizeInBytes=16),
            "y": resource("FLOAT32", {"valueCount": count, "value": 0}),
        },
        "dispatchables": {
            "to": {"type": "QUANTIZE", "desc": {"InputTensor": floats, **options, "OutputTensor": integers}},
            "back": {"type": "DEQUANTIZE", "desc": {"InputTensor": integers, **options, "OutputTensor": floats}},
        },
        "commands": [
            {"type": "dispatch", "dispatchable": "to", "bindings": {"InputTensor": "x", **bound, "OutputTensor": "q"}},
            {
                "type": "dispatch",
                "dispatchable": "back",
                "bindings": {"InputTensor": "q", **bound, "OutputTensor": "y"},
            },
            {"type": "print", "resource": "q"},
        ],
    }
    for place, value in changes.items():
        written["resources"][place] = value
    return written


@pytest.mark.parametrize("count", [10, 9])
@pytest.mark.parametrize(("data_type", "low", "high"), [("UINT4", 0, 15), ("INT4", -8, 7)])
def test_there_and_back(data_type, low, high, count, tmp_path):
    """For an odd number, the last half of a byte stays as it was."""
    resources, printed = run(tmp_path, there_and_back(data_type, count))
    x = np.arange(count, dtype=f32) * f32(1.25) - 6
    q = np.clip(np.rint(x / f32(0.5)) + 3, low, high).astype(int)
    assert_same_bits(resources["y"], ((q - 3) * 0.5).astype(f32))
    rest = [0] * (count % 2)  # of the byte whose first half the initial values filled
    assert_same_bits(resources["q"][: (count + 1) // 2], packed(*q, *rest))
    assert not resources["q"][(count + 1) // 2 :].any()
    assert printed == [f"Resource 'q': {', '.join(map(str, [*q, *rest]))}"]


def test_bindings_at_offsets(tmp_path):
    """The offset counts elements of the resource, half a byte each; 32 of them are 16 bytes."""
    for offset in ({"elementOffset": 32}, {"elementOffset": 1, "elementSizeInBytes": 16}):
        written = there_and_back("UINT4", 8, z=resource("UINT4", [0] * 32 + [9], sizeInBytes=20))
        for command in written["commands"][:2]:
            command["bindings"]["QuantizationTensors"] = ["s", {"name": "z", **offset}]
        resources, _ = run(tmp_path, written)
        x = np.arange(8, dtype=f32) * f32(1.25) - 6
        assert_same_bits(resources["q"][:4], packed(*np.clip(np.rint(x / f32(0.5)) + 9, 0, 15).astype(int)))


@pytest.mark.parametrize("offset", [1, 31, 33])
def test_no_binding_begins_in_a_byte_or_between_16(offset, tmp_path):
    written = there_and_back("UINT4", 8, z=resource("UINT4", [0] * 32 + [9], sizeInBytes=20))
    written["commands"][0]["bindings"]["QuantizationTensors"] = ["s", {"name": "z", "elementOffset": offset}]
    with pytest.raises(dml.DxDispatchError) as error:
        run(tmp_path, written)
    assert error.value.path.startswith("commands[0].bindings.QuantizationTensors[1]")


WRONG = (
    ("x", "commands[0].bindings.QuantizationTensors", "is 'x', expected a list"),
    (["s"], "commands[0].bindings.QuantizationTensors", "is ['s'], expected 2 resources"),
    (["s", "z", "z"], "commands[0].bindings.QuantizationTensors", "expected 2 resources"),
    (["s", "w"], "commands[0].bindings.QuantizationTensors[1]", "is 'w', expected x, s, z, q or y"),
    (["s", None], "commands[0].bindings.QuantizationTensors[1]", "is None, expected"),
)


def test_wrong_bindings_of_several_tensors(tmp_path):
    for bound, path, text in WRONG:
        written = there_and_back("UINT4", 8)
        written["commands"][0]["bindings"]["QuantizationTensors"] = bound
        with pytest.raises(dml.DxDispatchError) as error:
            run(tmp_path, written)
        assert error.value.path == path
        assert text in str(error.value)


def test_a_wrong_desc_says_which_of_the_tensors(tmp_path):
    written = there_and_back("UINT4", 8)
    written["dispatchables"]["to"]["desc"]["QuantizationTensors"][1]["Sizes"] = [3]
    with pytest.raises(dml.DxDispatchError, match="which do not divide InputTensor's") as error:
        run(tmp_path, written)
    assert error.value.path == "dispatchables.to.desc.QuantizationTensors[1]"


def test_a_buffer_that_is_too_small(tmp_path):
    """9 elements need 5 bytes, which are 8 in whole words."""
    written = there_and_back("UINT4", 9, q=resource("UINT4", [0] * 8))
    with pytest.raises(dml.DxDispatchError, match="has 4 bytes from offset 0 on, the desc needs 8"):
        run(tmp_path, written)
