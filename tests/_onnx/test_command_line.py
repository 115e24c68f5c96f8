"""`python -m jaxdml.onnx`: the table, runs, comparisons with onnxruntime, and errors of one line."""

import importlib.resources

import numpy as np
import onnx
import pytest

from helpers.compare import assert_same_bits
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
    shown, written, counted, gap, head, *_ = printed
    assert shown == "logits: float32[8, 10]"
    assert written == f"written to {path}"
    assert counted == "logits: 0 of 80 elements differ from onnxruntime's"
    assert not gap
    assert head.split() == ["node", "computes", "own", "so", "far", "largest", "step", "reason"]
    with np.load(path) as written, importlib.resources.files("jaxdml.examples").joinpath(
        "digits_onnx.npz"
    ).open("rb") as file, np.load(file) as stored:  # fmt: skip
        assert written.files == ["logits"]
        assert_same_bits(written["logits"], stored["logits"][:8])


def test_a_comparison_is_printed_and_written_as_a_page(tmp_path, capsys):
    """DirectML's sum rounds ties, which these scales produce, differently from onnxruntime's."""
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
    inputs, page = tmp_path / "inputs.npz", tmp_path / "page.html"
    np.savez(inputs, x=np.linspace(-2, 2, 100, dtype=np.float32))
    assert program.main([str(path), "--run", str(inputs), "--compare", "--html", str(page)]) == 1
    _, counted, _, _, _, first, *_, written = capsys.readouterr().out.splitlines()
    assert counted.startswith("y: ")
    assert counted.endswith(" of 100 elements differ from onnxruntime's, by at most 0.02")
    assert first.startswith("sum          QLinearAdd  ")
    assert written == f"written to {page}"
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "<title>sum.onnx and onnxruntime</title>" in text
    assert "<strong>QLinearAdd</strong>" in text
    assert program.main([str(path), "--run", str(inputs), "--compare", "--numerics", "onnxruntime"]) == 0


def test_without_inputs_random_ones_are_compared(capsys):
    assert program.main([MODEL, "--compare", "--numerics", "onnxruntime"]) == 0
    counted, *_, told, _, more = capsys.readouterr().out.splitlines()
    assert counted == "logits: 0 of 80 elements differ from onnxruntime's"
    assert told == "on random inputs, images: float32[8, 1, 8, 8]"
    assert more == "use --run for your own inputs"


def test_inputs_and_outputs_of_any_name(tmp_path, capsys):
    path, inputs, outputs = (tmp_path / name for name in ("relu.onnx", "inputs.npz", "outputs"))
    _save(path, [onnx.helper.make_node("Relu", ["names"], ["file"])], {}, x="names", y="file")
    np.savez(inputs, names=np.float32([-1, 2]))
    assert program.main([str(path), "--run", str(inputs), "--output", str(outputs), "--compare"]) == 0
    assert f"written to {outputs}\n" in capsys.readouterr().out
    with np.load(outputs) as written:
        assert_same_bits(written["file"], np.float32([0, 2]))


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
        ([MODEL, "--compare", "--html", str(tmp_path / "no folder" / "page.html")], "--html: there is no folder"),
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
    with pytest.raises(SystemExit):
        program.main([MODEL, "--html", "page.html"])
    assert "--html needs --compare: without --compare there is nothing to write" in capsys.readouterr().err
