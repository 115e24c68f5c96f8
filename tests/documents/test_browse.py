"""The look at the site in a browser, as `make docs` takes it: it names each fault of a page, and passes good pages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BROWSE = Path(__file__).parents[2] / "docs" / "browse.py"
pytestmark = pytest.mark.rare
PAGE = """<!doctype html><html lang="en"><head><link rel="icon" href="data:,"><style>body {{ margin: 0 }}</style></head>
<body><main>{}</main></body></html>"""
BLOCK = '<div style="width: {}px; height: {}px">block</div>'
CODE = "<pre>some code</pre>" * 3
FOUND = '<div id="search-results">{}</div>'
LINKS = '<a href="docs/{}.html">found</a>'
CONVOLUTION, RELU6, GUIDE, CHANGES = map(
    LINKS.format, ("reference/quantized_linear_convolution", "recipes/activations", "ptq", "../CHANGELOG")
)


def box(width, tag="div"):
    """Something that scrolls by itself."""
    return f'<{tag} style="overflow-x: auto"><table><tr><td>{BLOCK.format(width, 5)}</td></tr></table></{tag}>'


SCROLLS = "has a box that scrolls sideways in a window of {}: 'block'"
ENTRY = '<p class="active" style="position: fixed; top: {}px"><a>entry</a></p>'
SIDEBAR = f'<div id="pst-primary-sidebar"><div class="bd-docs-nav">{ENTRY}{ENTRY}</div></div>'
# The content of a page, and what is said of it.
BAD = {
    "docs/too_wide": (BLOCK.format(1500, 5), [f"is 1500 pixels wide in a window of {width}" for width in (1440, 390)]),
    "docs/too_wide_for_a_phone": (BLOCK.format(391, 5), ["is 391 pixels wide in a window of 390"]),
    "docs/box": (box(1500), [SCROLLS.format(1440), SCROLLS.format(390)]),
    "docs/box_on_a_phone": (box(500), [SCROLLS.format(390)]),
    "docs/code": (box(1500, "pre"), [SCROLLS.format(1440)]),
    "benchmarks/results/forgotten_cpu": (box(1500), [SCROLLS.format(1440)]),
    "docs/too_long": (BLOCK.format(5, 6001), ["is 6001 pixels long"]),
    "docs/index": (BLOCK.format(5, 900) + CODE, ["begins with 3 blocks of code that end at"]),
    "docs/entry_below": (SIDEBAR.format(9, 895), ["has its entry in the sidebar out of sight"]),
    "docs/entry_above": (SIDEBAR.format(9, -40), ["has its entry in the sidebar out of sight"]),
    "docs/image": ('<img src="none.png">', ["logs Failed to load resource", "lacks the image"]),
    "docs/logs": ("<script>console.error('a message')</script>", ["logs a message"]),
    "docs/throws": ("<script>throw Error('a message')</script>", ["has an error: Error: a message", "    at http://"]),
}
TEX = {
    "alpha": r"raw \alpha and x",
    "cdot": r"a \cdot b",
    "le": r"a \le b",
    "frac": r"\frac{a}{b}",
    "round": r"see \(x\) here",
    "square": r"see \[x\] here",
    "space": r"a\,b",
    "dollar": "a value $x_1$ here",
    "emphasized": "a value $x<em>1 + y</em>1$ here",
    "dollars": "$$x$$",
    "index": "x_{1}",
    "power": "2^{32}",
}
BAD |= {f"docs/tex_{name}": (f"<p>{text}</p>", ["shows TeX"]) for name, text in TEX.items()}
GOOD = {
    "docs/index": CODE,
    "docs/narrow": BLOCK.format(390, 6000),
    "docs/code": box(1000, "pre") + r"<pre>\alpha $HOME $x</pre><p><code>\frac{a}{b} $a$</code></p>",
    "docs/words": r"<p>'^mix\.filter$', keep='float' or '^stem$'; a_b, 2^31, [a](b), 5 $ and 6 $</p>",
    "docs/entry": SIDEBAR.format(-40, 9),
    "docs/reference/long": BLOCK.format(5, 6001),
    "benchmarks/results/forgotten_cpu": box(1000),
    "search": FOUND.format(CONVOLUTION + RELU6 + GUIDE + CHANGES),
}


def look(site, pages, **environment):
    """The finished process that looked at a site of these pages."""
    for name, content in pages.items():
        path = site / f"{name}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PAGE.format(content), encoding="utf-8")
    command = [sys.executable, str(BROWSE), str(site), str(site.with_name("pictures"))]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    done = look(tmp_path_factory.mktemp("good") / "site", GOOD)
    if done.stdout.startswith("the site is not looked at"):
        pytest.skip(done.stdout)
    return done


@pytest.fixture(scope="module")
def said(good, tmp_path_factory):
    """What is said of bad pages, and of a search that does not find one of the pages, nor a guide before changes."""
    pages = {name: content for name, (content, _) in BAD.items()} | {"search": FOUND.format(CONVOLUTION + CHANGES)}
    done = look(tmp_path_factory.mktemp("bad") / "site", pages)
    assert done.returncode == 1, done.stderr
    return done.stdout.splitlines()


def test_good_pages_pass(good):
    shown = f"{len(GOOD)} pages fit their windows, and the search finds what is there\n"
    assert (good.returncode, good.stdout) == (0, shown), good.stderr


@pytest.mark.parametrize("page", BAD)
def test_each_fault_is_named_once(page, said):
    _, expected = BAD[page]
    lines = [line for line in said if f"{page}.html" in line]
    assert len(lines) == len(expected), lines
    assert all(part in line for part, line in zip(expected, lines, strict=True)), lines


def test_nothing_else_is_said(said):
    pages = [f"{page}.html" for page in BAD]
    others = [line for line in said if not any(page in line for page in pages)]
    assert others == [
        "the search for ReLU6 does not find recipes/activations",
        "the search for calibration does not list docs/ptq.html before CHANGELOG",
    ]


def test_without_a_chromium_a_line_says_so(tmp_path):
    nowhere = {"PATH": str(tmp_path), "PLAYWRIGHT_BROWSERS_PATH": str(tmp_path)}
    done = look(tmp_path / "site", GOOD, CHROMIUM="", **nowhere)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"the site is not looked at: there is no Chromium at {tmp_path}")
    done = look(tmp_path / "site", GOOD, CHROMIUM="nothing", **nowhere)
    assert done.returncode == 1
    assert done.stderr == "CHROMIUM is nothing, and there is no such file\n"
