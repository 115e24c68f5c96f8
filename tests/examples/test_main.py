"""`python -m jaxdml` succeeds, prints its measurements, and fails if something is wrong."""

import importlib.resources
import io
import re
import struct
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml
from helpers.compare import assert_same_bits
from jaxdml import __main__ as program
from jaxdml import reference
from jaxdml.examples import digits

OPERATORS = {digits.QUANTIZE, digits.CONVOLUTION, digits.ADD, digits.MATRIX_MULTIPLY, digits.DEQUANTIZE}


def parsed(text):
    """The printed percentages, images per second, and {operator: (calls, outputs, differing)}."""
    of_networks, of_ptq = text.split("jaxdml.ptq.quantize")
    found = re.findall(r"^(float|int8) accuracy +([\d.]+) %$", of_networks, re.M)
    found += [("ptq", re.search(r"^int8 accuracy +([\d.]+) %$", of_ptq, re.M)[1])]
    percent = {name: float(value) for name, value in found}
    speed = [float(each.replace(",", "")) for each in re.findall(r"([\d,]+) images/s", text)]
    return percent, speed, counts_of(text)


def counts_of(text):
    rows = re.findall(r"^(\w+_\w+) +(\d+) +([\d,]+) +([\d,]+)$", text, re.M)
    return {name: tuple(int(value.replace(",", "")) for value in values) for name, *values in rows}


@pytest.mark.rare
def test_everything_is_right(capsys):
    assert program.main([]) == 0
    captured = capsys.readouterr()
    percent, speed, counts = parsed(captured.out)
    assert percent["int8"] >= 95
    assert percent["int8"] >= percent["float"] - 1
    assert percent["ptq"] >= percent["float"] - 1
    assert len(speed) == 2
    assert min(speed) > 0
    assert float(re.search(r"logits are ([\d.]+) dB", captured.out)[1]) > 35
    assert counts.keys() == OPERATORS
    assert all(outputs > 0 and differing == 0 for _, outputs, differing in counts.values())
    assert sum(calls for calls, _, _ in counts.values()) == len(digits.NETWORK)
    assert "OK" in captured.out
    assert captured.err == ""


@pytest.mark.rare
def test_accuracies_are_those_of_the_networks(capsys):
    program.main([])
    percent, _, _ = parsed(capsys.readouterr().out)
    held_out = digits.load()
    for name, network, parameters in [
        ("float", digits.float_network, held_out.float_parameters),
        ("int8", digits.int8_network, held_out.parameters),
    ]:
        answers = np.asarray(network(parameters, held_out.images)).argmax(axis=1)
        assert percent[name] == round(100 * np.mean(answers == np.asarray(held_out.labels)), 2)


@pytest.mark.rare
def test_a_corrupted_network_fails(tmp_path, capsys, monkeypatch):
    """The parts that do not read the int8 parameters, and would be right, are left out."""
    monkeypatch.setattr(program, "_compare_onnx", lambda: 0)
    monkeypatch.setattr(program, "_quantize", lambda *_: 100.0)
    held_out = digits.load()
    held_out.parameters["down.filter"] = held_out.parameters["down.filter"][::-1]
    digits.save(tmp_path / "corrupted.npz", held_out)
    assert program.main([str(tmp_path / "corrupted.npz")]) == 1
    captured = capsys.readouterr()
    assert "int8 accuracy is" in captured.err
    assert "points to float" in captured.err
    assert "OK" not in captured.out
    counts = counts_of(captured.out)
    assert counts.keys() == OPERATORS
    assert all(differing == 0 for _, _, differing in counts.values())


@pytest.mark.rare
@pytest.mark.parametrize("operator", sorted(OPERATORS))
def test_one_wrong_bit_fails(operator, monkeypatch, capsys):
    right = getattr(reference, operator)

    def wrong(*arguments, **options):
        output = right(*arguments, **options).copy()
        output.view(np.uint8).flat[7] ^= 1
        return output

    monkeypatch.setattr(reference, operator, wrong)
    assert program.main([]) == 1
    captured = capsys.readouterr()
    counts = parsed(captured.out)[2]
    assert counts[operator][2] == counts[operator][0]  # one output of each call
    assert sum(differing for _, _, differing in counts.values()) == counts[operator][2]
    assert "differ from NumPy" in captured.err
    assert "OK" not in captured.out


@pytest.mark.rare
def test_logits_that_are_not_the_last_layers_output_fail(monkeypatch, capsys):
    right = digits.int8_network
    monkeypatch.setattr(digits, "int8_network", lambda parameters, images: right(parameters, images) + 1)
    assert program.main([]) == 1
    assert "the logits change if the network also returns the outputs of its layers" in capsys.readouterr().err


def test_minus_zero_differs_and_nan_does_not():
    zeros = np.array([0.0, np.nan, 1.0], np.float32)
    assert program._count_differing(zeros, zeros.copy()) == 0
    assert program._count_differing(zeros, np.array([-0.0, np.nan, 1.0], np.float32)) == 1
    assert program._count_differing(zeros, zeros.astype(np.float64)) == 3


def test_a_missing_file_is_an_error_without_traceback(tmp_path, capsys):
    with pytest.raises(SystemExit) as error:
        program.main([str(tmp_path / "missing.npz")])
    assert error.value.code == 2
    assert "missing.npz" in capsys.readouterr().err


@pytest.mark.rare
def test_as_a_command():
    root = Path(jaxdml.__file__).parents[1]
    done = subprocess.run([sys.executable, "-m", "jaxdml"], cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert all(differing == 0 for _, _, differing in parsed(done.stdout)[2].values())


def test_packaged_file_is_small():
    packaged = importlib.resources.files("jaxdml.examples") / "digits.npz"
    assert len(packaged.read_bytes()) < 200_000


def test_file_is_the_same_bytes_when_saved_again(tmp_path):
    packaged = importlib.resources.files("jaxdml.examples") / "digits.npz"
    digits.save(tmp_path / "first.npz", digits.load())
    digits.save(tmp_path / "again.npz", digits.load(tmp_path / "first.npz"))
    assert (tmp_path / "first.npz").read_bytes() == (tmp_path / "again.npz").read_bytes()
    with packaged.open("rb") as stream, np.load(stream) as shipped, np.load(tmp_path / "again.npz") as saved:
        assert shipped.files == saved.files
        assert all(np.array_equal(shipped[name], saved[name]) for name in shipped.files)


def test_the_network_exercises_what_it_claims():
    calls = digits.int8_calls(*[digits.load()[i] for i in (2, 0)])
    assert {call.layer.operator for call in calls} == OPERATORS
    convolutions = [call for call in calls if call.layer.operator == digits.CONVOLUTION]
    channels = {call.layer.name: call.arguments[0].shape[1] for call in convolutions}
    groups = {call.layer.name: call.layer.group_count for call in convolutions}
    assert any(groups[name] == channels[name] > 1 for name in groups)
    assert any(1 < groups[name] < channels[name] for name in groups)
    assert any(call.layer.stride == 2 and call.layer.padding[0] != call.layer.padding[1] for call in convolutions)
    assert {call.arguments[4].ndim for call in convolutions} == {0, 1}  # filter scales: per tensor, per channel
    padded = [call for call in convolutions if call.layer.padding != (0, 0)]
    assert any(int(call.arguments[2]) != 0 for call in padded)  # padding with a zero point other than 0
    assert {call.output.dtype for call in calls} == {jnp.dtype(t) for t in (jnp.uint8, jnp.int8, jnp.float32)}


def test_reference_network_gives_the_same_logits():
    images, _, parameters, _ = digits.load()
    few = images[:20]
    numpy_parameters = {name: np.asarray(value) for name, value in parameters.items()}
    expected = digits.int8_network(numpy_parameters, np.asarray(few), reference)
    actual = np.asarray(digits.int8_network(parameters, few))
    assert_same_bits(actual.view(np.uint32), expected.view(np.uint32))


def saved(path, **changes):
    """The packaged network with other parameters."""
    own = digits.load()
    digits.save(path, own._replace(parameters=own.parameters | changes))


def written(save, *arrays, **named):
    """The bytes that NumPy saves."""
    stream = io.BytesIO()
    save(stream, *arrays, **named)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (lambda path: path.write_bytes(written(np.save, np.ones(3))), "it is not a .npz file"),
        (lambda path: path.write_text("hello", encoding="utf-8"), "it is not a .npz file"),
        (lambda path: path.write_bytes(b""), "it is not a .npz file"),
        (lambda path: path.write_bytes(b"PK\x03\x04garbage"), "File is not a zip file"),
        (lambda path: path.write_bytes(written(np.savez, a=1)), "it has no array images; notebooks/02_digits_network"),
        (lambda path: saved(path, **{"stem.filter": np.zeros((3, 1, 3, 3), np.int8)}),
         "its array int8/stem.filter is int8[3, 1, 3, 3], expected int8[16, 1, 3, 3]"),
        (lambda path: saved(path, **{"stem.filter": np.zeros((16, 1, 3, 3), np.uint8)}), "is uint8[16, 1, 3, 3]"),
    ],
)  # fmt: skip
def test_a_foreign_file_is_one_line_that_says_what_is_wrong(write, text, tmp_path, capsys):
    write(tmp_path / "network.npz")
    with pytest.raises(SystemExit) as error:
        program.main([str(tmp_path / "network.npz")])
    assert error.value.code == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("python -m jaxdml: error: cannot read ")
    assert text in line


@pytest.mark.parametrize(("central", "local", "value", "text"), [
    (8, 6, 1, "is encrypted, password required"), (6, None, 200, "zip file version 20.0"),
])  # fmt: skip
def test_an_archive_that_zipfile_does_not_read(central, local, value, text, tmp_path, capsys):
    path = tmp_path / "other.npz"
    digits.save(path, digits.load())
    data = bytearray(path.read_bytes())
    for header, offset in ((b"PK\1\2", central), (b"PK\3\4", local)):
        for found in re.finditer(re.escape(header), bytes(data)) if offset else ():
            struct.pack_into("<H", data, found.start() + offset, value)
    path.write_bytes(data)
    with pytest.raises(SystemExit):
        program.main([str(path)])
    assert f"cannot read {path}: " in (printed := capsys.readouterr().err)
    assert text in printed
