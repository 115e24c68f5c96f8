"""Prints a graph as a table: for each node its name, source, operator, whether it runs on integers, and a remark."""

from collections import Counter

from jaxdml._graph.graph import CONVERSIONS, Graph
from jaxdml._tables import Table

WIDEST = 60


def table(graph: Graph, origin: str = "in the file") -> str:
    """The table: a line for each node, and the number of nodes on integers; `origin` is the source column's heading."""
    header, *rows = _rows(graph, origin)
    lines = Table("", header, rows).lines(widest=WIDEST, rule="  ")
    if closing := _closing(graph):
        lines += ["", closing]
    return "\n".join(lines)


def html(graph: Graph, titles: tuple[str, ...], origin: str = "in the file") -> str:
    """The table for a notebook; texts are not cut, and nodes in floats are emphasized.

    Args:
      graph: the graph.
      titles: lines above the table; the number of nodes on integers follows the first line.
      origin: the heading of the source column.
    """
    header, *rows = _rows(graph, origin)
    floats = [place for place, node in enumerate(graph.nodes) if node.on == "floats"]
    first = ": ".join(filter(None, (titles[0], _closing(graph))))
    return Table("\n".join((first, *titles[1:])), header, rows, emphasized=floats).html()


def _rows(graph: Graph, origin: str) -> list[tuple[str, ...]]:
    """The header, and a row for each node; the column of remarks is left out if it is empty."""
    rows: list[tuple[str, ...]] = [("node", origin, "runs as", "on", "remark")]
    for node in graph.nodes:
        rows.append((node.name, _counted(node.source), node.operator.name, node.on, node.remark))
    if not any(row[-1] for row in rows[1:]):
        rows = [row[:-1] for row in rows]
    return rows


def _closing(graph: Graph) -> str:
    """A sentence with the number of nodes that run on integers."""
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
    """Operators in order, with their counts if above 1, such as 2 DequantizeLinear + Add."""
    counts = Counter(source)
    return " + ".join(f"{count} {name}" if count > 1 else name for name, count in counts.items())
