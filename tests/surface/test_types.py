"""Type checkers on code that calls the operators. They see jaxdml as users do, from outside."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FINE, WRONG = "user_code.py", "user_mistakes.py"


def run(*command, folder):
    environment = os.environ | {"MYPYPATH": str(ROOT), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout, done.stderr


def mypy(folder):
    """File and line of each error; those of jaxdml's own files are for `make lint`."""
    pytest.importorskip("mypy")
    options = ["--strict", "--config-file=", "--follow-imports=silent", "--hide-error-context", "--no-error-summary"]
    printed, problems = run("mypy", *options, FINE, WRONG, folder=folder)
    assert problems == ""
    found = (line.split(":") for line in printed.splitlines() if ": error:" in line)
    return {(name, int(number)) for name, number, *_ in found}


def pyright(folder):
    pytest.importorskip("pyright")
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)], "include": [FINE, WRONG]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    printed, problems = run("pyright", "--outputjson", "--pythonpath", sys.executable, folder=folder)
    errors = json.loads(printed or problems)["generalDiagnostics"]
    return {(Path(error["file"]).name, error["range"]["start"]["line"] + 1) for error in errors}


@pytest.mark.rare
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_right_code_passes_and_each_mistake_is_found(checker, tmp_path):
    for name in (FINE, WRONG):
        shutil.copy(HERE / name, tmp_path)
    function = ast.parse((HERE / WRONG).read_text(encoding="utf-8")).body[-1]
    mistakes = {(WRONG, node.lineno) for node in function.body[1:]}
    assert len(mistakes) == 9
    found = checker(tmp_path)
    assert found == mistakes
