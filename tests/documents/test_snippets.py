"""Each snippet of README and docs runs, and prints the text shown."""

import contextlib
import io
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import generate
import jax
import pytest

from helpers.marks import rest_rarely
from helpers.platforms import between_processes

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in PAGES}
WITH_SNIPPETS = [name for name, text in DOCUMENTS.items() if "```python" in text]
FENCES = {
    "python",
    "text",
    "sh",
    "powershell",
    "{toctree}",
    "{eval-rst}",
    "{include} ../README.md",
}  # of these, python alone is code to run
SNIPPET = re.compile(r"```python\n(.*?)```(?:\n```text\n(.*?)```)?", re.S)
FILE = re.compile(r"# (\w+\.py)\n")  # the first line of a snippet that is a program of its own
MORE_DEVICES = "jax_num_cpu_devices"  # a document with this needs a process of its own
END = "\N{END OF TRANSMISSION}"


def snippets(document):
    """The code that continues from snippet to snippet, and the output shown for each."""
    found = [(code, output) for code, output in SNIPPET.findall(DOCUMENTS[document]) if not FILE.match(code)]
    assert DOCUMENTS[document].count("```python") == len(SNIPPET.findall(DOCUMENTS[document]))
    return found


def environment():
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": path}


def run_here(code, document, folder):
    """With jax's own defaults, which readers have, in a folder for files that the code writes."""
    printed = io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(printed),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        exec(compile(code, document, "exec"), {})
    return printed.getvalue()


def run_apart(code, document, folder):
    command = [sys.executable, "-W", "error", "-c", code]
    options = {"env": environment(), "cwd": folder, "capture_output": True, "text": True}
    run = subprocess.run(command, **options, check=False, timeout=300)
    assert run.returncode == 0, f"{document}: {run.stderr}"
    return run.stdout


@pytest.mark.parametrize(
    "document",
    rest_rarely(WITH_SNIPPETS, 1),  # README.md comes first; `make docs` runs all
)
def test_snippets_print_what_follows_them(document, tmp_path):
    codes, outputs = zip(*snippets(document), strict=True)
    code = f"\nprint({END!r})\n".join(codes)
    run = run_apart if MORE_DEVICES in code else run_here
    assert run(code, document, tmp_path).split(f"{END}\n") == list(outputs)


def test_pages_have_snippets():
    """All except those that list pages, or describe the inside."""
    lists = {"docs/index.md", "docs/recipes/index.md", "docs/feature_levels.md", "docs/installing.md"}
    lists |= {page.relative_to(ROOT).as_posix() for page in generate.TIMES_PAGES.values()}
    lists |= {"docs/times/blocks.md", "docs/times/limits.md", "docs/times/ptq.md"}
    inside = {f"docs/{name}.md" for name in ("accelerators", "changing", "design", "exact_rules", "onnx_fusing")}
    inside |= {"docs/numerics_accelerators.md", "docs/numerics_products.md", "docs/native_memory.md"}
    inside |= {"docs/accuracy_tools.md", "docs/exact_sums.md", "docs/native_files.md", "docs/ptq_integers.md"}
    inside |= {"docs/native_sets.md", "docs/onnx_numerics.md", "docs/onnx_limits.md"}
    names = {f"docs/reference/{name}.md" for name in (*generate.PAGES_OF_OTHERS, "index")}
    names.remove("docs/reference/matrix_multiply_blocks.md")
    assert set(DOCUMENTS) - set(WITH_SNIPPETS) == lists | inside | names


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_code_hides_from_the_tests_behind_another_fence(document):
    """Fences open and close in turn; an opening fence names its language, as ```python and not as ```py."""
    fences = re.findall(r"^[ >]*((?:`{3,}|~{3,}).*)$", DOCUMENTS[document], re.M)
    assert set(fences[1::2]) <= {"```"}
    assert set(fences[::2]) <= {f"```{language}" for language in FENCES}


@pytest.mark.rare
@between_processes
def test_several_processes_print_what_is_shown(tmp_path):
    document = DOCUMENTS["docs/scaling_out.md"]
    (code,) = (code for code, _ in SNIPPET.findall(document) if FILE.match(code))
    (tmp_path / FILE.match(code)[1]).write_text(code)
    commands, shown = re.search(r"```sh\n(.*?)```\n```text\n(.*?)```", document, re.S).groups()
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    calls = re.findall(r"python (\w+\.py .*?)(?: &|;)", commands.replace("1234", port))
    assert len(calls) == 2
    options = {
        "env": environment(),
        "cwd": tmp_path,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    processes = [subprocess.Popen([sys.executable, *call.split()], **options) for call in calls]
    try:
        outputs = [process.communicate(timeout=180) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [process.returncode for process in processes] == [0, 0], outputs
    printed = "".join(output for output, _ in outputs).splitlines()
    assert [line for line in printed if not line.startswith("[Gloo]")] == shown.splitlines()
