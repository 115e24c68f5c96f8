"""`python docs/generate.py` writes the tables of feature levels into README.md and docs/feature_levels.md."""

import re
from pathlib import Path

import jaxdml as dml
from jaxdml._feature_support import levels_table
from jaxdml.feature_levels import SUPPORT

ROOT = Path(__file__).parents[1]
README, LEVELS = ROOT / "README.md", ROOT / "docs" / "feature_levels.md"
MARKS = re.compile(r"(<!-- feature levels -->\n).*?(\n<!-- end -->)", re.S)


def readme(text: str) -> str:
    """README.md with the table of operators and levels between its marks."""
    return MARKS.sub(lambda match: match[1] + levels_table().markdown() + match[2], text)


def levels() -> str:
    """docs/feature_levels.md."""
    parts = [
        "# What each feature level allows",
        "Made by `python docs/generate.py` from the tables that every call is checked against; in Python,\n"
        "`jaxdml.check_feature_support(operator, level)`. A level that is not listed allows what the one before it\n"
        "allows. 16-bit outputs of quantize are on no page of DirectML, they are jaxdml's own.",
    ]
    for operator, tables in SUPPORT.items():
        for level in sorted(tables):
            table = dml.check_feature_support(operator, level).table()
            parts += [f"## {table.title}", table.markdown()]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    README.write_text(readme(README.read_text()))
    LEVELS.write_text(levels())
