"""The completions of `jaxdml.`, and what works after `import jaxdml` alone."""

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import jaxdml as dml
from helpers.marks import rest_rarely
from helpers.platforms import posix
from jaxdml._directml.pages import PAGES

PACKAGE = Path(dml.__file__).parent
SUBMODULES = ("checked", "descs", "dxdispatch", "errors", "examples", "onnx", "ptq", "reference", "typing")
BLOCKS = ("matrix_multiply_blocks", "prepare_matrix_multiply_blocks")
TYPED = [*PAGES, "fake_quantize", "prepare_matrix_multiply_b", "prepare_convolution_filter", *BLOCKS]


def in_a_fresh_process(code):
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_dir_has_every_public_name():
    assert {name for name in dir(dml) if not name.startswith("_")} == {*dml.__all__, *SUBMODULES}
    paths = (path for path in PACKAGE.iterdir() if path.suffix == ".py" or list(path.glob("*.py")))
    assert set(SUBMODULES) == {path.stem for path in paths if not path.stem.startswith("_")}
    assert len(dml.__all__) == len(set(dml.__all__))
    for name in (*dml.__all__, *SUBMODULES):
        assert getattr(dml, name).__doc__


@pytest.mark.rare
def test_dir_has_every_public_name_before_any_is_used():
    printed = in_a_fresh_process("import jaxdml\nprint(*dir(jaxdml))").split()
    assert {*dml.__all__, *SUBMODULES} <= set(printed)


@pytest.mark.rare
def test_dir_leaves_out_onnx_where_it_is_not_installed():
    code = """
import inspect, sys
sys.modules["onnx"] = None
import jaxdml
print(*dict(inspect.getmembers(jaxdml)))
"""
    names = in_a_fresh_process(code).split()
    assert {name for name in SUBMODULES if name not in names} == {"onnx"}


@pytest.mark.rare
@posix
@pytest.mark.parametrize(
    "names", rest_rarely([["onnx", "ptq"], [*SUBMODULES, "examples.digits"]], 1), ids=["two", "all"]
)
def test_a_submodule_works_after_importing_jaxdml(names):
    """Each in a copy of a process that has imported nothing else."""
    code = f"""
import operator, os, jaxdml
for name in {names}:
    child = os.fork()
    if not child:
        print(operator.attrgetter(name)(jaxdml).__name__, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
    assert in_a_fresh_process(code).split() == [f"jaxdml.{name}" for name in names]


def test_submodules_are_imported_when_they_are_used():
    code = "import sys, jaxdml\nprint(*(name for name in sys.modules if name.startswith('jaxdml.')))"
    imported = in_a_fresh_process(code).split()
    assert {f"jaxdml.{name}" for name in ("descs", "errors", "typing")} <= set(imported)
    assert not {f"jaxdml.{name}" for name in ("checked", "dxdispatch", "examples", "onnx", "ptq", "reference")} & {
        *imported
    }


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'jaxdml' has no attribute 'quantise'"):
        _ = dml.quantise


def test_descs_are_in_a_module_of_their_own_too():
    assert dml.descs.__all__ == sorted(dml.descs.__all__)
    assert {page.desc.__name__ for page in PAGES.values()} <= set(dml.descs.__all__)
    for name in dml.descs.__all__:
        assert getattr(dml.descs, name) is getattr(dml, name)


def test_public_signatures_have_types():
    """An editor can then show the types of arguments."""
    for name in TYPED:
        annotations = getattr(dml, name).__annotations__
        assert not [parameter for parameter, kind in annotations.items() if kind is Any]
        assert len(annotations) > 1


def test_signatures_name_what_an_array_is_for():
    """Editors show these names in place of the unions that they stand for."""
    shown = str(inspect.signature(dml.quantized_linear_matrix_multiply))
    assert shown.startswith("(a: Array, a_scale: Scale, a_zero_point: ZeroPoint | None, b: ")
    for name in TYPED:
        for parameter in inspect.signature(getattr(dml, name)).parameters.values():
            expected = {"scale": "Scale", "point": "ZeroPoint"}.get(parameter.name.rpartition("_")[2])
            assert expected is None or str(parameter.annotation).startswith(expected), (name, parameter)


def test_types_are_aliases_whose_names_editors_show():
    source = (PACKAGE / "typing.py").read_text(encoding="utf-8")
    for name in dml.typing.__all__:
        assert f"\ntype {name} = " in source
