"""Formats a graph as a table that shows how each operator runs, and why some do not run on integers.

A row stands for one operator on integers, for one convolution, product or loop in floats, or for all other operators
between two of these. Repeated blocks of rows, such as those of a network's equal layers, are printed once.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from jaxdml._graph.graph import CONVERSIONS, Graph, Node
from jaxdml._tables import Table

WIDEST = 60
FEWEST_FOLDED = 4  # rows that folding must save
NO_OPERATOR = "there is no quantized {}"
READ_BY = "kept in floats: {} reads it"
FROM_PARAMETERS = "it depends only on parameters"
PRODUCT_OF_PARAMETERS = "it depends only on parameters: compute it once, and pass the result in params"
COMPUTED_BY = "kept in floats: {} computes its input"
CONTRACTION_SOURCES = frozenset((
    "conv_general_dilated", "dot_general", "ragged_dot_general", "Conv", "ConvInteger", "ConvTranspose",
    "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "Einsum", "FusedConv", "FusedGemm", "FusedMatMul", "Gemm", "LSTM",
    "MatMul", "MatMulInteger", "MatMulIntegerToFloat", "MatMulNBits", "QAttention", "QGemm", "QLinearConv",
    "QLinearMatMul",
))  # fmt: skip
# Functions that consist of several operators, each with the operators that identify the function.
FUNCTIONS = (
    ("softmax", {"exp", "reduce_sum", "div"}),
    ("softmax", {"Exp", "ReduceSum", "Div"}),
    ("normalization", {"reduce_sum", "rsqrt", "mul"}),
    ("normalization", {"reduce_sum", "sqrt", "div"}),
    ("normalization", {"ReduceMean", "Sqrt", "Div"}),
)


class _Row(NamedTuple):
    """A row of the table.

    Attributes:
      node: the name of the node, or of the first and the last node.
      source: the operators of the file or program.
      runs_as: the operators that run.
      on: "integers", "floats", or "" for shapes and indices.
      remark: why the nodes are not on integers, or another remark.
      is_layer: whether the row stands for a convolution or product.
    """

    node: str
    source: str
    runs_as: str
    on: str
    remark: str
    is_layer: bool

    @property
    def cells(self) -> tuple[str, ...]:
        return self[:-1]

    @property
    def key(self) -> tuple[str, ...]:
        """The part that rows of equal layers have in common: everything but the numbers in names."""
        return re.sub(r"\d+", "#", self.node), self.source, self.runs_as, self.on, re.sub(r"\d+", "#", self.remark)


def table(graph: Graph, origin: str = "in the file") -> str:
    """The table, and below it the number of nodes on integers; `origin` is the source column's heading."""
    header, *rows = _cells(_rows(graph), origin)
    lines = Table("", header, rows).lines(widest=WIDEST, rule="  ")
    if closing := _closing(graph):
        lines += ["", closing]
    return "\n".join(lines)


def html(graph: Graph, titles: tuple[str, ...], origin: str = "in the file") -> str:
    """The table for a notebook; texts are not cut, and rows in floats are emphasized.

    Args:
      graph: the graph.
      titles: lines above the table; the number of nodes on integers follows the first line.
      origin: the heading of the source column.
    """
    rows = _rows(graph)
    header, *cells = _cells(rows, origin)
    floats = [place for place, row in enumerate(rows) if row.on == "floats"]
    first = ": ".join(filter(None, (titles[0], _closing(graph))))
    return Table("\n".join((first, *titles[1:])), header, cells, emphasized=floats).html()


def _cells(rows: Iterable[_Row], origin: str) -> list[tuple[str, ...]]:
    """The header and the rows; the column of remarks is left out if it is empty."""
    cells = [("node", origin, "runs as", "on", "remark"), *(row.cells for row in rows)]
    return cells if any(row[-1] for row in cells[1:]) else [row[:-1] for row in cells]


def _closing(graph: Graph) -> str:
    """A sentence with the numbers of contractions, and of all nodes, that run on integers."""
    counts = Counter(node.on for node in graph.nodes)
    total = counts["integers"] + counts["floats"]
    if not total:
        return ""
    if counts["integers"]:
        layers = [on for node in graph.nodes for on in _contractions(node)]
        first = f"{layers.count('integers')} of {len(layers)} convolutions and products, " if layers else ""
        return f"{first}{counts['integers']} of {total} operators run on integers"
    text = "no operator runs on integers"
    if not any(node.operator.kind in CONVERSIONS for node in graph.nodes):
        text += ": the model is not quantized; onnxruntime.quantization quantizes models"
    return text


# Rows ----------------------------------------------------------------------------------------------------------------


def _rows(graph: Graph) -> list[_Row]:
    runs = list[list[Node]]()
    for node in graph.nodes:
        if runs and not _is_alone(node) and not _is_alone(runs[-1][-1]):
            runs[-1].append(node)
        else:
            runs.append([node])
    of_rows = _names_of_rows(runs)
    return _folded([_row(run, of_rows) for run in runs])


def _names_of_rows(runs: Iterable[Sequence[Node]]) -> dict[str, str]:
    """Maps each remark that names one node of a row to the same remark with the row's name."""
    found = dict[str, str]()
    for run in runs:
        for node in run if len(run) > 1 else ():
            if _has_no_operator(node):
                for text in (READ_BY, COMPUTED_BY):
                    found.setdefault(text.format(node.name), text.format(_title(run)))
    return found


def _title(nodes: Sequence[Node]) -> str:
    """The names of the first and the last of some nodes."""
    names = [node.name for node in nodes if node.name]
    return " ... ".join(dict.fromkeys((names[0], names[-1]))) if names else ""


def _is_alone(node: Node) -> bool:
    """Whether a node has its own row, because it is on integers, a contraction, or a loop."""
    return node.on == "integers" or _is_contraction(node) or "body" in node.options


def _is_contraction(node: Node) -> bool:
    """Whether a node is a convolution or product, or a loop in floats that has one."""
    return not CONTRACTION_SOURCES.isdisjoint(node.source)


def _contractions(node: Node) -> list[str]:
    """The node's `on`, once for each of its convolutions and products: a loop in floats may have several."""
    return [node.on] * sum(word in CONTRACTION_SOURCES for word in node.source)


def _row(nodes: Sequence[Node], of_rows: Mapping[str, str]) -> _Row:
    source = counted(word for node in nodes for word in node.source)
    on = "floats" if any(node.on == "floats" for node in nodes) else nodes[0].on
    function = _function(nodes)
    reason = _reason(nodes, function, of_rows)
    return _Row(_title(nodes), source, _operators(nodes, function), on, reason, _is_contraction(nodes[0]))


def _function(nodes: Sequence[Node]) -> str:
    """The names of the FUNCTIONS whose operators all occur in the nodes."""
    steps = {word for node in nodes for word in node.source}
    return " and ".join(dict.fromkeys(name for name, some in FUNCTIONS if some <= steps))


def _operators(nodes: Sequence[Node], function: str) -> str:
    """The operators in order, with their counts; more than three kinds besides conversions are only counted."""
    inner = [node.operator.name for node in nodes if node.operator.kind not in CONVERSIONS]
    many = f"{len(inner)} operators"
    text = f"{function} ({many})" if function else counted(inner) if len(set(inner)) <= 3 else many
    parts = list[str]()
    for is_conversion, group in groupby(nodes, lambda node: node.operator.kind in CONVERSIONS):
        if is_conversion:
            parts.append(counted(node.operator.name for node in group))
        elif text not in parts:
            parts.append(text)
    return " + ".join(parts)


def _reason(nodes: Sequence[Node], function: str, of_rows: Mapping[str, str]) -> str:
    """Each remark once, missing operators first; if an operator is missing, COMPUTED_BY remarks are left out.

    A remark that names another node of the row is left out, too: that node has its own remark.
    """
    references = {text.format(node.name) for node in nodes for text in (READ_BY, COMPUTED_BY)}
    missing, remarks = dict[str, None](), dict[str, None]()
    for node in nodes:
        if _has_no_operator(node):
            missing[function or node.remark.removeprefix(NO_OPERATOR.format(""))] = None
        elif node.remark:
            remarks[node.remark] = None
    inherited = (COMPUTED_BY.partition("{}")[2],) if missing else ()
    decisions = [NO_OPERATOR.format(" or ".join(missing))] if missing else []
    decisions += (
        of_rows.get(remark, remark) for remark in remarks
        if remark not in references and remark != FROM_PARAMETERS and not remark.endswith(inherited)
    )  # fmt: skip
    return "; ".join(dict.fromkeys(decisions)) or next(iter(remarks), "")


def _has_no_operator(node: Node) -> bool:
    """Whether a node's remark says that its operator has no quantized one, perhaps for some operands alone."""
    return node.remark.startswith(NO_OPERATOR.format(node.operator.name))


def counted(words: Iterable[str]) -> str:
    """Words in order, with their counts if above 1, such as 2 DequantizeLinear + Add."""
    counts = Counter(words)
    return " + ".join(f"{count} {word}" if count > 1 else word for word, count in counts.items())


# Blocks --------------------------------------------------------------------------------------------------------------


def _folded(rows: list[_Row]) -> list[_Row]:
    """The rows, with repeated blocks folded: the first block is kept, below a row with the number of blocks."""
    keys = [row.key for row in rows]
    folded, place = list[_Row](), 0
    while place < len(rows):
        size, times = max(_repetitions(keys, place), key=_saved, default=(1, 1))
        if _saved((size, times)) < FEWEST_FOLDED:
            size, times = 1, 1
            folded.append(rows[place])
        else:
            block = rows[place : place + size]
            first = next((i for i, row in enumerate(block) if row.is_layer), 0)
            names = [rows[place + first + i * size].node for i in range(times)]
            title = f"x {times}: {names[0]} ... {names[-1]}"
            folded.append(_Row(title, f"the next {size} rows" if size > 1 else "the next row", "", "", "", False))
            folded += [row._replace(node=f"  {row.node}") for row in block]
        place += size * times
    return folded


def _repetitions(keys: Sequence[tuple[str, ...]], place: int) -> Iterable[tuple[int, int]]:
    """Yields (size, times) for each repeated block that starts at `place`."""
    for size in range(1, (len(keys) - place) // 2 + 1):
        if keys[place] != keys[place + size]:
            continue
        block, times = keys[place : place + size], 1
        while keys[place + times * size : place + (times + 1) * size] == block:
            times += 1
        if times > 1:
            yield size, times


def _saved(block: tuple[int, int]) -> int:
    """The number of rows that a block of (size, times) saves if it is printed once, below its count."""
    size, times = block
    return size * (times - 1) - 1
