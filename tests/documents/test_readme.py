"""README and docs tell the truth: the demo prints the text shown, tables are generated, links lead somewhere."""

import json
import re
from collections import Counter
from pathlib import Path

import generate
import pytest

import jaxdml as dml
from benchmarks.case import ORT, ORT_U8
from jaxdml import __main__ as program
from jaxdml._directml.pages import PAGES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.rare
def test_demo_prints_what_is_shown(capsys):
    assert program.main([]) == 0
    page = (ROOT / "docs" / "installing.md").read_text(encoding="utf-8")
    shown, printed = (
        [line for line in text.splitlines() if not line.startswith(("speed", "device", "kernels"))]
        for text in (re.search(r"```text\n(.*?)```", page, re.S)[1], capsys.readouterr().out)
    )
    assert printed == shown
    lines = iter(printed)
    for line in re.search(r"```text\n(.*?)```", README, re.S)[1].splitlines():
        assert line in lines, f"the demo prints no such line, or prints it earlier: {line}"


def test_speed_is_that_measured():
    """onnxruntime's time, in the form that is exact, over jaxdml's: above 1 jaxdml is faster."""
    header, _, *lines = re.search(r"<!-- speed -->\n(.*?)\n<!-- end -->", README, re.S)[1].splitlines()
    assert cells(header)[1:] == ["AVX2", "AVX512-VNNI"]
    assert len(lines) == 4
    for place, (results, peer) in enumerate({"cpu_avx2": ORT_U8, "cpu_avx512_vnni": ORT}.items(), 1):
        text = (ROOT / "benchmarks" / "results" / f"{results}.json").read_text(encoding="utf-8")
        rows = {f"{row['family']}, {row['case']}": row for row in json.loads(text)["cases"]}
        for line in lines:
            row = rows[generate.SPEED[cells(line)[0]]]
            contenders = row["contenders"]
            ratio = contenders[peer]["milliseconds"] / contenders[row["form"]]["milliseconds"]
            assert contenders[row["form"]]["differing"] == contenders[peer]["differing"] == 0
            assert float(cells(line)[place]) == pytest.approx(ratio, rel=0.06)


def test_tables_are_those_generated():
    assert generate.readme(README) == README
    assert generate.levels() == generate.LEVELS.read_text(encoding="utf-8")
    times = generate.PERFORMANCE.read_text(encoding="utf-8")
    assert generate.performance(times) == times
    for results, page in generate.TIMES_PAGES.items():
        text = page.read_text(encoding="utf-8")
        assert generate.times_page(results, text) == text
    quantized = generate.PTQ.read_text(encoding="utf-8")
    assert generate.ptq_page(quantized) == quantized
    for path, made in (
        (generate.ONNX_OPERATORS, generate.onnx_operators_page),
        (generate.ONNX_TIMES, generate.onnx_times_page),
    ):
        page = path.read_text(encoding="utf-8")
        assert made(page) == page


def test_every_operator_is_listed_with_a_link_to_its_page():
    index = generate.INDEX.read_text(encoding="utf-8")
    linked = dict(re.findall(r"^\| \[`(\w+)`\]\(\S+\) \| \[`\w+`\]\((https:\S+)\) \|", index, re.M))
    address = "https://learn.microsoft.com/windows/{}/ns-directml-dml_{}_operator_desc"
    folders = {
        operator: "win32/api/directml" if min(page.support) < dml.FeatureLevel.LEVEL_6_2 else "ai/directml/api"
        for operator, page in PAGES.items()
    }  # Microsoft moved the pages after DirectML 1.12
    assert linked == {operator: address.format(folders[operator], operator) for operator in PAGES}
    assert all(linked[operator] in getattr(dml, operator).__doc__ for operator in linked)
    assert all(f"`{operator}`" in README for operator in PAGES)


def cells(line):
    return [cell.strip() for cell in line.split("|")[1:-1]]


@pytest.mark.parametrize("results", generate.TIMES_PAGES, ids=lambda path: path.stem)
def test_times_are_those_measured(results):
    """Above 1 jaxdml is faster: the results have jaxdml's time over the peer's, and the table has the inverse."""
    rows = json.loads(results.read_text(encoding="utf-8"))["cases"]
    measured = {f"{row['family']}, {row['case']}": row for row in rows}
    page = generate.TIMES_PAGES[results].read_text(encoding="utf-8")
    header, _, *lines = re.search(r"<!-- times -->\n(.*?)\n<!-- end -->", page, re.S)[1].splitlines()
    assert cells(header)[:2] == ["case", "jaxdml, ms"]
    assert len(lines) > 20
    for line in lines:
        case, milliseconds, *shown = cells(line)
        contenders = measured[case]["contenders"]
        ours = contenders[measured[case]["form"]]["milliseconds"]
        assert float(milliseconds) == pytest.approx(ours, rel=0.06)
        peers = ("onnxruntime", "onnxruntime, uint8 weights", "lax int8", "lax float32", "jaxdml, XLA's kernels")
        if results == generate.GPU_TIMES:
            peers = "lax int8", "lax bfloat16", "lax float32", "jaxdml"
        for cell, peer in zip(shown, peers, strict=True):
            if peer not in contenders or peer == measured[case]["form"]:
                assert cell == ""
                continue
            number, _, dagger = cell.partition(" ")
            assert float(number) == pytest.approx(contenders[peer]["milliseconds"] / ours, rel=0.06)
            assert dagger == ("†" if contenders[peer]["differing"] else "")


def test_readme_is_short():
    """At most 120 lines, and 700 words outside of code."""
    assert len(README.splitlines()) <= 120
    text = re.sub(r"^```.*?^```", "", README, flags=re.M | re.S)
    assert len(text.split()) <= 700


def test_readme_shows_first_what_a_stranger_asks_first():
    headings = ["Why exact integers", "Install", "A float network to int8", "One operator", "ONNX in and out"]
    headings += ["What DirectML is", "The promise, and its limits", "More"]
    assert re.findall(r"^## (.*)", README, re.M) == headings
    float_network, _, onnx = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
    assert len([line for line in float_network.splitlines() if line]) == 8
    assert len(onnx.splitlines()) == 4


def test_links_lead_somewhere():
    for path in DOCUMENTS:
        for name, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", path.read_text(encoding="utf-8")):
            target = path.parent / name if name else path
            assert target.exists(), f"{path.name}: {name}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.M)
                assert anchor in [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_every_command_of_make_is_a_rule():
    """In code of pages, and in workflows, where a rule may stand in the matrix."""
    rules = re.findall(r"^([a-z0-9-]+):.*\n\t", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    found = Counter()
    for path in DOCUMENTS:
        code = re.findall(r"^```sh\n.*?^```|`make [^`\n]+`", path.read_text(encoding="utf-8"), re.M | re.S)
        found.update(re.findall(r"\bmake(?: [A-Z]\w*=\S+)* ([a-z][\w-]*)", "\n".join(code)))
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        text = path.read_text(encoding="utf-8")
        found.update(re.findall(r"^ +- run: make ([a-z][\w-]*)", text, re.M))
        found.update(re.findall(r"[\w-]+", " ".join(re.findall(r"^ +target: \[(.*?)\]", text, re.M))))
    assert len(found) >= 10
    assert sorted(set(found) - set(rules)) == []


def named_first(table):
    """The code in the first column of a table."""
    return re.findall(r"`([^`]+)`", "\n".join(cells(line)[0] for line in re.findall(r"^\|.*", table, re.M)))


def test_the_map_of_the_design_names_every_folder_and_file():
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    folders = re.search(r"^## Folders\n(.*)", page, re.M | re.S)[1]
    package = [path for path in (ROOT / "jaxdml").iterdir() if path.suffix == ".py" or list(path.glob("*.py"))]
    assert sorted(named_first(folders)) == sorted(path.name + "/" * path.is_dir() for path in package)
    page = (ROOT / "docs" / "native_files.md").read_text(encoding="utf-8")
    native = re.split(r"^\| file in `native/src/` .*\n", page, flags=re.M)[1]
    assert sorted(named_first(native)) == sorted(path.name for path in (ROOT / "native" / "src").iterdir())


def test_the_design_sends_changes_to_files_that_are_there():
    page = (ROOT / "docs" / "changing.md").read_text(encoding="utf-8")
    files = re.findall(r"`([\w/]+\.\w+)`", re.search(r"^## Where other changes go\n(.*)", page, re.M | re.S)[1])
    assert len(files) >= 10
    for name in files:
        assert (ROOT / name).is_file() or list((ROOT / "jaxdml").rglob(name)) + list((ROOT / "native").rglob(name)), (
            name
        )


def test_version_is_in_the_changelog():
    assert f"## [{dml.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
