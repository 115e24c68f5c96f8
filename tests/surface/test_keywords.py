"""Documents call operators by keyword if they pass more than four arguments in a row."""

import ast
import json
import re
from pathlib import Path

import pytest

from jaxdml._operators.call import OPERATORS

ROOT = Path(__file__).parents[2]
SNIPPET = re.compile(r"```python\n(.*?)```", re.S)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def code_of(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return SNIPPET.findall(text)
    cells = (cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")
    return ["".join(cell["source"]) for cell in cells]


def long_calls(code):
    """Calls of operators, by their names or others, with more than four positional arguments."""
    tree = ast.parse("\n".join(line for line in code.splitlines() if not line.startswith(("%", "!"))))
    aliases = {
        node.targets[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.value).rpartition(".")[2] in OPERATORS
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in {*OPERATORS, *aliases}:
            pairs = sum(isinstance(argument, ast.Starred) for argument in node.args)
            if len(node.args) + pairs > 4:
                yield ast.unparse(node)


@pytest.mark.parametrize("path", PAGES + NOTEBOOKS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_long_calls_are_by_keyword(path):
    found = [call for code in code_of(path) for call in long_calls(code)]
    if path.name == "04_scale_out.ipynb":  # passes on the positional arguments of a network's layer
        found.remove("jaxdml.quantized_linear_matrix_multiply(x, x_scale, x_zero_point, weights, *others)")
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "dml.quantized_linear_matrix_multiply(a, 1.0, None, b, 1.0)",
        "jaxdml.quantized_linear_matrix_multiply(a, *a_grid, b, *b_grid)",
        "multiply = dml.quantized_linear_matrix_multiply\nmultiply(a, 1.0, None, b, 1.0)",
    ],
)
def test_a_long_call_would_be_seen(code):
    assert len(list(long_calls(code))) == 1
