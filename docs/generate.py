"""`python docs/generate.py` writes what README.md and files of docs/ take from tables and measurements.

In README.md the table of operators comes from the pages and docstrings, the table of times from the benchmark's
results; in docs/onnx.md the ONNX operators come from their table. Each stands between a mark of its name and an end
mark. docs/feature_levels.md is written as a whole.
"""

import json
import re
from pathlib import Path

import jaxdml as dml
from jaxdml._directml.feature_support import levels_table
from jaxdml._directml.pages import PAGES
from jaxdml._directml.tables import Table

ROOT = Path(__file__).parents[1]
README, LEVELS, ONNX = ROOT / "README.md", ROOT / "docs" / "feature_levels.md", ROOT / "docs" / "onnx.md"
TIMES = ROOT / "benchmarks" / "results" / "cpu_avx512_vnni.json"
CASES = (
    "matrix multiply, 1024 x 1024 x 1024",
    "matrix multiply, 1 x 4096 x 4096",
    "convolution, 3x3 64 to 64 at 56x56, batch 1",
    "convolution, 3x3 512 to 512 at 7x7, batch 1",
    "convolution, 3x3 144 to 144 at 56x56, batch 1, 144 groups",
    "add, 1M uint8",
    "network, ResNet-18 shape, 224x224, batch 1",
    "network, MobileNetV2 shape, 224x224, batch 1",
)


def operators() -> str:
    """Every operator: its page, what it computes, the feature level that introduced it."""
    rows = []
    for operator, page in PAGES.items():
        first_line = getattr(dml, operator).__doc__.split("\n\n")[0].replace("``", "`")
        url = re.search(r"https://\S+", page.desc.__doc__ or "")
        assert url is not None
        rows.append((f"[`{operator}`]({url[0]})", first_line, str(min(page.support))))
    return Table("operators", ("function, with a link to DirectML's page", "computes", "since level"), rows).markdown()


def times() -> str:
    """The time of each peer over jaxdml's: the results have it the other way round."""
    rows = {f"{row['family']}, {row['case']}": row for row in json.loads(TIMES.read_text())["cases"]}
    case = "peer's time / jaxdml's time: above 1, jaxdml is faster"
    names = ("onnxruntime, int8 weights", "onnxruntime, uint8 weights", "lax, int8 or plain formula", "lax, float32")
    header = (case, *names)
    return Table("times", header, [(case, *_cells(rows[case])) for case in CASES]).markdown()


PEERS = ("onnxruntime", "onnxruntime, uint8 weights", "lax int8", "lax float32")


def _cells(row: dict) -> list[str]:
    cells = []
    for peer in PEERS:
        mark = " †" if row["contenders"].get(peer, {}).get("differing") else ""
        cells.append(_two_digits(1 / row["ratios"][peer]) + mark if peer in row["ratios"] else "")
    return cells


def _two_digits(time: float) -> str:
    rounded = float(f"{time:.2g}")
    return f"{rounded:.0f}" if rounded >= 10 else f"{rounded:.2g}"


def readme(text: str) -> str:
    """README.md with its tables between their marks."""
    return _between_marks(text, {"operators": operators(), "times": times()})


def onnx_page(text: str) -> str:
    """docs/onnx.md with its table between its marks."""
    return _between_marks(text, {"onnx operators": dml.onnx.supported_ops().rstrip()})


def _between_marks(text: str, tables: dict[str, str]) -> str:
    for name, table in tables.items():
        marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.S)
        text, count = marked.subn(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", text)
        assert count == 1, f"the page has {count} marks <!-- {name} -->"
    return text


def levels() -> str:
    """docs/feature_levels.md."""
    parts = [
        "# What each feature level allows",
        "`python docs/generate.py` writes this page from the tables that check every call. In Python,\n"
        "`jaxdml.check_feature_support(operator, level)` gives the same tables.",
        "A level without a table of its own allows what the level before it allows. The level `jaxdml` is no level of\n"
        "DirectML: in Python it is `FeatureLevel.JAXDML`, and it adds 16-bit outputs of quantize to level 6_4.",
        "## What each level brings",
        levels_table().markdown(),
    ]
    for operator, page in PAGES.items():
        for level in sorted(page.support):
            table = dml.check_feature_support(operator, level).table()
            parts += [f"## {table.title}", table.markdown()]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    README.write_text(readme(README.read_text()))
    LEVELS.write_text(levels())
    ONNX.write_text(onnx_page(ONNX.read_text()))
