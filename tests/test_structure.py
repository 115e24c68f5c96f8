"""The imports that code may have, the size of its files, and the package's statements about itself."""

import ast
import fnmatch
import functools
import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import jaxdml as dml
from jaxdml import reference
from jaxdml._directml.desc import page_name
from jaxdml._directml.pages import PAGES
from jaxdml._operators.call import OPERATORS

PACKAGE = Path(dml.__file__).parent
ROOT = PACKAGE.parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
# From the ground up: a folder or file imports from those in the lines above its own, and from its own folder.
FLOORS = (
    {"_shapes", "_tables", "errors", "reference"},
    {"_directml", "_arithmetic"},
    {"_exact"},
    {"typing"},
    {"_operators"},
    {"_compiled", "checked", "descs"},
    {"dxdispatch"},
    {"_graph"},
    {"_quantized"},
    {"ptq"},
    {"__init__"},
    {"onnx"},
    {"examples"},
    {"__main__"},
)


@functools.cache
def imports(path):
    """Every module that a file imports, in full, anywhere in the file, except imports only for type checkers."""
    return tuple(found_imports(path))


def found_imports(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [
        node for node in tree.body if not isinstance(node, ast.If) or ast.unparse(node.test) != "_typing.TYPE_CHECKING"
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                is_module = node.module.startswith("jaxdml") and (
                    (ROOT / node.module.replace(".", "/") / f"{alias.name}.py").exists()
                    or (ROOT / node.module.replace(".", "/") / alias.name).is_dir()
                )
                yield f"{node.module}.{alias.name}" if is_module else node.module


def room(module):
    """The root's file or folder that has a module: 'jaxdml._operators.x' is in '_operators', 'jaxdml' is itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def floor(name):
    return next(number for number, rooms in enumerate(FLOORS) if name in rooms)


def wrong_imports(path, relative):
    own = relative.parts[0].removesuffix(".py")
    for module in imports(path):
        if module.split(".")[0] == "jaxdml":
            other = room(module)
            if other != own and floor(other) >= floor(own):
                yield f"{relative} imports {module}"


def test_imports_point_one_way():
    assert [wrong for path in SOURCES for wrong in wrong_imports(path, path.relative_to(PACKAGE))] == []


def test_a_wrong_import_would_be_seen(tmp_path):
    file = tmp_path / "rounding.py"
    file.write_text(
        "def f():\n    from jaxdml._directml.validate import validate\nfrom jaxdml import errors, checked\n"
    )
    assert len(list(wrong_imports(file, Path("_arithmetic/rounding.py")))) == 2


def test_every_room_has_a_floor_and_every_folder_a_promise():
    assert {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in SOURCES} == set.union(*FLOORS)
    for path in PACKAGE.glob("_*/__init__.py"):
        promise = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert promise.count(".") == 1
        assert promise.endswith(".")


def test_ruff_sees_every_file():
    """Its default excludes folders of the name `_build`."""
    excluded = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["exclude"]
    for path in (*SOURCES, *TESTS):
        parts = path.relative_to(ROOT).parts
        assert not [pattern for pattern in excluded for part in parts if fnmatch.fnmatch(part, pattern)]


def test_descs_do_not_import_what_prints_them():
    printers = {"jaxdml._directml.desc_table", "jaxdml._tables"}
    for path in [PACKAGE / "_directml" / "desc.py", *(PACKAGE / "_directml" / "pages").glob("*.py")]:
        assert not printers & set(imports(path))


def test_arithmetic_and_pages_know_nothing_of_each_other():
    for path in SOURCES:
        own = path.relative_to(PACKAGE).parts[0]
        if own in ("_directml", "_arithmetic"):
            others = {room(module) for module in imports(path) if module.startswith("jaxdml")}
            assert others <= {own, "_shapes", "_tables", "errors"}


def undeclared(path):
    """The imports of a file that are neither public nor from a package that jaxdml declares."""
    declared = {"jax", "numpy", "chex", "jaxdml"}
    if path.is_relative_to(PACKAGE / "onnx"):
        declared |= {"onnx", "google"}  # onnx is an extra, which stands on google.protobuf
    if path.name in ("sessions.py", "make_digits_onnx.py"):
        declared |= {"onnx", "onnxruntime"}  # imported where they are used
    if path.name == "_sqnr.py":
        declared |= {"matplotlib"}  # imported where it draws
    for module in imports(path):
        is_private = module.startswith(("jax.", "numpy.", "chex.")) and "._" in module
        if module.split(".")[0] not in declared | set(sys.stdlib_module_names) or "_src" in module or is_private:
            yield f"{path} imports {module}"
    if re.search(r"\b_src\b", path.read_text(encoding="utf-8")):
        yield f"{path} names _src"


def test_only_public_and_declared_modules_are_imported():
    assert [wrong for path in SOURCES for wrong in undeclared(path)] == []


@pytest.mark.parametrize(
    "code",
    ["import torch", "from jax._src import core", "import jax._src", "from numpy._core import x", "x = jax._src"],
)
def test_a_private_or_undeclared_import_would_be_seen(code, tmp_path):
    file = tmp_path / "rounding.py"
    file.write_text(f"import jax.numpy as jnp\nfrom jaxdml import errors\n{code}\n")
    assert list(undeclared(file))


def test_files_stay_small():
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES + TESTS}
    assert {str(path.relative_to(ROOT)): count for path, count in lines.items() if count > 400} == {}


def test_exact_comparisons_say_what_differs():
    """`helpers.compare` does; NumPy's comparisons are for values with a tolerance."""
    for path in TESTS:
        assert not re.findall(r"\bassert_array_\w+|\btesting\.assert_equal", path.read_text(encoding="utf-8")), path


def test_the_reference_imports_numpy_alone():
    for path in (PACKAGE / "reference").glob("*.py"):
        assert {module for module in imports(path) if not module.startswith("jaxdml.reference.")} <= {
            "numpy", "numpy.lib.stride_tricks", "collections.abc", "functools", "typing",
        }  # fmt: skip


def test_pages_touch_no_array():
    """They use NumPy's types and its solver of overlaps, and of JAX only types and dimensions."""
    for path in sorted((PACKAGE / "_directml").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert "jax.numpy" not in text
        assert "lax" not in re.findall(r"\b\w+\b", text)


# Operators -----------------------------------------------------------------------------------------------------------


def test_the_registry_has_every_page_function_and_oracle():
    files = {path.stem for path in (PACKAGE / "_directml" / "pages").glob("*.py")} - {"__init__"}
    assert files == set(PAGES) == set(OPERATORS) == set(dir(dml.checked)) - {"fake_quantize"}
    for name, page in PAGES.items():
        assert page.desc.operator == name
        assert page.desc.__name__ == page_name(name) + "Desc"
        for public in (name, page.desc.__name__):
            assert public in dml.__all__
        assert getattr(dml, name) is OPERATORS[name].function
        assert getattr(dml.checked, name).__name__ == name
        assert callable(getattr(reference, name))


def test_an_operator_is_named_in_its_own_files_alone():
    """Adding one touches its page, its function, the reference and the lists of public names."""
    free = {"_operators/prepare.py", "_operators/fake_quantize.py", "_quantized/directml.py"}
    free |= {
        "ptq/_integers/operators.py",
        "ptq/_quantize.py",
        "ptq/__init__.py",
        "__main__.py",
    }  # jaxdml.ptq.quantize is another function of this verb
    for path in SOURCES:
        relative, said = path.relative_to(PACKAGE).as_posix(), all_names(ast.parse(path.read_text(encoding="utf-8")))
        for name in PAGES:
            own = {
                f"_directml/pages/{name}.py",
                f"_operators/{name}.py",
                "reference/operators.py",
                "__init__.py",
                "descs.py",
            }
            if relative not in own | free and not relative.startswith("examples/"):
                for public in (name, PAGES[name].desc.__name__):
                    assert public not in said, f"{relative} names {public}"


def all_names(tree):
    """The names in code and in the errors that it makes; an example in a docstring may name any operator.

    An operator whose name is an English verb may be in the words of an error, but not be a string by itself.
    """
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = set()
    for node in ast.walk(tree):
        found |= {getattr(node, field, None) for field in ("id", "attr", "arg", "name")}
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            words = re.findall(r"\w+", node.value)
            found |= {node.value, *(word for word in words if "_" in word or word[0].isupper())}
    return found


@pytest.mark.parametrize(
    ("code", "name", "is_named"),
    [
        ('"""Such as quantized_linear_convolution."""', "quantized_linear_convolution", False),
        ('if name == "quantized_linear_convolution": pass', "quantized_linear_convolution", True),
        ('raise E(f"write quantized_linear_convolution({x})")', "quantized_linear_convolution", True),
        ('text = "quantize it first"', "quantize", False),
        ('if name == "quantize": pass', "quantize", True),
        ("from a import quantize", "quantize", True),
        ("a.quantize(x)", "quantize", True),
        ("def quantize(): pass", "quantize", True),
        ("element_wise_quantize_linear(x)", "quantize", False),
    ],
)
def test_an_operator_named_elsewhere_would_be_seen(code, name, is_named):
    assert (name in all_names(ast.parse(code))) == is_named


# What the package says of itself -------------------------------------------------------------------------------------


def test_every_operator_cites_its_page():
    for name in PAGES:
        text = getattr(dml, name).__doc__
        for part in ("Args:", "Returns:", "Raises:", "Source: DirectML, DML_" + name.upper()):
            assert part in text
        # Pages of operators that came after DirectML 1.12 lie in another folder.
        folder = "win32/api/directml" if min(PAGES[name].support) < dml.FeatureLevel.LEVEL_6_2 else "ai/directml/api"
        link = f"https://learn.microsoft.com/windows/{folder}/ns-directml-dml_{name}_operator_desc"
        assert link in text
        assert link in PAGES[name].desc.__doc__


def test_public_functions_link_their_source():
    for name in dml.__all__:
        value = getattr(dml, name)
        if callable(value) and not isinstance(value, type):
            assert "https://" in value.__doc__, name


def test_modules_import_by_themselves():
    for path in SOURCES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] not in ("__init__", "__main__"):
            importlib.import_module(".".join(parts))


def test_onnx_is_imported_by_its_own_front_end_alone(tmp_path):
    """It is an extra: `import jaxdml` works without it, and if it is missing, `jaxdml.onnx` says what to install."""
    (tmp_path / "onnx.py").write_text("raise ImportError('not here')\n")
    code = "\n".join(
        [
            "import sys, jaxdml",
            "assert not {'onnx', 'onnxruntime', 'jaxdml.onnx'} & set(sys.modules)",
            "try: jaxdml.onnx.load",
            "except ImportError as error: print(error)",
        ]
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    run = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(run, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.stdout == "jaxdml.onnx needs the package onnx: pip install 'jaxdml[onnx]'\n", done.stderr


def run_with_conftest(folder, text, *options, **variables):
    """pytest's output for a file of tests, with the hooks of conftest.py."""
    (folder / "test_it.py").write_text(f"import pytest\n\n{text}")
    (folder / "pytest.ini").touch()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAXDML_TESTS")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-c", "pytest.ini", *options, str(folder)]
    done = subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=False, cwd=folder)
    return done.stdout + done.stderr


@pytest.mark.rare
def test_where_nothing_may_be_left_out_a_test_that_skips_fails(tmp_path):
    """Continuous integration runs in this way."""
    failed = "1 failed" if dml.kernels().startswith("native") else "there are no native kernels"  # which come first
    for more, said in (({}, "1 skipped"), ({"JAXDML_TESTS_SKIP_NOTHING": "1"}, failed)):
        assert said in run_with_conftest(tmp_path, "def test_it():\n    pytest.skip('not here')\n", **more)


@pytest.mark.rare
def test_the_rest_of_what_is_sampled_is_rare(tmp_path):
    text = "@pytest.mark.sampled(3)\n@pytest.mark.parametrize('i', range(10))\ndef test_it(i):\n    pass\n"
    assert "3 passed, 7 deselected" in run_with_conftest(tmp_path, text, "-m", "not rare")
    assert "7 passed, 3 deselected" in run_with_conftest(tmp_path, text, "-m", "rare")


@pytest.mark.rare
def test_the_parts_of_rare_cases_are_all_cases(tmp_path):
    marks = "@pytest.mark.rare\n@pytest.mark.parametrize('i', range({}))\n"
    text = marks.format(5) + "def test_many(i):\n    pass\n" + marks.format(3) + "def test_few(i):\n    pass\n"
    for part, passed in (("0/3", 3), ("1/3", 3), ("2/3", 2)):
        printed = run_with_conftest(tmp_path, text, "-m", "rare", JAXDML_TESTS_PART=part)
        assert f"{passed} passed, {8 - passed} deselected" in printed


def test_no_constant_of_an_instruction_set_hides_one_of_all_sets():
    names = {"jaxdml": set(), "jaxdml::JAXDML_ISA": set()}
    for path in (ROOT / "native/src").glob("*.h"):
        space = None
        for line in path.read_text(encoding="utf-8").splitlines():
            if found := re.match(r"namespace (\S+) {", line):
                space = found[1]
            elif re.match(r"(inline |static )*constexpr ", line) and space:
                names[space].update(re.findall(r"\b(k[A-Z]\w*)(?:\[\w*\])? =", line))
    assert all(names.values())
    assert not names["jaxdml"] & names["jaxdml::JAXDML_ISA"]
