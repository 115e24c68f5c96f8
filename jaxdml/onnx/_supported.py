"""The table of operators, for people."""

from jaxdml.onnx import _operators  # noqa: F401 # fills the table
from jaxdml.onnx._table import BOOL, FLOAT, INTEGER, NIBBLE, ROWS, Row

GROUPS = (("floats", FLOAT), ("integers", INTEGER), ("4-bit integers", NIBBLE), ("bool", BOOL))


def supported_ops() -> str:
    """The operators that `load` takes, as a Markdown table: domain, opsets, and types of the first input.

    Source: https://onnx.ai/onnx/operators and
    https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
    """
    lines = ["| operator | domain | opsets | types of the first input |", "| --- | --- | --- | --- |"]
    for (domain, name), rows in sorted(ROWS.items()):
        first, last = min(row.since for row in rows), max(row.until for row in rows)
        opsets = f"{first}" if first == last else f"{first} to {last}"
        lines.append(f"| {name} | {domain or 'ai.onnx'} | {opsets} | {_types(rows)} |")
    return "\n".join(lines) + "\n"


def _types(rows: list[Row]) -> str:
    """The types in groups, those that are no whole group by name."""
    if any(not row.types or row.types[0] is None for row in rows):
        return "any"
    left = frozenset[str]().union(*(row.types[0] or () for row in rows))
    words = []
    for word, group in GROUPS:
        if group <= left:
            words.append(word)
            left -= group
    return ", ".join([*words, *sorted(left)])
