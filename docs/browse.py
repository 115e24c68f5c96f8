"""`python docs/browse.py build/docs FOLDER`: the site in Chromium, on a wide and a narrow screen, light and dark.

It writes a picture of each page, and fails where a page is wider than its window, where a page logs an error, or where
the search does not find what is there. It needs the package playwright and a Chromium, which `CHROMIUM` names.
"""

import functools
import http.server
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

WIDTHS = {1280: 900, 390: 844}
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


def looked_at(browser: Browser, address: str, pages: list[str], pictures: Path) -> list[str]:
    """What is wrong with pages, each of which becomes a picture for each width and scheme of colours."""
    wrong = []
    for scheme in ("light", "dark"):
        for width, height in WIDTHS.items():
            window = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            window.on("pageerror", lambda error: wrong.append(f"a page logs an error: {error.stack}"))
            for page in pages:
                window.goto(f"{address}/{page}")
                wide = window.evaluate("document.documentElement.scrollWidth")
                if wide > width:
                    wrong.append(f"{page} is {wide} pixels wide in a window of {width}")
                name = page.replace("/", "-").removesuffix(".html")
                window.screenshot(path=pictures / f"{name}-{width}-{scheme}.png", full_page=True)
            window.close()
    return wrong


def searched(browser: Browser, address: str) -> list[str]:
    """What the search does not find."""
    window, wrong = browser.new_page(), []
    for words, page in SEARCHED.items():
        window.goto(f"{address}/search.html?q={words}")
        try:
            window.wait_for_selector(f"#search-results a[href*='{page}']", timeout=10_000)
        except Exception as error:
            wrong.append(f"the search for {words} does not find {page}: {error}")
    return wrong


if __name__ == "__main__":
    site, pictures = map(Path, sys.argv[1:])
    pictures.mkdir(parents=True, exist_ok=True)
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html") if not path.match("_static/**"))
    with served(site) as address, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=os.environ.get("CHROMIUM"))
        found = [*looked_at(browser, address, pages, pictures), *searched(browser, address)]
        browser.close()
    print("\n".join(found) or f"{len(pages)} pages fit their windows, and the search finds what is there")
    sys.exit(bool(found))
