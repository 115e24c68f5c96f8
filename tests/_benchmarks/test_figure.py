"""The picture of times has the numbers that were measured, and says which contenders have other results."""

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import figure  # noqa: E402

from benchmarks import chart  # noqa: E402
from benchmarks.case import ORT, ORT_U8, PREPARED  # noqa: E402
from benchmarks.lax_peer import FLOAT, LAX  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
MACHINE = {"instructions": ["avx2"], "device": "cpu", "processor": "A processor", "threads": 2, "kernels": "xla"}


def texts(path):
    """The lines of text in a picture, in order."""
    return ["".join(text.itertext()).strip() for text in ElementTree.parse(path).getroot().iter(f"{SVG}text")]


def hatched(path):
    """How many areas of a picture are hatched."""
    return path.read_text(encoding="utf-8").count("fill: url(#")


def results(differing):
    times = {PREPARED: 0.25, ORT_U8: 1.26, ORT: 2.0, LAX: 1234.0, FLOAT: 34.56}
    contenders = {name: {"milliseconds": time, "differing": 0} for name, time in times.items()}
    contenders[ORT]["differing"] = differing
    contenders |= {"AQT": {"milliseconds": 9.0, "differing": 0}}
    rows = [{"family": "add", "case": name, "form": PREPARED, "contenders": contenders} for name in ("b", "a")]
    rows[0] = rows[0] | {"contenders": {PREPARED: contenders[PREPARED], LAX: {"error": "did not run"}}}
    return {"environment": MACHINE, "cases": rows}


@pytest.mark.parametrize("picture", figure.FIGURES, ids=lambda path: path.stem)
def test_the_picture_has_the_times_of_the_results(picture):
    """Other versions of matplotlib draw other lines, so the texts are compared, not the files."""
    measured = json.loads(figure.FIGURES[picture].read_text(encoding="utf-8"))
    rows = {f"{row['family']}, {row['case']}": row for row in measured["cases"]}
    expected = []
    for case in figure.CASES:
        facts = (rows[case]["contenders"].get(name) for name in (rows[case]["form"], ORT, ORT_U8))
        expected += [case, *(f"{float(f'{fact["milliseconds"]:.2g}'):,g} ms" for fact in facts if fact)]
    found = texts(picture)
    start = found.index(figure.CASES[0])
    assert found[start : start + len(expected)] == expected
    facts = [fact for case in figure.CASES for fact in rows[case]["contenders"].items()]
    wrong = [name for name, fact in facts if name in (ORT_U8, ORT) and fact["differing"] != 0]
    assert hatched(picture) == len(wrong) + bool(wrong)  # the mark in the legend
    assert "Times over jaxdml's: shorter is better" in found
    machine = measured["environment"]
    title = f"{machine['processor']}, {machine['threads']} threads, {', '.join(machine['instructions'])}"
    assert any(line.startswith(title) for line in found)


def test_bars_begin_at_zero_on_a_linear_axis(tmp_path):
    chart.bars(results(0), ("add, a",), tmp_path / "bars.svg")
    clipped = re.compile(r'<path d="M (\S+) \S+ \nL (\S+) \S+ \nL \S+ \S+ \nL \S+ \S+ \nz\n" clip-path')
    bars = [(float(left), float(right)) for left, right in clipped.findall((tmp_path / "bars.svg").read_text())]
    assert len({left for left, _ in bars}) == 1
    widths = [right - left for left, right in bars]
    assert widths == pytest.approx([widths[0], widths[0] * 2 / 0.25, widths[0] * 1.26 / 0.25], rel=1e-3)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A picture with a contender whose results are unknown."""
    path = tmp_path_factory.mktemp("figure") / "bars.svg"
    chart.bars(results(None), ("add, a", "add, b"), path)
    return path


def test_bars_come_in_order_and_those_with_other_results_are_hatched(drawn, tmp_path):
    found = texts(drawn)
    start = found.index("add, a")
    assert found[start : start + 6] == ["add, a", "0.25 ms", "2 ms", "1.3 ms", "add, b", "0.25 ms"]
    assert "hatched: other results" in found
    assert hatched(drawn) == 2  # a bar, and the mark in the legend
    chart.bars(results(0), ("add, a",), tmp_path / "bars.svg")
    assert hatched(tmp_path / "bars.svg") == 0
    assert "hatched: other results" not in texts(tmp_path / "bars.svg")


def test_the_same_results_give_the_same_file_on_white(drawn, tmp_path):
    chart.bars(results(None), ("add, a", "add, b"), tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == drawn.read_bytes()
    background = next(ElementTree.parse(drawn).getroot().iter(f"{SVG}path"))
    assert "fill: #ffffff" in background.get("style")


def test_a_case_that_was_not_measured_is_an_error(tmp_path):
    with pytest.raises(KeyError, match="add, c"):
        chart.bars(results(0), ("add, c",), tmp_path / "bars.svg")
