"""`python -m jaxdml.onnx`: the table, runs, comparisons with onnxruntime, and errors of one line."""

import importlib.resources

import numpy as np
import onnx
import pytest

from helpers.compare import assert_same_bits
from jaxdml.examples import digits
from jaxdml.onnx import Tensor, _compare
from jaxdml.onnx import __main__ as program
from jaxdml.onnx._compare import random_inputs

MODEL = str(importlib.resources.files("jaxdml.examples") / "digits.onnx")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    path = tmp_path_factory.mktemp("inputs") / "inputs.npz"
    np.savez(path, images=np.asarray(digits.load().images[:8]))
    return str(path)


def test_a_model_is_shown_as_a_table(capsys):
    assert program.main([MODEL]) == 0
    head, line, *rows, gap, counted, answer, empty, given, made = capsys.readouterr().out.splitlines()
    assert head.split() == ["node", "in", "the", "file", "runs", "as", "on"]
    assert set(line) == {"-", " "}
    group = ["3", "DequantizeLinear", "+", "Conv", "+", "QuantizeLinear"]
    assert rows[1].split() == ["stem", *group, "QLinearConv", "integers"]
    assert counted == "8 of 8 convolutions and products, 11 of 13 operators run on integers"
    assert answer == "one answer: the outputs have the same bits on every processor"
    assert not gap
    assert not empty
    assert given == "inputs   images: float32[N, 1, 8, 8]"
    assert made == "outputs  logits: float32[N, 10]"


def test_outputs_are_written_by_name(tmp_path, inputs, capsys):
    path = tmp_path / "out.npz"
    arguments = [MODEL, "--run", inputs, "--output", str(path), "--numerics", "onnxruntime", "--compare"]
    assert program.main(arguments) == 0
    printed = capsys.readouterr().out.splitlines()
    shown, written, counted = printed
    assert shown == "logits: float32[8, 10]"
    assert written == f"written to {path}"
    assert counted == "logits: 0 of 80 elements differ from onnxruntime's"
    with np.load(path) as written, importlib.resources.files("jaxdml.examples").joinpath(
        "digits_onnx.npz"
    ).open("rb") as file, np.load(file) as stored:  # fmt: skip
        assert written.files == ["logits"]
        assert_same_bits(written["logits"], stored["logits"][:8])


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
    assert traced.startswith("the first value that differs is 'b', which node 'sum' (QLinearAdd) computes: ")
    assert program.main([str(path), "--run", str(inputs), "--compare", "--numerics", "onnxruntime"]) == 0


def test_without_inputs_random_ones_are_compared(capsys):
    assert program.main([MODEL, "--compare", "--numerics", "onnxruntime"]) == 0
    told, counted = capsys.readouterr().out.splitlines()
    assert told == "on random inputs, images: float32[8, 1, 8, 8]; use --run for your own inputs"
    assert counted == "logits: 0 of 80 elements differ from onnxruntime's"


def test_random_integers_are_of_the_whole_range():
    one, names, none = (Tensor(name, shape, np.dtype(dtype)) for name, shape, dtype in (
        ("one", ("N", 1000), np.int8), ("names", ("M", "N"), np.uint8), ("none", (None, None), np.int64)
    ))  # fmt: skip
    made = random_inputs((one, names, none))
    assert {name: value.shape for name, value in made.items()} == {"one": (8, 1000), "names": (8, 8), "none": (8, 1)}
    assert (made["one"].min(), made["one"].max()) == (-128, 127)
    assert made["names"].max() > 1
    assert set(made["none"].flat) <= {0, 1}


def test_inputs_and_outputs_of_any_name(tmp_path, capsys):
    path, inputs, outputs = (tmp_path / name for name in ("relu.onnx", "inputs.npz", "outputs"))
    _save(path, [onnx.helper.make_node("Relu", ["names"], ["file"])], {}, x="names", y="file")
    np.savez(inputs, names=np.float32([-1, 2]))
    assert program.main([str(path), "--run", str(inputs), "--output", str(outputs), "--compare"]) == 0
    assert f"written to {outputs}\n" in capsys.readouterr().out
    with np.load(outputs) as written:
        assert_same_bits(written["file"], np.float32([0, 2]))


def test_a_difference_of_onnxruntimes_int8_is_explained(tmp_path, capsys, monkeypatch):
    """onnxruntime's option for int8 is of x86; here it is asked for, and gives what jaxdml gives."""
    path = tmp_path / "relu.onnx"
    _save(path, [onnx.helper.make_node("Relu", ["x"], ["y"])], {})
    run, asked = _compare._onnxruntime, []

    def other(*arguments, with_int8=False):
        asked.append(with_int8)
        found = run(*arguments, with_int8=with_int8)
        return found if with_int8 else {name: value + 1 for name, value in found.items()}

    monkeypatch.setattr(_compare, "_onnxruntime", other)
    assert program.main([str(path), "--compare"]) == 1
    assert asked == [False, True, False]
    line = (
        "onnxruntime computes int8 partly in floats; 0 elements differ with session.qdqisint8allowed=1 in its options"
    )
    assert line in capsys.readouterr().out.splitlines()


def _save(path, nodes, constants, x="x", y="y"):
    graph = onnx.helper.make_graph(
        nodes, "graph", [onnx.helper.make_tensor_value_info(x, 1, ["N"])],
        [onnx.helper.make_tensor_value_info(y, 1, ["N"])],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    path.write_bytes(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def test_errors_are_of_one_voice(tmp_path, inputs, capsys):
    text = tmp_path / "text.npz"
    text.write_text("no arrays", encoding="utf-8")
    single = tmp_path / "single.npy"
    np.save(single, np.zeros(3))
    other = tmp_path / "other.npz"
    np.savez(other, pictures=np.zeros((1, 1, 8, 8), np.float32))
    for arguments, said in (
        ([str(tmp_path / "none.onnx")], "the model cannot be read: "),
        ([inputs], "the model is not an ONNX file"),
        ([MODEL, "--run", str(text)], "text.npz cannot be read as a .npz of inputs keyed by name"),
        ([MODEL, "--run", str(single)], "single.npy is a single array, expected a .npz of inputs keyed by name"),
        (
            [MODEL, "--run", str(other)],
            "apply lacks ['images'] and was given ['pictures'], which the model does not have",
        ),
        ([MODEL, "--run", str(tmp_path / "none.npz")], "No such file or directory"),
        (["none", "--run", inputs, "--output", str(tmp_path / "no folder" / "out.npz")], "no folder"),
    ):
        assert program.main(arguments) == 1
        error = capsys.readouterr().err
        assert error.startswith("python -m jaxdml.onnx: ")
        assert said in error
        assert "pickle" not in error
        assert len(error.splitlines()) == 1
    with pytest.raises(SystemExit):
        program.main([MODEL, "--output", "out.npz"])
    assert "--output needs --run: without --run there is nothing to write" in capsys.readouterr().err
