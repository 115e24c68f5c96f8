"""`python docs/browse.py build/docs FOLDER`: the site in Chromium, on a wide and a narrow screen, light and dark.

It writes a picture of each page. It fails where a page is wider than its window, logs an error or asks for what is not
there, and where the search does not find what is there. It needs the extra `docs` and a Chromium: that of
`playwright install chromium`, or the one that `CHROMIUM` names.
"""

import functools
import http.server
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright
from playwright.sync_api import TimeoutError as WaitedTooLong

WIDTHS = {1280: 900, 390: 844}
UNREACHED = "net::ERR_"  # another server does not answer: without a network MathJax is missing, and formulas stay TeX
SEARCHED = {"ReLU6": "recipes/activations", "quantized_linear_convolution": "reference/quantized_linear_convolution"}


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and prints nothing."""

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def served(site: Path) -> Iterator[str]:
    """The address of the site; search needs pages that come from a server."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@contextmanager
def opened(browser: Browser, wrong: list[str], **options: Any) -> Iterator[Page]:
    """A window that adds the errors of its pages to a list: of scripts, of files that are not there."""
    window = browser.new_page(**options)
    window.on("pageerror", lambda error: wrong.append(f"{window.url} has an error: {error.stack}"))

    def noted(message: ConsoleMessage) -> None:
        if message.type == "error" and UNREACHED not in message.text:
            wrong.append(f"{window.url} logs {message.text} of {message.location['url']}")

    window.on("console", noted)
    yield window
    window.close()


def looked_at(browser: Browser, address: str, pages: list[str], pictures: Path) -> list[str]:
    """What is wrong with pages, each of which becomes a picture for each width and scheme of colours."""
    wrong: list[str] = []
    for scheme in ("light", "dark"):
        for width, height in WIDTHS.items():
            size = {"width": width, "height": height}
            with opened(browser, wrong, viewport=size, color_scheme=scheme) as window:
                for page in pages:
                    window.goto(f"{address}/{page}")
                    wide = window.evaluate("document.documentElement.scrollWidth")
                    if wide > width:
                        wrong.append(f"{page} is {wide} pixels wide in a window of {width}")
                    name = page.replace("/", "-").removesuffix(".html")
                    window.screenshot(path=pictures / f"{name}-{width}-{scheme}.png", full_page=True)
    return wrong


def searched(browser: Browser, address: str) -> list[str]:
    """What the search does not find, and the errors of its page."""
    wrong: list[str] = []
    with opened(browser, wrong) as window:
        for words, page in SEARCHED.items():
            window.goto(f"{address}/search.html?q={words}")
            try:
                window.wait_for_selector(f"#search-results a[href*='{page}']", timeout=10_000)
            except WaitedTooLong:
                wrong.append(f"the search for {words} does not find {page}")
    return wrong


if __name__ == "__main__":
    site, pictures = map(Path, sys.argv[1:])
    pictures.mkdir(parents=True, exist_ok=True)
    found = {path.relative_to(site) for path in site.rglob("*.html")} - {Path("index.html")}  # which only redirects
    pages = sorted(path.as_posix() for path in found if path.parts[0] != "_static")
    with served(site) as address, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=os.environ.get("CHROMIUM"))
        wrong = [*looked_at(browser, address, pages, pictures), *searched(browser, address)]
        browser.close()
    print("\n".join(wrong) or f"{len(pages)} pages fit their windows, and the search finds what is there")
    sys.exit(bool(wrong))
