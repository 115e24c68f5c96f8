"""The benchmarks check bits before they time, and say which path was taken. Nothing here looks at a time."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxdml as dml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import device_times, kernel_overhead, network, shapes, suite, tables  # noqa: E402
from benchmarks.__main__ import run  # noqa: E402
from benchmarks.case import ORT, ORT_U8, PLAIN, PREPARED, XLA  # noqa: E402
from benchmarks.contractions import convolution, matrix_multiply  # noqa: E402
from benchmarks.elementwise import quantize  # noqa: E402
from benchmarks.lax_peer import BFLOAT, FLOAT, LAX  # noqa: E402
from benchmarks.measure import WrongBitsError, measure, path_of  # noqa: E402
from benchmarks.timing import interleaved  # noqa: E402
from helpers.native_calls import needs_native  # noqa: E402
from jaxdml._arithmetic import int32  # noqa: E402
from jaxdml._arithmetic.layouts import Filter  # noqa: E402

HAS_NATIVE = dml.kernels().startswith("native")
pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="benchmarks compare with ONNX Runtime on a CPU")


@pytest.mark.rare
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
    results = json.loads((tmp_path / "selected.json").read_text(encoding="utf-8"))
    (row,) = results["cases"]
    ours = {PREPARED, PLAIN, XLA} if HAS_NATIVE else {PREPARED, PLAIN}
    assert {*ours, ORT, ORT_U8, LAX, FLOAT} <= set(row["contenders"])
    for name in (*ours, ORT_U8):
        assert row["contenders"][name]["differing"] == 0
        assert row["contenders"][name]["runs"] >= 3
    assert results["environment"]["kernels"] == dml.kernels()
    assert ("jaxdml-cpu" in results["environment"]["packages"]) or not HAS_NATIVE
    assert (tmp_path / "selected.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.rare
def test_a_label_that_fits_nothing_is_an_error():
    command = [sys.executable, "-m", "benchmarks", "--only", "nothing"]
    run = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert run.returncode == 2
    assert "no case has 'nothing' in its label" in run.stderr


@pytest.mark.rare
def test_a_platform_that_is_not_there_is_an_error():
    command = [sys.executable, "-m", "benchmarks", "--platform", "gpu"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    run = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    assert run.returncode == 2
    assert "there is no gpu here" in run.stderr


@pytest.fixture
def as_people_write_it():
    """JAX's default promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


TINY = (
    partial(matrix_multiply, 8, 16, 8, peers="gpu"),
    partial(convolution, 1, 8, 6, 8, 3, stride=2, peers="gpu"),
    partial(convolution, 1, 8, 6, 8, 3, group_count=8, peers="gpu"),
    partial(quantize, np.uint8, peers="gpu"),
)


@pytest.mark.rare
@pytest.mark.usefixtures("as_people_write_it")
def test_cases_for_a_gpu_run_on_any_device(tmp_path):
    makers = [("cases", make) for make in TINY]
    assert run(makers, jax.devices("cpu")[0], 0, tmp_path / "gpu_tiny", add=False) == []
    *contractions, elementwise = json.loads((tmp_path / "gpu_tiny.json").read_text(encoding="utf-8"))["cases"]
    for row in contractions:
        differing = {name: fact["differing"] for name, fact in row["contenders"].items() if name != XLA}
        assert differing == {PREPARED: 0, PLAIN: 0, LAX: 0, FLOAT: None, BFLOAT: None}  # floats are not quantized
        assert row["at_most"] is None
    assert set(elementwise["contenders"]) - {XLA} == {PLAIN, LAX}
    assert "bfloat16" in (tmp_path / "gpu_tiny.txt").read_text(encoding="utf-8")
    assert (tmp_path / "gpu_tiny.png").exists()


@pytest.mark.rare
def test_times_on_a_device_are_of_right_results():
    """Each table has a small case here; products by blocks are compared with the oracle before they are timed."""
    for name, rows in device_times.TABLES.items():
        (row,) = rows(quick=True)
        assert row.get("wrong", []) == []
        assert row["shape"] in device_times.shown(name, [row])


def test_the_cases_for_a_gpu_have_no_peers_of_a_cpu():
    makers = list(suite.on_gpu(quick=False))
    assert all(make.keywords["peers"] == "gpu" for make in makers)
    assert all(make.keywords["at_most"] is None for make in makers)
    assert {suite.label(make) for make in suite.operators(quick=False)} < {suite.label(make) for make in makers}


@pytest.mark.usefixtures("as_people_write_it")
@pytest.mark.rare
def test_a_run_goes_on_behind_a_failure_and_adds_to_an_earlier_one(tmp_path):
    def fails():
        raise ValueError("no such case")

    device, path = jax.devices("cpu")[0], tmp_path / "results"
    failures = run([("cases", partial(fails)), ("cases", TINY[0])], device, 0, path, add=False)
    assert failures == ["fails: ValueError: no such case"]
    assert run([("cases", TINY[0]), ("cases", TINY[1])], device, 0, path, add=True) == []
    families = [row["family"] for row in json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["cases"]]
    assert families == ["matrix multiply", "convolution"]


def test_wrong_bits_are_not_timed():
    case = matrix_multiply(2, 8, 8, peers="")
    right = case.expected()
    measure(case, seconds=0)
    case.expected = lambda: right ^ np.uint8(1)
    with pytest.raises(WrongBitsError, match="does not have the bits"):
        measure(case, seconds=0)


def test_a_peer_that_does_not_run_says_why():
    def refuses():  # as onnxruntime does for an operator without a kernel
        raise NotImplementedError("\nno such kernel\nand more")

    case = matrix_multiply(2, 8, 8, peers="")
    case.calls[ORT] = refuses
    row = measure(case, seconds=0)
    assert row["contenders"][ORT] == {"error": "no such kernel"}
    assert ORT not in row["ratios"]
    assert "did not run: no such kernel" in tables.shown(row)


def test_the_aim_stands_beside_the_ratio_that_it_is_about():
    contenders = {name: {"differing": 0} for name in (PREPARED, ORT, ORT_U8, XLA)}
    row = {"family": "f", "case": "c", "rival": ORT_U8, "at_most": 0.8, "contenders": contenders}
    row |= {"form": PREPARED, "ratios": {ORT: 2.0, ORT_U8: 0.5, XLA: 0.25}}
    line = tables.against_onnxruntime([row]).splitlines()[2]
    assert line.split() == ["f,", "c", "2.00", "1.25", "0.50", "4.00"]


@pytest.mark.parametrize(
    ("shape", "layers", "multiply_adds"),
    # The papers' networks apply their classifiers to a mean over 7 x 7 elements, these networks to each element.
    [
        (shapes.RESNET_18, 21, 1_814_073_344 + 48 * 512 * 1000),
        (shapes.MOBILENET_V2, 53, 300_774_272 + 48 * 1280 * 1000),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_network_has_the_shape_it_says(shape, layers, multiply_adds):
    made = shape.layers(np.random.default_rng(0))
    assert len(made) == layers
    assert shapes.multiply_adds(shape, made) == multiply_adds


@pytest.mark.rare
def test_the_activations_of_a_deep_network_do_not_fade():
    function, arguments = network.mobilenet(1, peers="").jitted[PREPARED]
    assert np.asarray(jax.jit(function)(*arguments)).std() > 30


def path_of_form(case, form):
    function, arguments = case.jitted[form]
    return path_of(jax.jit(function).lower(*arguments).compile().as_text())


def test_paths_are_told_apart():
    x, f = np.zeros((1, 64, 14, 14), np.int8), np.zeros((1, 64, 64, 3, 3), np.int8)
    f = Filter(f, "OIHW")
    slow = jax.jit(lambda x, f: int32.conv(x, f, (1, 1), (1, 1))).lower(x, f).compile()
    assert path_of(slow.as_text()) == "1 convolution in a loop"
    with dml.use_kernels("xla"):
        case = convolution(1, 64, 14, 64, 3, peers="")
        assert path_of_form(case, PREPARED) == "1 YNNPACK convolution, 1 YNNPACK dot"


@needs_native
def test_xla_has_its_turn_beside_native_kernels():
    row = measure(convolution(1, 64, 14, 64, 3, peers=""), seconds=0)
    paths = {name: fact["path"] for name, fact in row["contenders"].items()}
    assert paths == {
        PREPARED: "native kernels: 1 convolve",
        PLAIN: "native kernels: 1 convolve",
        XLA: "1 YNNPACK convolution, 1 YNNPACK dot",
    }


@pytest.mark.parametrize("kind", ["__triton_gemm", "__triton_nested_gemm_fusion"])
def test_the_path_on_a_gpu_names_libraries_and_triton(kind):
    hlo = """%gemm_1 (a: s8[8,8]) -> s32[8,8] {
  ROOT %dot.1 = s32[8,8]{1,0} dot(%a, %a)
}

ENTRY %main {
  %f = s32[8,8]{1,0} fusion(%a), kind=kCustom, calls=%gemm_1, backend_config={"kind":"KIND"}
  ROOT %c = (s32[8,8]{1,0}) custom-call(%a, %b), custom_call_target="__cublas$gemm"
}"""
    hlo = hlo.replace("KIND", kind)
    assert path_of(hlo) == "1 Triton dot, 1 __cublas$gemm"


@pytest.mark.rare
def test_the_overheads_of_kernels_are_shown():
    results = {"seconds": kernel_overhead.calling(1), "bytes": {}, "import": kernel_overhead.importing(1)}
    text = kernel_overhead.shown(results)
    assert "call 8 x 8 by 8 x 8" in text
    assert "without jaxdml-cpu" in text
    assert ("native / xla" in text) == HAS_NATIVE


def test_every_call_is_timed_three_times_at_least():
    calls = []
    samples = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, seconds=0)
    assert {name: len(times) for name, times in samples.items()} == {"a": 3, "b": 3}
    assert calls.count("a") == calls.count("b") == 6
