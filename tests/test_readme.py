"""README and docs show what happens: each snippet runs and prints what is shown, each table is the generated one."""

import contextlib
import io
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import jaxdml as dml
from jaxdml import __main__ as program
from jaxdml._directml.pages import PAGES

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import generate  # noqa: E402

README = (ROOT / "README.md").read_text()
DOCUMENTS = {path.name: path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}
SNIPPET = re.compile(r"```python\n(.*?)```(?:\n```text\n(.*?)```)?", re.S)
FILE = re.compile(r"# (\w+\.py)\n")  # the first line of a snippet that is a program of its own
MORE_DEVICES = "jax_num_cpu_devices"  # a document with this needs a process of its own
END = "\N{END OF TRANSMISSION}"


def snippets(document):
    """The code that goes on from snippet to snippet, and what each is shown to print."""
    found = [(code, output) for code, output in SNIPPET.findall(DOCUMENTS[document]) if not FILE.match(code)]
    assert DOCUMENTS[document].count("```python") == len(SNIPPET.findall(DOCUMENTS[document]))
    return found


def environment():
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": path}


def run_here(code, document):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, document, "exec"), {})
    return printed.getvalue()


def run_apart(code, document):
    command = [sys.executable, "-W", "error", "-c", code]
    run = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, f"{document}: {run.stderr}"
    return run.stdout


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if "```python" in DOCUMENTS[name]])
def test_snippets_print_what_follows_them(document):
    codes, outputs = zip(*snippets(document), strict=True)
    code = f"\nprint({END!r})\n".join(codes)
    run = run_apart if MORE_DEVICES in code else run_here
    assert run(code, document).split(f"{END}\n") == list(outputs)


def test_every_document_that_promises_snippets_has_some():
    more = [
        "dxdispatch",
        "from_directml",
        "native",
        "numerics",
        "onnx",
        "performance",
        "ptq",
        "scaling_out",
        "winograd",
    ]
    documents = ["README.md", *(f"{name}.md" for name in more)]
    assert [name for name in DOCUMENTS if "```python" in DOCUMENTS[name]] == documents


def test_several_processes_print_what_is_shown(tmp_path):
    document = DOCUMENTS["scaling_out.md"]
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


def test_demo_prints_what_is_shown(capsys):
    assert program.main([]) == 0
    shown, printed = (
        [line for line in text.splitlines() if not line.startswith(("speed", "device", "kernels"))]
        for text in (re.search(r"```text\n(.*?)```", README, re.S)[1], capsys.readouterr().out)
    )
    assert printed == shown


def test_tables_are_those_generated():
    assert generate.readme(README) == README
    assert generate.levels() == generate.LEVELS.read_text()
    page = generate.ONNX.read_text()
    assert generate.onnx_page(page) == page
    assert "| 2_1 |" in README


def test_every_operator_is_listed_with_a_link_to_its_page():
    linked = dict(re.findall(r"^\| \[`(\w+)`\]\((\S+)\) \|", README, re.M))
    address = "https://learn.microsoft.com/windows/{}/ns-directml-dml_{}_operator_desc"
    folders = {
        operator: "win32/api/directml" if min(page.support) < dml.FeatureLevel.LEVEL_6_2 else "ai/directml/api"
        for operator, page in PAGES.items()
    }  # Microsoft moved the pages after DirectML 1.12
    assert linked == {operator: address.format(folders[operator], operator) for operator in PAGES}
    assert all(linked[operator] in getattr(dml, operator).__doc__ for operator in linked)


def cells(line):
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_times_are_those_measured():
    """Above 1 jaxdml is faster: the results have jaxdml's time over the peer's, the table the inverse."""
    rows = json.loads((ROOT / "benchmarks" / "results" / "cpu_avx512_vnni.json").read_text())["cases"]
    measured = {f"{row['family']}, {row['case']}": row for row in rows}
    header, _, *lines = re.search(r"<!-- times -->\n(.*?)\n<!-- end -->", README, re.S)[1].splitlines()
    assert cells(header)[0].endswith("above 1, jaxdml is faster")
    assert len(lines) > 5
    for line in lines:
        case, *shown = cells(line)
        contenders = measured[case]["contenders"]
        ours = contenders[measured[case]["form"]]["milliseconds"]
        peers = ("onnxruntime", "onnxruntime, uint8 weights", "lax int8", "lax float32")
        for cell, peer in zip(shown, peers, strict=True):
            if peer not in contenders:
                assert cell == ""
                continue
            number, _, mark = cell.partition(" ")
            assert float(number) == pytest.approx(contenders[peer]["milliseconds"] / ours, rel=0.06)
            assert mark == ("†" if contenders[peer]["differing"] else "")


def test_readme_is_short():
    """At most 1,100 words outside of code."""
    text = re.sub(r"^```.*?^```", "", README, flags=re.M | re.S)
    assert len(text.split()) <= 1100


def test_links_lead_somewhere():
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", (path.parent / target).read_text(), re.M)
                assert anchor in [heading.lower().replace(" ", "-") for heading in headings]


def test_version_is_in_the_changelog():
    assert f"## [{dml.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
