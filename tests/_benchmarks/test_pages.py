"""The pages of benchmarks/results are those that the benchmarks write, and all their ratios have one direction."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import decode, forgotten, networks, shipped_files, sixteen_bits  # noqa: E402
from benchmarks.machine import best_of  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
WRITERS = {
    "decode": decode.report, "forgotten": forgotten.table, "networks": networks.page, "shipped": shipped_files.page,
    "sixteen": sixteen_bits.page,
}  # fmt: skip
FILES = [path for name in WRITERS for path in sorted(RESULTS.glob(f"{name}_*.json"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_page_is_that_of_its_measurements(path):
    page = WRITERS[path.stem.split("_")[0]](json.loads(path.read_text(encoding="utf-8")))
    assert path.with_suffix(".md").read_text(encoding="utf-8") == page
    assert "above 1, jaxdml is faster" in page


NAMED = [path for path in FILES if path.stem.startswith(("shipped_", "sixteen_"))]


@pytest.mark.parametrize("path", NAMED, ids=lambda path: path.stem)
def test_results_have_the_name_of_their_processor(path):
    machine = json.loads(path.read_text(encoding="utf-8"))["environment"]
    assert path.stem.split("_", 1)[1] == best_of(machine["instructions"])


def test_ratios_are_those_of_the_peers_time_to_jaxdmls():
    times = {"jaxdml": 2.0, "onnxruntime": 3.0}
    network = {**times, "differing": 0, "runs": [5, 6]}
    assert networks.row("MobileNetV3", network, is_avx2=True).split(" | ")[3:5] == ["1.50", "1.11"]
    case = {"about": "a", "case": "c", "form": "jaxdml", "peer": "onnxruntime", "aim": 0.8, "milliseconds": times}
    assert forgotten.shown(case).split(" | ")[4:6] == ["1.50", "1.25"]
    assert forgotten.shown(case | {"aim": None}).split(" | ")[4:6] == ["1.50", "0.0010 ms more"]


def test_sentences_and_tables_of_the_docs_have_the_measured_ratios():
    found = json.loads((RESULTS / "networks_avx512_vnni.json").read_text(encoding="utf-8"))["networks"]
    first, second = (1 / found[name]["ratio"] for name in ("ResNet-18", "MobileNetV2"))
    text = " ".join((ROOT / "docs" / "performance.md").read_text(encoding="utf-8").split())
    assert f"onnxruntime takes {first:.2f} and {second:.2f} times as long as jaxdml on these two networks" in text
    page = (ROOT / "docs" / "times" / "blocks.md").read_text(encoding="utf-8").splitlines()
    for name, instructions in (("avx512_vnni", "AVX512-VNNI"), ("avx2", "AVX2")):
        products = json.loads((RESULTS / f"blocks_{name}.json").read_text(encoding="utf-8"))["products"]
        ratios = {(each["rows"], each["block"]): each["ratios"] for each in products}
        for rows in {rows for rows, _ in ratios}:
            cells = [f"{1 / ratios[rows, block][form]:.2f}" for form in ("int8", "int22") for block in (32, 128)]
            assert f"| {instructions} | {rows} | {' | '.join(cells)} |" in page
