"""The benchmarks check bits before they time, and say which path was taken. Nothing here looks at a time."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import cases, network  # noqa: E402
from benchmarks.__main__ import measure, path_of  # noqa: E402
from benchmarks.timing import interleaved  # noqa: E402
from jaxdml._arithmetic import int32, prepared  # noqa: E402

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="benchmarks compare with ONNX Runtime on a CPU")


def test_a_run_writes_what_it_measured(tmp_path):
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "--only",
        "matrix_multiply 8 1024",
        "--seconds",
        "0.1",
        "--output",
        tmp_path,
    ]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "1 YNNPACK dot" in printed
    results = json.loads((tmp_path / "selected.json").read_text())
    (row,) = results["cases"]
    assert {cases.PREPARED, cases.PLAIN, cases.ORT, cases.ORT_U8, cases.LAX, cases.FLOAT} <= set(row["contenders"])
    for name in (cases.PREPARED, cases.PLAIN, cases.ORT_U8):
        assert row["contenders"][name]["differing"] == 0
        assert row["contenders"][name]["runs"] >= 3
    assert (tmp_path / "selected.png").read_bytes().startswith(b"\x89PNG")


def test_a_label_that_fits_nothing_is_an_error():
    command = [sys.executable, "-m", "benchmarks", "--only", "nothing"]
    run = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert run.returncode == 2
    assert "no case has 'nothing' in its label" in run.stderr


def test_wrong_bits_are_not_timed():
    case = cases.matrix_multiply(2, 8, 8, peers=False)
    right = case.expected()
    measure(case, seconds=0)
    case.expected = lambda: right ^ np.uint8(1)
    with pytest.raises(SystemExit, match="does not have the bits"):
        measure(case, seconds=0)


def test_the_network_has_the_shape_it_says():
    made = network.layers(np.random.default_rng(0))
    assert len(made) == 21
    sizes = {"stem": 112, "0": 56, "1": 28, "2": 14, "3": 7, "c": 7}
    work = sum(layer.weights.size * sizes["stem" if name == "stem" else name[0]] ** 2 for name, layer in made.items())
    assert work == network.MULTIPLY_ADDS


def test_paths_are_told_apart():
    x, f = np.zeros((1, 64, 14, 14), np.int8), np.zeros((1, 64, 64, 3, 3), np.int8)
    f = prepared.PreparedFilter(f, None, np.dtype(np.int8), "OIHW")
    slow = jax.jit(lambda x, f: int32.conv(x, f, (1, 1), (1, 1))).lower(x, f).compile()
    assert path_of(slow.as_text()) == "1 convolution in a loop"
    function, arguments = cases.convolution(1, 64, 14, 64, 3, peers=False).jitted[cases.PREPARED]
    assert path_of(jax.jit(function).lower(*arguments).compile().as_text()) == "1 YNNPACK convolution"


def test_every_call_is_timed_three_times_at_least():
    calls = []
    samples = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, seconds=0)
    assert {name: len(times) for name, times in samples.items()} == {"a": 3, "b": 3}
    assert calls.count("a") == calls.count("b") == 6
