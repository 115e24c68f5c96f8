"""The command that changes the library must detect tests that do not run, or it would count every mutant as caught."""

import pytest

from commands import mutants

SUITE = {
    "pyproject.toml": "[tool.pytest.ini_options]\n",
    "jaxdml/__init__.py": "def limit(x):\n    return x < 3\n",
    "tests/test_limit.py": "import jaxdml\n\n\ndef test_limit():\n    assert jaxdml.limit(2)\n",
    "tests/test_nothing.py": "",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in SUITE.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_every_module_and_every_test_file_that_the_command_names_exists():
    for module, tests in mutants.TARGETS.items():
        for path in (module, *tests):
            assert (mutants.ROOT / path).exists(), path
    sources = "".join((mutants.ROOT / module).read_text(encoding="utf-8") for module in mutants.TARGETS)
    for guard in mutants.GUARDS:
        assert f"{guard}(" in sources, guard


@pytest.mark.rare
def test_a_mutant_is_caught_if_a_test_fails_and_survives_if_all_pass(folder):
    count, survived = mutants.survivors(folder, "jaxdml/__init__.py", ["tests/test_limit.py"])
    assert count == 2  # <= for <, and 4 for 3: limit(2) is the same
    assert [(before, after) for _, before, after in survived] == [("x < 3", "x <= 3"), ("3", "4")]
    (folder / "tests/test_limit.py").write_text(
        "import jaxdml\n\n\ndef test_limit():\n    assert not jaxdml.limit(3)\n"
    )
    assert mutants.survivors(folder, "jaxdml/__init__.py", ["tests/test_limit.py"]) == (2, [])


@pytest.mark.rare
def test_a_mutant_is_not_taken_for_the_bytecode_of_the_one_before(folder, monkeypatch):
    """Python compares only a source's size and modification second."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    assert mutants.outcome(folder, ["tests/test_limit.py"]) == "passed"
    assert list(folder.rglob("*.pyc")) == []


@pytest.mark.rare
def test_a_package_that_cannot_be_imported_is_caught(folder):
    (folder / "tests/conftest.py").write_text("import jaxdml\n")
    (folder / "jaxdml/__init__.py").write_text("1 / 0\n")
    assert mutants.outcome(folder, ["tests/test_limit.py"]) == "not imported"
    (folder / "tests/conftest.py").unlink()
    assert mutants.outcome(folder, ["tests/test_limit.py"]) == "failed"


@pytest.mark.rare
@pytest.mark.parametrize(("name", "code"), [("test_gone.py", 4), ("test_nothing.py", 5)])
def test_tests_that_do_not_run_end_the_command(folder, name, code):
    with pytest.raises(SystemExit, match=f"pytest ended with {code} on .*{name}"):
        mutants.survivors(folder, "jaxdml/__init__.py", [f"tests/{name}"])


@pytest.mark.rare
def test_tests_that_fail_without_a_change_end_the_command(folder):
    (folder / "jaxdml/__init__.py").write_text("def limit(x):\n    return x < 1\n")
    with pytest.raises(SystemExit, match="without a change its tests failed"):
        mutants.survivors(folder, "jaxdml/__init__.py", ["tests/test_limit.py"])


@pytest.mark.rare
def test_tests_that_never_end_are_given_up(folder):
    (folder / "jaxdml/__init__.py").write_text("def limit(x):\n    while True: pass\n")
    assert mutants.outcome(folder, ["tests/test_limit.py"], timeout=1) == "timed out"
