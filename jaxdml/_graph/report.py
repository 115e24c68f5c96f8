"""Prints a graph as a table: each node, what it runs as and on, and why it was not fused."""

from collections import Counter

from jaxdml._graph.graph import CONVERSIONS, Graph
from jaxdml._tables import Table

WIDEST = 60


def table(graph: Graph, origin: str = "in the file") -> str:
    """The table, with a line for each node, and how many nodes run on integers; origin is the head of the sources."""
    header, *rows = _rows(graph, origin)
    lines = Table("", header, rows).lines(widest=WIDEST, rule="  ")
    if closing := _closing(graph):
        lines += ["", closing]
    return "\n".join(lines)


def html(graph: Graph, titles: tuple[str, ...], origin: str = "in the file") -> str:
    """The table for a notebook, with nothing cut, and nodes in floats emphasized.

    Args:
      graph: the graph.
      titles: lines above the table; behind the first of them stands how many nodes run on integers.
      origin: the head of the sources.
    """
    header, *rows = _rows(graph, origin)
    floats = [place for place, node in enumerate(graph.nodes) if node.on == "floats"]
    first = ": ".join(filter(None, (titles[0], _closing(graph))))
    return Table("\n".join((first, *titles[1:])), header, rows, emphasized=floats).html()


def _rows(graph: Graph, origin: str) -> list[tuple[str, ...]]:
    """The header, and a row for each node; without the column of remarks if there are none."""
    rows: list[tuple[str, ...]] = [("node", origin, "runs as", "on", "remark")]
    for node in graph.nodes:
        rows.append((node.name, _counted(node.source), node.operator.name, node.on, node.remark))
    if not any(row[-1] for row in rows[1:]):
        rows = [row[:-1] for row in rows]
    return rows


def _closing(graph: Graph) -> str:
    """How many nodes run on integers."""
    counts = Counter(node.on for node in graph.nodes)
    total = counts["integers"] + counts["floats"]
    if not total:
        return ""
    if counts["integers"]:
        return f"{counts['integers']} of {total} operators run on integers"
    text = "no operator runs on integers"
    if not any(node.operator.kind in CONVERSIONS for node in graph.nodes):
        text += ": the model is not quantized; onnxruntime.quantization quantizes models"
    return text


def _counted(source: tuple[str, ...]) -> str:
    """Operators in order, with the number of those that come several times: 2 DequantizeLinear + Add."""
    counts = Counter(source)
    return " + ".join(f"{count} {name}" if count > 1 else name for name, count in counts.items())
