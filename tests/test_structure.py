"""What the code may import, how large its files may grow, what it says of itself."""

import ast
import importlib
import re
import sys
from pathlib import Path

import pytest

import jaxdml as dml

PACKAGE = Path(dml.__file__).parent
ROOT = PACKAGE.parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
# Which modules of the package a module may import, by its place in the layers; a folder stands for its files.
ALLOWED = {
    "_data_types": set(),
    "_lowering": set(),
    "_shapes": set(),
    "_tables": set(),
    "errors": set(),
    "reference": set(),
    "_strides": {"_shapes"},
    "_numerics": {"_shapes"},
    "feature_levels": {"_data_types"},
    "_desc_table": {"_data_types", "_tables", "feature_levels"},
    "descs": {"_data_types", "_desc_table"},
    "_tensor_rules": {"_data_types", "_strides", "descs", "errors"},
    "_size_rules": {"_data_types", "_shapes", "_tensor_rules", "descs", "feature_levels"},
    "_validate": {"_data_types", "_size_rules", "_tensor_rules", "descs", "errors", "feature_levels"},
    "_arguments": {
        "_data_types", "_lowering", "_shapes", "_tensor_rules", "_validate", "descs", "errors", "feature_levels",
    },
    "_contract": {"_lowering", "_numerics"},
    "_operator": {"_validate", "descs", "errors", "feature_levels"},
    "_ops": {
        "_arguments", "_contract", "_data_types", "_lowering", "_numerics", "_operator", "_shapes", "_tensor_rules",
        "descs", "feature_levels",
    },
    "_fake_quantize": {"_arguments", "_numerics", "_ops", "_tensor_rules", "feature_levels"},
    "_prepare": {"_arguments", "_lowering", "_tensor_rules", "_validate", "feature_levels"},
    "checked": {"_fake_quantize", "_ops", "descs"},
    "_views": {"_shapes", "_strides", "descs"},
    "_bindings": {"_data_types", "_strides", "_tensor_rules", "descs", "errors"},
    "_compile": {
        "_bindings", "_data_types", "_desc_table", "_ops", "_prepare", "_strides", "_tensor_rules", "_validate",
        "_views", "descs", "feature_levels",
    },
    "_feature_support": {
        "_desc_table", "_tables", "_tensor_rules", "_validate", "descs", "errors", "feature_levels",
    },
    "_json_values": {"_tensor_rules"},
    "_desc_json": {"_data_types", "_json_values", "_tensor_rules", "descs", "errors"},
    "dxdispatch": {
        "_bindings", "_compile", "_data_types", "_desc_json", "_json_values", "_size_rules", "_tensor_rules",
        "_validate", "descs", "errors", "feature_levels",
    },
    "__init__": {
        "_compile", "_data_types", "_desc_json", "_fake_quantize", "_feature_support", "_lowering", "_operator", "_ops",
        "_prepare", "_tensor_rules", "_validate", "checked", "descs", "dxdispatch", "errors", "feature_levels",
    },
    "examples": {"__init__", "reference"},
    "__main__": {"__init__", "examples", "reference"},
}  # fmt: skip


def imports(path):
    """Every module that a file imports, in full."""
    for node in ast.walk(ast.parse(path.read_text())):
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


def layer(module):
    """The layer of a module of the package: 'jaxdml._ops.x' lies in '_ops', 'jaxdml' is '__init__'."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def wrong_imports(path, relative):
    own = relative.parts[0].removesuffix(".py")
    for module in imports(path):
        if module.split(".")[0] == "jaxdml" and layer(module) not in ALLOWED[own]:
            same_folder = layer(module) == own and own in ("_lowering", "dxdispatch", "examples")
            if not same_folder:
                yield f"{relative} imports {module}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    assert list(wrong_imports(path, path.relative_to(PACKAGE))) == []


def test_a_wrong_import_would_be_seen(tmp_path):
    file = tmp_path / "errors.py"
    file.write_text("from jaxdml._validate import validate\nfrom jaxdml import descs\n")
    assert len(list(wrong_imports(file, Path("errors.py")))) == 2


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_public_and_declared_modules_are_imported(path):
    declared = {"jax", "numpy", "chex", "jaxdml"}
    for module in imports(path):
        assert module.split(".")[0] in declared | set(sys.stdlib_module_names)
        assert "_src" not in module
        assert not (module.startswith(("jax.", "numpy.")) and "._" in module)
    assert not re.search(r"\b_src\b", path.read_text())


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_stay_small(path):
    assert len(path.read_text().splitlines()) <= 300


def test_the_reference_imports_numpy_alone():
    assert {module.split(".")[0] for module in imports(PACKAGE / "reference.py")} == {"numpy", "typing"}


def test_public_names():
    assert dml.__all__ == sorted(dml.__all__)
    for name in dml.__all__:
        assert getattr(dml, name).__doc__
    public = {name for name in vars(dml) if not name.startswith("_")}
    modules = {"descs", "errors", "examples", "feature_levels", "reference"}
    assert public - modules == set(dml.__all__)


def test_every_operator_cites_its_page():
    for name in dml.feature_levels.SUPPORT:
        text = getattr(dml, name).__doc__
        for part in ("Args:", "Returns:", "Raises:", "Source: DirectML, DML_" + name.upper()):
            assert part in text


def test_modules_import_by_themselves():
    for path in SOURCES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] not in ("__init__", "__main__"):
            importlib.import_module(".".join(parts))
