"""The rows that the printed tables of a quantized function and of its loaded file must have in common.

A `Row` is a node on integers, or a convolution or product in floats: its layer, what runs, and on what.

- All other floats between two of these are one row, because the float operators of the file are not those of the
  function: LayerNormalization stands for ten equations.
- A value that depends only on parameters is a constant of the file, not a row.
- Nodes that only move elements are not rows, because the file has more of them, for example before a Gemm. Integers
  that the function moves must be integers in the file, too.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from jaxdml._graph.graph import MOVERS, Node
from jaxdml._graph.report import FROM_PARAMETERS
from jaxdml.ptq._integers.joint import COLUMNS
from jaxdml.ptq._trace.scans import bound

DYNAMIC, TABLE, LOOK_UP = "dynamic_product", "table", "Gather"
# Maps the operators of the function to those of the loaded file. A dynamic product quantizes rows when it runs; the
# file has float operators around its integer product.
IN_FILE = {
    "QLinearAdd": "QLinearAdd",
    "QLinearAveragePool": "QLinearAveragePool",
    "convolution": "Conv",
    "convolution_integer": "ConvInteger",
    "element_wise_quantized_linear_add": "QLinearAdd",
    "matrix_multiply_blocks": "MatMulNBits",
    "matrix_multiply_integer_to_float": "MatMulIntegerToFloat",
    "pad": "Pad",
    "product": "MatMul",
    "quantized concat": "QLinearConcat",
    "quantized mul": "QLinearMul",
    "quantized_linear_average_pooling": "QLinearAveragePool",
    "quantized_linear_convolution": "QLinearConv",
    "quantized_linear_matrix_multiply": "QLinearMatMul",
    DYNAMIC: "MatMulInteger",
    TABLE: LOOK_UP,
}
# Operators of a loaded file that compute the same as others, for fewer cases.
SPECIAL = {"Gemm": "MatMul", "QGemm": "QLinearMatMul", "QLinearGlobalAveragePool": "QLinearAveragePool"}
# The layers in the last step of a network's scan whose results nothing reads; files do not have them.
UNREAD = {"scan": ("cell/3",)}
REORDERED = ("linen GRU",)  # the function joins products of one value, and the file computes each before its first use
CONTRACTIONS = {"convolution", "product", "Conv", "Gemm", "MatMul"}


class Row(NamedTuple):
    layer: str
    runs_as: str
    on: str


FLOATS = Row("", "float operators", "floats")


def of_function(model, *, form="qdq", tables="float", unread=()):
    """The rows of a quantized function as its loaded file must have them.

    Args:
      model: the function.
      form: the form of the file. "qoperator" writes the product of two values in floats, which are exact; so are
        means by DirectML's formulas.
      tables: how the file represents tables; "float" means as float functions.
      unread: layers that the file does not have, because nothing reads their results.
    """
    by_floats = {TABLE} if tables == "float" else set()
    if form == "qoperator":
        by_floats |= {"quantized mul", "quantized_linear_average_pooling"}
    return _joined(_of_nodes((node for node in _unrolled(model) if node.name not in unread), by_floats))


def of_file(loaded, model):
    """The rows of a loaded file. Where nodes of the function share a name, those of the file end in numbers."""
    layers = {node.name for node in _unrolled(model)}
    rows = _joined(_of_operators(loaded))
    return [row if row.layer in layers else row._replace(layer=re.sub(r"_\d+$", "", row.layer)) for row in rows]


def moved_as_floats(model, loaded):
    """The layers that move integers in the function and nothing but floats in its loaded file."""
    layers = {node.name for node in _unrolled(model) if node.operator.kind in MOVERS and node.on == "integers"}
    movers = [(node.name.rpartition("/")[0], node.on) for node in loaded._graph.nodes if node.operator.kind in MOVERS]
    return {name for name, _ in movers if name in layers} - {name for name, on in movers if on == "integers"}


def on_integers(rows: Iterable[Row]) -> list[Row]:
    """The rows on integers, in alphabetical order."""
    return sorted(row for row in rows if row.on == "integers")


def _joined(rows: Iterable[Row]) -> list[Row]:
    """The rows, with adjacent rows of floats merged."""
    return [row for same, group in groupby(rows) for row in ([same] if same == FLOATS else group)]


def _unrolled(model) -> Iterator[Node]:
    """The nodes of a function, those of a scan once for each of its steps, whose number ends their names."""
    return _steps(bound(model._fused.nodes, model.traced.again(model.calibrated)), "")


def _steps(nodes: Iterable[Node], at: str) -> Iterator[Node]:
    joint = dict[str, Node]()
    for node in nodes:
        if node.operator is COLUMNS:  # the columns of a product that joins several
            yield joint[node.inputs[0]].replace(name=f"{node.name}{at}")
            continue
        if node.outputs[0].endswith(":joint"):
            joint[node.outputs[0]] = node
            continue
        if "body" not in node.options:
            yield node.replace(name=f"{node.name}{at}")
            continue
        loop, body = node.options["loop"], node.options["body"]
        for i in reversed(range(loop.length)) if loop.reverse else range(loop.length):
            yield from _steps(body.nodes, f"{at}/{i}")


def _of_nodes(nodes: Iterable[Node], by_floats: set[str]) -> Iterator[Row]:
    for node in nodes:
        if node.operator.kind in MOVERS or node.on == "" or node.remark == FROM_PARAMETERS:
            continue
        word = DYNAMIC if node.operator.kind == DYNAMIC else node.operator.name
        has_row = node.on == "integers" or word in CONTRACTIONS
        if word in by_floats or not has_row:
            yield FLOATS
        else:
            row = Row(node.name, IN_FILE[word], node.on)
            yield from (FLOATS, row, FLOATS) if word == DYNAMIC else (row,)


def _of_operators(loaded) -> Iterator[Row]:
    for node in loaded._graph.nodes:
        word, is_mover = node.operator.name, node.operator.kind in MOVERS
        is_look_up = word == LOOK_UP and node.on == "integers" and node.inputs[0] in loaded.params
        if (is_mover and not is_look_up) or node.on == "":
            continue
        has_row = node.on == "integers" or word in CONTRACTIONS
        yield Row(node.name, SPECIAL.get(word, word), node.on) if has_row else FLOATS
