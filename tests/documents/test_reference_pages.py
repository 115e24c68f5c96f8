"""docs/reference/ has a page for each operator, and one autodoc directive for each public name."""

import inspect
import re
from collections import Counter
from pathlib import Path

import generate
import pytest

import jaxdml as dml
import jaxdml.onnx
from jaxdml._directml.pages import PAGES
from jaxdml._operators.call import OPERATORS

ROOT = Path(__file__).parents[2]
REFERENCE = {path.stem: path.read_text(encoding="utf-8") for path in sorted(generate.REFERENCE.glob("*.md"))}
HEADINGS = ["Formula", "Function and desc", "Example", "Errors", "Feature levels"]
TYPES = re.compile(r"^\.\. py:data:: (\w+)", re.M)  # autodoc finds no docstring of a type alias
CHECKED = re.compile(r"(?<=[ ])jaxdml\.checked\.\w+(?=\()")  # they share one directive and one docstring


def parts(text):
    """The sections of a page by heading, and the text before them."""
    before, *sections = re.split(r"^## ", text, flags=re.M)
    return before, {heading: body for heading, _, body in (section.partition("\n") for section in sections)}


@pytest.mark.parametrize("operator", PAGES)
def test_an_operator_has_its_page(operator):
    text = REFERENCE[operator]
    assert text == generate.operator_page(operator, text)
    before, sections = parts(text)
    assert before.startswith(f"# {operator}\n")
    assert list(sections) == HEADINGS
    (link,) = re.findall(rf"\| \[`{operator}`\]\(\S+\) \| \[`\w+`\]\((\S+)\) \|", REFERENCE["index"])
    assert f"[DML_{operator.upper()}_OPERATOR_DESC]({link})" in before
    assert "numerics.md" in sections["Formula"]
    names = generate.documented(sections["Function and desc"])
    assert names == [f"jaxdml.{operator}", f"jaxdml.{PAGES[operator].desc.__name__}"]


@pytest.mark.parametrize("operator", PAGES)
def test_the_formula_names_what_the_function_takes(operator):
    _, sections = parts(REFERENCE[operator])
    (formula,) = re.findall(r"^\$\$\n(.*?)\n\$\$$", sections["Formula"], re.M | re.S)
    named = set(re.findall(r"\\mathrm\{(.*?)\}", formula.replace("\\_", "_")))
    assert {*OPERATORS[operator].parameters.tensors, "output"} <= named


@pytest.mark.parametrize("operator", PAGES)
def test_the_formula_divides_by_scales_of_what_is_quantized_alone(operator):
    _, sections = parts(REFERENCE[operator])
    divides = {"output_scale"} if "dequantize" in operator else {"output_scale", "scale"}
    joined = re.findall(r"(\\cdot|/) \\mathrm\{(\w*scale)\}", sections["Formula"].replace("\\_", "_"))
    assert bool(joined) == ("scale" in sections["Formula"])
    assert joined == [("/" if name in divides else "\\cdot", name) for _, name in joined]


@pytest.mark.parametrize("operator", PAGES)
def test_examples_and_errors_show_what_is_printed(operator):
    """Another test asserts, for all pages, that they print it."""
    _, sections = parts(REFERENCE[operator])
    assert f"dml.{operator}(" in sections["Example"]
    wrong, right = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", sections["Errors"], re.S)
    calls = re.findall(rf"^    lambda: dml\.{operator}\(", wrong[0], re.M)
    assert 2 <= len(calls) <= 3
    assert re.findall(r"^\w+: ", wrong[1], re.M) == [f"{operator}: "] * len(calls)
    assert "try:" not in right[0]


def test_levels_link_to_the_pages():
    levels = generate.LEVELS.read_text(encoding="utf-8")
    assert re.findall(r"^\| \[`(\w+)`\]\(reference/(\w+)\.md\)", levels, re.M) == [(name, name) for name in PAGES]


def test_the_index_is_the_generated_one():
    assert REFERENCE["index"] == generate.reference_index()
    assert {*PAGES, *generate.PAGES_OF_OTHERS, "index"} == REFERENCE.keys()


def targets():
    """The full names of all objects that directives document."""
    for text in REFERENCE.values():
        yield from generate.documented(text)
        yield from CHECKED.findall(text)
    assert ".. automodule:: jaxdml.reference\n   :members:" in REFERENCE["reference_module"]
    yield from (f"jaxdml.reference.{name}" for name in functions(dml.reference))
    yield from (f"jaxdml.typing.{name}" for name in TYPES.findall(REFERENCE["typing"]))


def functions(module):
    """The public functions that a module defines."""
    own = vars(module).items()
    return [
        name
        for name, value in own
        if inspect.isfunction(value) and inspect.getmodule(value) is module and name[0] != "_"
    ]


def test_each_public_name_is_documented_once():
    """An object that is public under several names has one directive, under one of them."""
    modules = (dml, dml.descs, dml.typing, dml.onnx, dml.ptq, dml.dxdispatch)
    public = [f"{module.__name__}.{name}" for module in modules for name in module.__all__]
    public += [f"jaxdml.checked.{name}" for name in dir(dml.checked)]
    public += [f"jaxdml.reference.{name}" for name in functions(dml.reference)]
    public += [f"jaxdml.errors.{name}" for name in vars(dml.errors) if name.endswith("Error")]
    assert len(public) > 100
    documented = Counter(id(generate.public(name)) for name in targets())
    assert {name: documented[id(generate.public(name))] for name in public} == dict.fromkeys(public, 1)
