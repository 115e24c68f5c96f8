"""Notebooks show all that print shows, as one balanced table, in the colours of their surroundings."""

import html.parser
import importlib.resources
import re

import jax
import numpy as np
import pytest

import jaxdml as dml
from helpers.hostile_models import model, node
from jaxdml._graph import report
from jaxdml._graph.graph import Graph, Node, Operator
from jaxdml._tables import STYLE, Table

SCRIPT = "<script>alert('a' + \"b\")</script>&amp;"
RANDOM = np.random.default_rng(3)
X = RANDOM.standard_normal((8, 16), np.float32)
PARAMS = {"first": RANDOM.standard_normal((16, 8), np.float32), SCRIPT: RANDOM.standard_normal((8, 4), np.float32)}
CONVOLVE = dml.desc_of(
    dml.quantized_linear_convolution, np.zeros((1, 2, 5, 5), np.uint8), 0.1, 3, np.zeros((3, 2, 3, 3), np.int8), 0.1,
    None, None, 0.5, 5, strides=2,
)  # fmt: skip
RATIOS = dml.ptq.Sqnr((dml.ptq.LayerError(SCRIPT, "add", float("inf"), 37.04, 0.0123),), (36.96,), ("output",))


class Reader(html.parser.HTMLParser):
    """Reads a fragment, and fails if a tag is not closed, is unknown, or has an unknown attribute."""

    TAGS = ("div", "style", "table", "caption", "thead", "tbody", "tr", "th", "td", "strong")

    def __init__(self, text):
        super().__init__()
        self.open, self.caption, self.rows, self.strong, self.emphasized = [], "", [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        assert given.keys() <= {"class", "scope", "tabindex"}
        if tag == "br":
            self.handle_data("\n")
            return
        assert tag in self.TAGS
        if tag == "table":
            assert self.open == ["div"]  # which scrolls
        if tag == "tr":
            self.rows.append([])
            self.emphasized.append(given.get("class") == "emphasized")
        if tag in ("th", "td"):
            self.rows[-1].append("")
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"th", "td"} & set(self.open):
            self.rows[-1][-1] += data
        elif "style" not in self.open:
            self.caption += data
        if self.open[-1] == "strong":
            self.strong.append(data)


def of_script(operator="Relu"):
    """An ONNX model whose every name is a script."""
    nodes = [node(operator, [SCRIPT], [f"{SCRIPT}y"], name=SCRIPT)]
    return dml.onnx.load(model(nodes, inputs=[(SCRIPT,)], outputs=[(f"{SCRIPT}y",)]))


def quantized():
    def apply(params, x):
        return jax.nn.relu(x @ params["first"]) @ params[SCRIPT]

    rules = [dml.ptq.Rule("^first$", keep="float")]
    return dml.ptq.quantize(apply, PARAMS, [X], rules=rules, progress=False)


SHOWN = {
    "desc": lambda: CONVOLVE,
    "wrong desc": lambda: dml.ElementWiseDequantizeLinearDesc(input_tensor=SCRIPT, scale_tensor=3),
    "empty desc": dml.OperatorDesc,
    "compiled operator": lambda: dml.compile_operator(CONVOLVE, dml.FeatureLevel.LEVEL_5_2),
    "feature support": lambda: dml.check_feature_support(CONVOLVE),
    "no feature support": lambda: dml.check_feature_support("quantize", dml.FeatureLevel.LEVEL_1_0),
    "ONNX model": lambda: dml.onnx.load(importlib.resources.files("jaxdml.examples") / "digits.onnx"),
    "hostile ONNX model": of_script,
    "quantized function": quantized,
    "ratios": lambda: RATIOS,
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook_shows_what_print_shows(name):
    shown = SHOWN[name]()
    seen = Reader(shown._repr_html_())
    cells = {cell for row in seen.rows for cell in row}
    printed = [cell for line in str(shown).splitlines() for cell in re.split(" {2,}", line.strip()) if cell.strip("- ")]
    assert printed
    for cell in printed:
        found = cell in cells or cell in seen.caption
        # Text that a terminal cuts off is whole in a notebook.
        assert found or any(whole.startswith(cell[:-1]) for whole in cells if len(cell) >= 48), cell
    assert len({len(row) for row in seen.rows}) <= 1


@pytest.mark.parametrize("name", ["wrong desc", "hostile ONNX model", "quantized function", "ratios"])
def test_a_name_is_text_whatever_it_is(name):
    text = SHOWN[name]()._repr_html_()
    assert "<script" not in text
    seen = Reader(text)
    assert SCRIPT in {cell for row in seen.rows for cell in row}


def test_the_names_of_inputs_and_titles_are_text():
    assert f"inputs {SCRIPT}: float32[4]\noutputs {SCRIPT}y: float32[4]" in Reader(of_script()._repr_html_()).caption
    assert Reader(Table(SCRIPT, (), ()).html()).caption == SCRIPT
    assert Reader(Table("", (SCRIPT,), [(SCRIPT,)], emphasized=[0]).html()).rows == [[SCRIPT], [SCRIPT]]


def graph(*places):
    """A node for each of the places, with a remark."""
    nodes = (Node(Operator(f"Op{i}", abs), (), (), {}, f"n{i}", (), f"why {i}", on) for i, on in enumerate(places))
    return Graph(tuple(nodes), (), (), {})


def test_what_runs_in_floats_and_why_stands_out_without_colours():
    seen = Reader(report.html(graph("integers", "floats", "integers"), ("a graph", "and more")))
    assert seen.caption == "a graph: 2 of 3 operators run on integers\nand more"
    assert seen.strong == ["n1", "Op1", "floats", "why 1"]
    assert seen.emphasized == [False, False, True, False]
    assert Reader(report.html(graph("", ""), ("a graph",))).caption == "a graph"


def test_a_cell_without_text_is_not_bold():
    made = Table("", ("a", "b"), [("1", ""), ("2", "")], emphasized=[1]).html()
    assert "<td>1</td><td></td></tr>" in made
    assert "<td><strong>2</strong></td><td></td></tr>" in made


def test_a_table_without_a_header_is_its_title():
    table = Table("nothing\nhere", (), ())
    assert str(table) == "nothing\nhere"
    assert table.html() == "<div>nothing<br>here</div>"


def test_a_cell_of_a_page_keeps_its_bars():
    assert Table("", ("a",), [("x | y",)]).markdown() == "| a |\n| --- |\n| x \\| y |"


def test_numbers_stand_under_one_another():
    text = RATIOS._repr_html_()
    assert '<th scope="col" class="number">own dB</th><th scope="col" class="number">dB so far</th>' in text
    assert '<td class="number">inf</td><td class="number">37.0</td><td class="number">1.2%</td>' in text
    assert text.count('class="number"') == 9


def test_a_large_table_scrolls_in_a_box_of_its_own():
    box = re.search(r"\n\.jaxdml-table \{(.*)\}", STYLE)[1]
    assert "max-width: 100%" in box
    assert "max-height: 40em" in box
    assert "overflow: auto" in box
    text = report.html(graph(*["integers"] * 400), ("a graph",))
    assert text.startswith('<div class="jaxdml-table" tabindex="0">')
    assert len(text) < 100 * 400  # the style stands there once
    assert len(Reader(text).rows) == 401


def test_no_colour_is_fixed():
    """Colours are those of the text, or a part of them, so they suit light and dark backgrounds."""
    declared = re.findall(r"([\w-]+): ([^;]+);", STYLE)
    coloured = [(name, value) for name, value in declared if re.search("color|background|border|shadow|filter", name)]
    assert len(coloured) >= 5
    for name, value in coloured:
        words = set(re.findall(r"[a-zA-Z#][\w#-]*", re.sub(r"\b[\d.]+(em|px)", "", value)))
        assert words <= {"color-mix", "in", "srgb", "currentColor", "transparent", "inherit", "inset", "collapse",
                         "blur"}, name  # fmt: skip
