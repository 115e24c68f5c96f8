"""`python docs/browse.py build/docs FOLDER`: the site in Chromium, on a wide and a narrow screen, light and dark.

It fails if a page is wider than its window or far too long, if anything in it scrolls sideways (on a narrow screen,
anything but code), if a page shows TeX, misses an image, logs an error or requests a missing file, if the sidebar does
not show the entry of a page, if the first screen of the first page does not show how to begin, or if the search does
not find an existing page or lists changes before a guide. It writes screenshots of a few pages to FOLDER. It needs the
extra `docs` and a Chromium: the one that `CHROMIUM` names, that of the system, or that of `playwright install
chromium`. Without a Chromium it prints so, and succeeds.
"""

import functools
import http.server
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright
from playwright.sync_api import TimeoutError as WaitedTooLong

WIDTHS = {1440: 900, 390: 844}
WIDE, LONGEST = 1440, 6000  # pixels
MAY_BE_LONG = re.compile(r"notebooks/|docs/reference/|CHANGELOG")  # which are read in parts
# Tables of eight columns, half of them words, which no type that can be read fits into a narrow screen.
MAY_SCROLL = re.compile(r"benchmarks/results/forgotten_")
HOME, FIRST = "docs/index.html", 3  # what the demo prints, how to install, and an example
PICTURED = {"index", "ptq", "onnx", "start", "performance", "reference/quantized_linear_convolution"}
SEARCHED = {"ReLU6": "recipes/activations", "quantized_linear_convolution": "reference/quantized_linear_convolution"}
GUIDE, CHANGES = "docs/ptq.html", "CHANGELOG"  # by title, as Sphinx orders equal pages, the changes come first
WORDS = "[...document.querySelectorAll('main *:not(code):not(pre):not(script)')].flatMap(x => [...x.childNodes])"
WORDS += ".filter(x => x.nodeType == 3 && !x.parentElement.closest('code, pre, script')).map(x => x.data).join(' ')"
# A command such as \alpha or \frac{, a mark such as \( or $$, an index such as _{, or text between dollars. A dollar
# that ends a word or opens a quotation is one of a regular expression.
TEX = re.compile(r"\\[a-zA-Z]+|\\[()\[\]{},;!]|\$\$|[_^]\{|(?<!\w)\$[^\s'\"][^$]*\$")
RESULTS = "[...document.querySelectorAll('#search-results a')].map(x => x.href)"
MISSING_IMAGES = "[...document.images].filter(x => x.complete && !x.naturalWidth).map(x => x.src)"
SCROLLING = "ignored => [...document.querySelectorAll('main *')].filter(x => x.offsetWidth && !x.closest(ignored)"
SCROLLING += " && x.scrollWidth > x.clientWidth + 1 && getComputedStyle(x).overflowX != 'visible')"
SCROLLING += ".map(x => x.innerText.trim().slice(0, 40).replace(/\\s+/g, ' '))"
END_OF_CODE = "place => document.querySelectorAll('main pre')[place]?.getBoundingClientRect().bottom ?? Infinity"

# The sidebar scrolls by itself; a page that is not listed there has no entry.
ENTRY = "[...document.querySelectorAll('#pst-primary-sidebar .bd-docs-nav .active > a')].slice(-1)"
HIDDEN = f"{ENTRY}.some(x => x.getBoundingClientRect().top < 0 || x.getBoundingClientRect().bottom > innerHeight)"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without logging."""

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


@contextmanager
def served(site: Path) -> Iterator[str]:
    """The address of the site; search needs pages that come from a server."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@contextmanager
def opened(browser: Browser, wrong: list[str], **options: Any) -> Iterator[Page]:
    """A window that adds the errors of its pages to a list: those of scripts, and missing files."""
    window = browser.new_page(**options)
    window.on("pageerror", lambda error: wrong.append(f"{window.url} has an error: {error.stack}"))

    def noted(message: ConsoleMessage) -> None:
        if message.type == "error":
            wrong.append(f"{window.url} logs {message.text} of {message.location['url']}")

    window.on("console", noted)
    yield window
    window.close()


def faults(window: Page, page: str, width: int) -> Iterator[str]:
    """The faults of a page in a window of a given width."""
    wide, tall = window.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
    if wide > width:
        yield f"{page} is {wide} pixels wide in a window of {width}"
    if width == WIDE or not MAY_SCROLL.search(page):
        for begin in window.evaluate(SCROLLING, ":not(*)" if width == WIDE else "pre"):
            yield f"{page} has a box that scrolls sideways in a window of {width}: {begin!r}"
    if width == WIDE:
        if tall > LONGEST and not MAY_BE_LONG.search(page):
            yield f"{page} is {tall} pixels long"
        if page == HOME and (end := window.evaluate(END_OF_CODE, FIRST - 1)) > WIDTHS[WIDE]:
            yield f"{page} begins with {FIRST} blocks of code that end at {end}, below the first {WIDTHS[WIDE]} pixels"
        if window.evaluate(HIDDEN):
            yield f"{page} has its entry in the sidebar out of sight"
        yield from (f"{page} lacks the image {image}" for image in window.evaluate(MISSING_IMAGES))
        if found := TEX.search(window.evaluate(WORDS)):
            yield f"{page} shows TeX: {found[0]}"


def looked_at(browser: Browser, address: str, pages: list[str], pictures: Path) -> list[str]:
    """The faults of pages; takes screenshots of some, for each width and colour scheme."""
    wrong: list[str] = []
    for scheme in ("light", "dark"):
        for width, height in WIDTHS.items():
            size = {"width": width, "height": height}
            with opened(browser, wrong, viewport=size, color_scheme=scheme) as window:
                for page in pages:
                    window.goto(f"{address}/{page}")
                    wrong += faults(window, page, width)
                    name = page.removeprefix("docs/").removesuffix(".html")
                    if name in PICTURED:
                        path = pictures / f"{name.replace('/', '-')}-{width}-{scheme}.png"
                        window.screenshot(path=path, full_page=True)
    return list(dict.fromkeys(wrong))


def searched(browser: Browser, address: str) -> list[str]:
    """The pages that the search does not find or lists in a wrong order, and the errors of the search page."""
    wrong: list[str] = []
    with opened(browser, wrong) as window:
        for words, page in [*SEARCHED.items(), ("calibration", CHANGES)]:
            window.goto(f"{address}/search.html?q={words}", wait_until="networkidle")  # it reads the pages it quotes
            try:
                window.wait_for_selector(f"#search-results a[href*='{page}']", timeout=10_000)
            except WaitedTooLong:
                wrong.append(f"the search for {words} does not find {page}")
        listed = [page for link in window.evaluate(RESULTS) for page in (GUIDE, CHANGES) if page in link]
        if listed[:1] != [GUIDE]:
            wrong.append(f"the search for calibration does not list {GUIDE} before {CHANGES}")
    return wrong


if __name__ == "__main__":
    site, pictures = map(Path, sys.argv[1:])
    with sync_playwright() as play:
        own = play.chromium.executable_path
        named = os.environ.get("CHROMIUM")
        chromium = named or shutil.which("chromium") or own
        if named and not Path(named).exists():
            sys.exit(f"CHROMIUM is {named}, and there is no such file")
        if not Path(chromium).exists():
            print(f"the site is not looked at: there is no Chromium at {chromium}; install one, or name it by CHROMIUM")
            sys.exit()
        pictures.mkdir(parents=True, exist_ok=True)
        found = {path.relative_to(site) for path in site.rglob("*.html")} - {Path("index.html")}  # which only redirects
        pages = sorted(path.as_posix() for path in found if path.parts[0] != "_static")
        with served(site) as address:
            # The pages are our own, and Chromium's sandbox does not start in a container.
            browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            wrong = [*looked_at(browser, address, pages, pictures), *searched(browser, address)]
            browser.close()
    print("\n".join(wrong) or f"{len(pages)} pages fit their windows, and the search finds what is there")
    sys.exit(bool(wrong))
