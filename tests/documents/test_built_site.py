"""A small site, built and checked by the commands of `make docs`: each of them fails if something is wrong."""

import inspect
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import public_names
import pytest

from jaxdml import ptq

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.rare
RULE = re.search(r"^site:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)[1]
INDEX = """# A site

```{toctree}
reference/kernels
```

- `jaxdml.kernels` and `scale`, and [`jaxdml.kernels`](reference/kernels.md)

## About `jaxdml.kernels`
"""
KERNELS = """# Kernels

```{eval-rst}
.. autofunction:: jaxdml.kernels
```
"""


def command(tool, source, site):
    """The command of `make site` with this tool, for another folder of sources and another site."""
    (line,) = (line for line in RULE.splitlines() if tool in line)
    line = line.strip().replace("$(IN_VENV)", sys.executable).replace("--jobs auto ", "").replace("$(SITE) ", "")
    line = line.replace("--conf-dir docs . ", f"--conf-dir {ROOT / 'docs'} {source} ")
    line = line.replace(" docs/check.py", f" {ROOT / 'docs' / 'check.py'}")
    assert line.endswith(" build/docs")
    return [*line.split()[:-1], str(site)]


def run(tool, source, site):
    return subprocess.run(command(tool, source, site), capture_output=True, text=True, check=False, cwd=source)


def build(source, index):
    """Builds a site of two pages; returns the finished process."""
    (source / "docs" / "reference").mkdir(parents=True)
    (source / "docs" / "index.md").write_text(index, encoding="utf-8")
    (source / "docs" / "reference" / "kernels.md").write_text(KERNELS, encoding="utf-8")
    return run("sphinx", source, source / "site")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    source = tmp_path_factory.mktemp("source")
    done = build(source, INDEX)
    assert done.returncode == 0, done.stderr
    return source


@pytest.fixture(scope="module")
def page(source):
    """The text of the first page, from its title to its end."""
    text = (source / "site" / "docs" / "index.html").read_text(encoding="utf-8")
    return re.search(r"<article.*</article>", text, re.S)[0]


def test_inline_code_becomes_one_link(page):
    (item,) = re.findall(r"<li><p>(.*?)</p></li>", page, re.S)
    links = re.findall(r"<a [^>]*?href=\"([^\"]*)\"[^>]*>(.*?)</a>", item, re.S)
    assert [link for link, _ in links] == ["reference/kernels.html#jaxdml.kernels", "reference/kernels.html"]
    assert all("jaxdml.kernels" in shown for _, shown in links)
    assert item.count("<a ") == 2
    (heading,) = re.findall(r"<h2>(.*?)</h2>", page, re.S)
    assert re.findall(r"href=\"([^\"]*)\"", heading) == ["#about-jaxdml-kernels"]  # only the mark next to a heading


def test_the_title_has_the_version(source):
    text = (source / "site" / "docs" / "index.html").read_text(encoding="utf-8")
    assert re.search(r"<title>.* jaxdml \d+\.\d+\.\d+(\+development)?</title>", text.replace("\n", " "))


def test_a_warning_fails_the_build(tmp_path):
    done = build(tmp_path, f"{INDEX}\n[a link to nothing](#nothing)\n")
    assert done.returncode != 0
    assert "WARNING" in done.stderr


def test_check_fails_where_a_link_or_a_name_is_missing(source, tmp_path):
    site = source / "site"
    (site / "index.html").write_text('<a href="nothing.html">', encoding="utf-8")
    done = run("check.py", source, site)
    assert done.returncode == 1
    assert "index.html links to nothing.html, which is not there" in done.stdout
    assert "jaxdml.validate is not in the reference" in done.stdout
    assert "jaxdml.kernels is not" not in done.stdout

    reference = tmp_path / "docs" / "reference"
    reference.mkdir(parents=True)
    names = public_names.full_names().values()
    (reference / "x.html").write_text("".join(f'<dt id="{name}">' for name in names), encoding="utf-8")
    done = run("check.py", source, tmp_path)
    assert (done.returncode, done.stdout) == (0, "every link and name is there\n")
    empty = run("check.py", source, source / "nowhere")
    assert empty.returncode == 1
    assert "has no pages" in empty.stderr


@pytest.mark.parametrize(
    ("changes", "version"),
    [
        ("# Changelog\n\n## [Unreleased]\n\n### Fixed\n- It.\n\n## [1.2.3] - 2026-01-01\n", "1.2.3+development"),
        ("# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-01-01\n\n### Fixed\n- It.\n", "1.2.3"),
        ("# Changelog\n\n## [1.2.3] - 2026-01-01\n\n### Fixed\n- It.\n", "1.2.3"),
    ],
)
def test_a_site_with_changes_after_a_release_says_so(changes, version, monkeypatch):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert runpy.run_path(str(ROOT / "docs" / "conf.py"))["documented"]("1.2.3", changes) == version


def test_signatures_show_types_as_users_write_them(monkeypatch):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(sys, "path", [*sys.path])
    named = runpy.run_path(str(ROOT / "docs" / "conf.py"))["with_names_of_types"]
    signature = str(inspect.signature(ptq.quantize))
    assert "<class 'jax.numpy.uint8'>" in signature
    assert " = jnp.uint8, " in named(signature)
    assert "<class 'jax.numpy" not in named(signature)
