"""The result of a comparison, as text and as a page."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxdml._tables import Table
from jaxdml.onnx._compare.differences import Difference

WIDEST = 48
HEADER = ("node", "computes", "own", "so far", "largest step", "reason")
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; font-family: system-ui, sans-serif; }}
body {{ margin: 2em; }}
.jaxdml-table.jaxdml-table {{ max-height: none; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


@dataclass(frozen=True)
class NodeDifference:
    """How a node differs from onnxruntime.

    Attributes:
      name: the node's name.
      operator: the operator that runs.
      own: the difference if the node reads onnxruntime's values; None if onnxruntime lacks the node's results.
      so_far: the difference in the model, with the errors of all earlier nodes; None if onnxruntime lacks the node's
        results.
      reason: why the node differs, in words; never empty.
    """

    name: str
    operator: str
    own: Difference | None
    so_far: Difference | None
    reason: str

    @property
    def _worst(self) -> tuple[float, float]:
        """The key by which rows are sorted, the largest first."""
        return _mean(self.own), _mean(self.so_far)

    @property
    def _cells(self) -> tuple[str, ...]:
        """The cells after the name and the operator."""
        shown = next((each for each in (self.own, self.so_far) if each and each.differing), None)
        largest = "" if shown is None else shown.by
        return _count(self.own), _count(self.so_far), largest, self.reason


@dataclass(frozen=True)
class Comparison:
    """A comparison with onnxruntime; `print` shows a table with the worst node first and equal rows merged.

    Attributes:
      nodes: the nodes, in the order in which they run.
      outputs: the difference of each output, keyed by name.
      version: onnxruntime's version.
      notes: what was compared, one sentence each.
    """

    nodes: tuple[NodeDifference, ...]
    outputs: Mapping[str, Difference]
    version: str
    notes: tuple[str, ...]

    @property
    def are_equal(self) -> bool:
        """Whether all outputs equal onnxruntime's."""
        return not any(each.differing for each in self.outputs.values())

    @property
    def _table(self) -> Table:
        rows = sorted(self.nodes, key=lambda each: each._worst, reverse=True)
        folded = dict[tuple[str, ...], list[NodeDifference]]()
        for row in rows:
            operator = row.operator if row.own else ""  # nodes without a value share one row, whatever they compute
            folded.setdefault((operator, *row._cells), []).append(row)
        cells = [
            (_title([row.name for row in alike]), ", ".join(dict.fromkeys(row.operator for row in alike)), *key[1:])
            for key, alike in folded.items()
        ]
        differing = [i for i, rows in enumerate(folded.values()) if rows[0].own and rows[0].own.differing]
        return Table("\n".join(self._titles), HEADER, cells, numbers=HEADER[2:5], emphasized=differing)

    @property
    def _titles(self) -> list[str]:
        return [*self._heads, f"onnxruntime {self.version}", *self.notes]

    @property
    def _heads(self) -> list[str]:
        return [f"{name}: {each}" for name, each in self.outputs.items()]

    def __str__(self) -> str:
        return "\n".join([*self._heads, "", *self._table.lines(widest=WIDEST, rule="  "), "", *self.notes])

    def _repr_html_(self) -> str:
        return self._table.html()

    def page(self, title: str = "jaxdml.onnx.compare") -> str:
        """The comparison as a self-contained HTML page."""
        return PAGE.format(title=html.escape(title), body=self._repr_html_())


def _mean(difference: Difference | None) -> float:
    """The mean difference; -1, which is less than any other, if unknown."""
    return -1.0 if difference is None else difference.relative


def _count(difference: Difference | None) -> str:
    if difference is None:
        return "-"
    return f"{difference.differing:,} of {difference.size:,}" if difference.differing else "0"


def _title(names: Sequence[str]) -> str:
    """The name of a row, or the number of folded rows and the names of the first and the last."""
    return names[0] if len(names) == 1 else f"x {len(names)}: {names[0]} ... {names[-1]}"
