"""`python -m jaxdml.onnx`: the table, runs, comparisons with onnxruntime, and errors of one line."""

import importlib.resources

import numpy as np
import onnx
import pytest

from jaxdml.examples import digits
from jaxdml.onnx import __main__ as program

MODEL = str(importlib.resources.files("jaxdml.examples") / "digits.onnx")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    path = tmp_path_factory.mktemp("inputs") / "inputs.npz"
    np.savez(path, images=np.asarray(digits.load().images[:8]))
    return str(path)


def test_a_model_is_shown_as_a_table(capsys):
    assert program.main([MODEL]) == 0
    head, line, *rows, empty, given, made = capsys.readouterr().out.splitlines()
    assert head.split() == ["node", "in", "the", "file", "runs", "as"]
    assert set(line) == {"-", " "}
    assert rows[1].split() == ["stem", "3", "DequantizeLinear", "+", "Conv", "+", "QuantizeLinear", "QLinearConv"]
    assert not empty
    assert given == "inputs   images: float32[N, 1, 8, 8]"
    assert made == "outputs  logits: float32[N, 10]"


def test_outputs_are_written_by_name(tmp_path, inputs, capsys):
    path = tmp_path / "out.npz"
    arguments = [MODEL, "--run", inputs, "--output", str(path), "--numerics", "onnxruntime", "--compare"]
    assert program.main(arguments) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2:] == ["logits: float32[8, 10]", "logits: 0 of 80 elements differ from onnxruntime's"]
    with np.load(path) as written, importlib.resources.files("jaxdml.examples").joinpath(
        "digits_onnx.npz"
    ).open("rb") as file, np.load(file) as stored:  # fmt: skip
        assert written.files == ["logits"]
        np.testing.assert_array_equal(written["logits"], stored["logits"][:8])


def test_a_difference_is_traced_to_its_first_value(tmp_path, capsys):
    """DirectML's sum rounds otherwise than onnxruntime's, at ties that these scales make."""
    path = tmp_path / "sum.onnx"
    nodes = [
        onnx.helper.make_node("QuantizeLinear", ["x", "s", "z"], ["a"], "to_integers"),
        onnx.helper.make_node(
            "QLinearAdd", ["a", "s", "z", "a", "t", "z", "u", "z"], ["b"], "sum", domain="com.microsoft"
        ),
        onnx.helper.make_node("DequantizeLinear", ["b", "u", "z"], ["y"], "to_floats"),
    ]  # fmt: skip
    values = {"s": np.float32(0.02), "t": np.float32(0.01), "u": np.float32(0.02), "z": np.uint8(128)}
    _save(path, nodes, values)
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, x=np.linspace(-2, 2, 100, dtype=np.float32))
    assert program.main([str(path), "--run", str(inputs), "--compare"]) == 1
    *_, counted, traced = capsys.readouterr().out.splitlines()
    assert counted.startswith("y: ")
    assert "of 100 elements differ from onnxruntime's, by at most 0.02" in counted
    assert traced.startswith("values part at 'b', which node 'sum' (QLinearAdd) makes: ")
    assert program.main([str(path), "--run", str(inputs), "--compare", "--numerics", "onnxruntime"]) == 0


def test_without_inputs_random_ones_are_compared(capsys):
    assert program.main([MODEL, "--compare", "--numerics", "onnxruntime"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "logits: 0 of 10 elements differ from onnxruntime's"


def _save(path, nodes, constants):
    graph = onnx.helper.make_graph(
        nodes, "graph", [onnx.helper.make_tensor_value_info("x", 1, ["N"])],
        [onnx.helper.make_tensor_value_info("y", 1, ["N"])],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    path.write_bytes(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def test_errors_are_of_one_voice(tmp_path, inputs, capsys):
    text = tmp_path / "text.npz"
    text.write_text("no arrays")
    single = tmp_path / "single.npy"
    np.save(single, np.zeros(3))
    other = tmp_path / "other.npz"
    np.savez(other, pictures=np.zeros((1, 1, 8, 8), np.float32))
    for arguments, said in (
        ([str(tmp_path / "none.onnx")], "the model cannot be read: "),
        ([inputs], "the model is no ONNX file"),
        ([MODEL, "--run", str(text)], "text.npz cannot be read as a .npz of inputs by name"),
        ([MODEL, "--run", str(single)], "single.npy is a single array, expected a .npz of inputs by name"),
        ([MODEL, "--run", str(other)], "apply lacks ['images']; its inputs are images: float32[N, 1, 8, 8]"),
        ([MODEL, "--run", inputs, "--output", str(tmp_path / "no folder" / "out.npz")], "No such file or directory"),
    ):
        assert program.main(arguments) == 1
        error = capsys.readouterr().err
        assert error.startswith("python -m jaxdml.onnx: ")
        assert said in error
        assert len(error.splitlines()) == 1
    with pytest.raises(SystemExit):
        program.main([MODEL, "--output", "out.npz"])
    assert "--output needs --run: there is nothing to write" in capsys.readouterr().err
