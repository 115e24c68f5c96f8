"""The README shows what happens: its code runs and prints what it says, its errors are those that one gets."""

import contextlib
import io
import json
import re
import sys
from pathlib import Path

import numpy as np

import jaxdml as dml
from jaxdml import __main__ as program

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import generate  # noqa: E402

README = (ROOT / "README.md").read_text()
TEXTS = re.findall(r"```text\n(.*?)```", README, re.S)


def error(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except dml.DescError as error:
        return str(error)
    raise AssertionError("no error")


def test_code_prints_what_follows_it():
    blocks = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", README, re.S)
    assert blocks
    names = {}  # the blocks go on from each other
    for code, output in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), names)
        assert printed.getvalue() == output


def test_demo_prints_what_is_shown(capsys):
    assert program.main([]) == 0
    shown, printed = (
        [line for line in text.splitlines() if not line.startswith(("speed", "device"))]
        for text in (TEXTS[0], capsys.readouterr().out)
    )
    assert printed == shown


def test_errors_are_those_shown():
    x, f = np.zeros((1, 2, 8, 8), np.uint8), np.zeros((6, 2, 3, 3), np.int8)
    desc = dml.QuantizedLinearConvolutionDesc(
        input_tensor=dml.TensorDesc(dml.DataType.UINT8, x.shape),
        input_scale_tensor=dml.TensorDesc(dml.DataType.FLOAT32, (1, 1, 1, 1)),
        filter_tensor=dml.TensorDesc(dml.DataType.INT8, f.shape),
        filter_scale_tensor=dml.TensorDesc(dml.DataType.FLOAT32, (6,)),
        output_scale_tensor=dml.TensorDesc(dml.DataType.FLOAT32, (1, 1, 1, 1)),
        output_tensor=dml.TensorDesc(dml.DataType.UINT8, (1, 6, 6, 6)),
        dimension_count=2, strides=(1, 1), dilations=(1, 1), start_padding=(0, 0), end_padding=(0, 0), group_count=1,
    )  # fmt: skip
    errors = [
        error(dml.validate, desc, dml.FeatureLevel.LEVEL_4_0),
        error(
            dml.quantized_linear_matrix_multiply, x[0, 0], 1.0, np.asarray(3, np.int8), x[0, 0], 1.0, None, 1.0, None
        ),
        error(dml.quantized_linear_convolution, x, 1.0, 3, f, 1.0, None, None, 1.0, None, dilations=9),
    ]
    (shown,) = (text for text in TEXTS if "FilterScaleTensor has rank" in text)
    assert shown.splitlines() == errors


def test_tables_of_feature_levels_are_those_generated():
    assert "| 2_1 |" in README
    assert generate.readme(README) == README
    assert generate.levels() == generate.LEVELS.read_text()


def test_times_are_those_measured():
    rows = json.loads((ROOT / "benchmarks" / "results" / "cpu.json").read_text())["cases"]
    measured = {f"{row['family']}, {row['case']}": row["ratios"] for row in rows}
    header, _, *lines = re.search(r"^\| case \|.*?\n\n", README, re.M | re.S)[0].strip().splitlines()
    peers = [cell.strip() for cell in header.split("|")[2:-1]]
    assert len(lines) > 5
    for line in lines:
        case, *cells = (cell.strip() for cell in line.split("|")[1:-1])
        assert cells == [f"{measured[case][peer]:.2g}" if peer in measured[case] else "" for peer in peers]


def test_version_is_in_the_changelog():
    assert f"## [{dml.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
