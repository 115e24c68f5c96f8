"""Descs and feature support as tables, in a terminal and in a notebook."""

import dataclasses
import re

import numpy as np
import pytest

import jaxdml as dml
from helpers.descs import OPERATORS
from jaxdml._tables import Table

X, F = np.zeros((1, 2, 5, 5), np.uint8), np.zeros((3, 2, 3, 3), np.int8)
CONVOLVE = dml.desc_of(dml.quantized_linear_convolution, X, 0.1, 3, F, 0.1, None, None, 0.5, 5, strides=2)


def test_a_desc_prints_as_a_table():
    lines = str(CONVOLVE).splitlines()
    assert lines[0] == "quantized_linear_convolution, feature level 6_4"
    assert lines[1].startswith("DimensionCount 2, Strides [2, 2], Dilations [1, 1], StartPadding [0, 0]")
    rows = {name: cells for name, *cells in (re.split(" {2,}", line) for line in lines[3:])}
    assert rows["InputTensor"] == ["input", "UINT8", "[1, 2, 5, 5]", "packed", "INT8, UINT8; rank 3 to 4"]
    assert rows["BiasTensor"] == ["absent", "INT32; rank 3 to 4; optional"]
    assert list(rows) == list(CONVOLVE.tensors())


def test_a_desc_is_a_table_in_a_notebook():
    owned = dataclasses.replace(CONVOLVE.filter_tensor, flags=dml.TensorFlags.OWNED_BY_DML)
    desc = dataclasses.replace(CONVOLVE, filter_tensor=owned)
    html = desc._repr_html_()
    assert html.count("<tr>") == 1 + len(CONVOLVE.tensors())
    assert "input, owned by DML" in html
    op = dml.compile_operator(desc, dml.FeatureLevel.LEVEL_5_2)
    assert "feature level 5_2" in op._repr_html_()
    assert str(op).splitlines()[0] == "quantized_linear_convolution, feature level 5_2"


def test_a_wrong_desc_is_shown_all_the_same():
    for desc in (
        dml.OperatorDesc(),
        dml.QuantizedLinearMatrixMultiplyDesc(),
        dml.ElementWiseDequantizeLinearDesc(input_tensor="<b>", scale_tensor=3),
        dml.ElementWiseDequantizeLinearDesc(input_tensor=dml.TensorDesc("UINT8", 4, "no", flags="flags")),
    ):
        assert str(desc)
        assert "<b>" not in desc._repr_html_()


def test_feature_support():
    support = dml.check_feature_support("quantized_linear_convolution", dml.FeatureLevel.LEVEL_5_1)
    assert support.is_supported
    assert support.tensors["FilterScaleTensor"] == ((3, 4), (dml.DataType.FLOAT32,), False)
    assert support.options["DimensionCount"].startswith("1 to 2")
    assert support.minimum_feature_level == dml.FeatureLevel.LEVEL_2_1
    assert "BiasTensor             INT32; rank 3 to 4; optional" in str(support)
    assert support._repr_html_().count("<tr>") == 1 + 10 + 6 + 4
    for name in ("DML_OPERATOR_QUANTIZED_LINEAR_CONVOLUTION", "QUANTIZED_LINEAR_CONVOLUTION", CONVOLVE):
        assert dml.check_feature_support(name, dml.FeatureLevel.LEVEL_5_1) == support
    early = dml.check_feature_support(dml.element_wise_quantized_linear_add, dml.FeatureLevel.LEVEL_3_1)
    assert not early.is_supported
    assert early.tensors == {}
    assert str(early) == "element_wise_quantized_linear_add, feature level 3_1: not supported, introduced in 4_0"
    assert "introduced in 4_0" in early._repr_html_()
    expected = ", ".join(sorted(OPERATORS)[:-1]) + f" or {max(OPERATORS)}"
    for wrong in ("gemm", [1], None):
        with pytest.raises(dml.DescError, match=rf"operator is .*, expected {expected}$"):
            dml.check_feature_support(wrong)
    with pytest.raises(dml.DescError, match="feature_level is 4, expected a FeatureLevel"):
        dml.check_feature_support("quantized_linear_convolution", 4)


def test_long_cells_are_cut_and_numbers_aligned_right():
    table = Table("title", ("name", "dB", "remark"), [("abcdefgh", "1.5", "a long remark"), ("b", "22.0", "")], ["dB"])
    assert str(table).splitlines() == [
        "title", "name        dB  remark", "abcdefgh   1.5  a long remark", "b         22.0",
    ]  # fmt: skip
    assert table.lines(widest=6, rule="  ") == [
        "name      dB  remark", "------  ----  -------------", "abc...   1.5  a long remark", "b       22.0",
    ]  # fmt: skip
    assert table.lines(widest=6, rule="--")[1] == "-" * 27


def test_names_that_are_cut_keep_their_ends():
    name = "module/bert/encoder/layers/{}/query"
    cells = (name.format(0), f"x 12: {name.format(0)} ... {name.format(11)}", "many short words in the place of a name")
    table = Table("", ("node", "remark"), [(cell, cell) for cell in cells])
    assert table.lines(widest=30)[1:] == [
        f"...bert/encoder/layers/0/query  {cells[0]}",
        f"x 12: .../query ... .../query   {cells[1]}",
        f"many short words in the pla...  {cells[2]}",
    ]
    assert table.lines(widest=40)[1].startswith(f"{cells[0]}  ")
    assert table.lines(widest=40)[2].startswith("x 12: ...ers/0/query ... ...rs/11/query  ")
