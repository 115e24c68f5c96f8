"""The printed table: floats between two integer operators are one row, blocks are folded, reasons are not repeated."""

import re

import pytest

from jaxdml._graph.graph import Graph, Node, Operator
from jaxdml._graph.report import COMPUTED_BY, FROM_PARAMETERS, NO_OPERATOR, READ_BY, table


def node(name, operator, on="floats", remark="", source=None, kind=None):
    return Node(Operator(operator, abs, kind), (), (), {}, name, (operator,) if source is None else source, remark, on)


def layer(name):
    return node(name, "product", "integers", source=("dot_general",))


def rows(*nodes):
    """The cells of each row, and the last line."""
    _, _, *lines = table(Graph(nodes, (), (), {})).splitlines()
    *lines, _, closing = lines
    return [re.split(" {2,}", line.rstrip()) for line in lines], closing


def test_floats_between_two_integer_operators_are_one_row():
    found, closing = rows(
        layer("a"), node("b", "dequantize", source=(), kind="dequantize_linear"), node("c", "sin"),
        node("e", "cos"), node("f", "quantize", source=(), kind="quantize_linear"), layer("g"),
    )  # fmt: skip
    assert [row[0] for row in found] == ["a", "b ... f", "g"]
    assert found[1][2] == "dequantize + sin + cos + quantize"
    assert closing == "2 of 2 convolutions and products, 2 of 6 operators run on integers"


def test_a_contraction_in_floats_has_a_row_of_its_own():
    kept = node("b", "product", remark="kept in floats by Rule('b')", source=("dot_general",))
    found, closing = rows(layer("a"), node("x", "sin"), kept, node("y", "cos"))
    assert [row[0] for row in found] == ["a", "x", "b", "y"]
    assert found[2][-1] == "kept in floats by Rule('b')"
    assert closing.startswith("1 of 2 convolutions and products, ")


SOFTMAX, RMS = ("sub", "exp", "reduce_sum", "div"), ("integer_pow", "reduce_sum", "rsqrt", "mul")
FUNCTIONS = {
    "softmax": SOFTMAX,
    "normalization": RMS,
    "softmax and normalization": (*SOFTMAX, *RMS),
    "softmax of a file": ("Sub", "Exp", "ReduceSum", "Div"),
    "normalization by a quotient": ("integer_pow", "reduce_sum", "sqrt", "div"),
    "normalization of a file": ("Pow", "ReduceMean", "Sqrt", "Div"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_named_by_its_steps_and_its_reason_stands_once(name):
    steps = FUNCTIONS[name]
    found, _ = rows(layer("a"), *(node(step, step, remark=NO_OPERATOR.format(step)) for step in steps), layer("b"))
    function = re.split(" of | by ", name)[0]
    assert found[1][2:] == [f"{function} ({len(steps)} operators)", "floats", f"there is no quantized {function}"]


def test_some_steps_are_no_function():
    found, _ = rows(layer("a"), *(node(step, step) for step in ("integer_pow", "reduce_sum", "sqrt")), layer("b"))
    assert found[1][2] == "integer_pow + reduce_sum + sqrt"


def test_a_reason_that_refers_to_the_same_row_is_left_out():
    parts = [
        node("x", "max", remark=READ_BY.format("y")),
        node("y", "sin", remark=NO_OPERATOR.format("sin")),
        node("z", "abs", remark=COMPUTED_BY.format("y")),
        node("p", "neg", remark=FROM_PARAMETERS),
        node("z", "abs", remark=COMPUTED_BY.format("elsewhere")),
    ]
    found, _ = rows(layer("a"), *parts)
    assert found[1][-1] == "there is no quantized sin"  # this decides, wherever the inputs come from
    alone, _ = rows(layer("a"), parts[0], layer("b"), parts[3])
    assert alone[1][-1] == READ_BY.format("y")
    assert alone[3][-1] == FROM_PARAMETERS


def test_a_reason_that_refers_to_a_node_names_the_row_of_the_node():
    decides = [node("x", "cos", remark=NO_OPERATOR.format("cos")), node("y", "abs")]
    found, _ = rows(node("w", "max", remark=READ_BY.format("x")), layer("a"), *decides, layer("b"),
                    node("z", "abs", remark=COMPUTED_BY.format("x")))  # fmt: skip
    assert found[0][-1] == "kept in floats: x ... y reads it"
    assert found[4][-1] == "kept in floats: x ... y computes its input"


def test_a_reason_that_refers_to_a_layer_of_the_same_name_is_kept():
    found, _ = rows(layer("a"), node("a", "split", remark=COMPUTED_BY.format("a")))
    assert found[1][-1] == "kept in floats: a computes its input"


def test_equal_blocks_fold():
    blocks = [layer(f"block{i}/{name}") for i in range(3) for name in "qkv"]
    found, closing = rows(node("first", "sin"), *blocks, node("last", "cos"))
    assert [row[:2] for row in found[:2]] == [["first", "sin"], ["x 3: block0/q ... block2/q", "the next 3 rows"]]
    assert [row[1] for row in found[2:5]] == ["block0/q", "block0/k", "block0/v"]  # they are indented
    assert found[5][0] == "last"
    assert closing.startswith("9 of 9 convolutions and products, ")


def test_what_differs_in_more_than_numbers_does_not_fold():
    found, _ = rows(*(layer(name) for name in ("in", "out", "up", "down", "left", "right", "front", "back")))
    assert len(found) == 8
    found, _ = rows(*(layer(f"layer{i}") for i in range(5)))  # folding saves too few rows
    assert len(found) == 5
    found, _ = rows(*(layer(f"layer{i}") for i in range(6)))
    assert [row[:2] for row in found] == [["x 6: layer0 ... layer5", "the next row"], ["", "layer0"]]
