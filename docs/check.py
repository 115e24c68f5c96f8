"""`python docs/check.py build/docs`: checks that links within the site have targets, and public names have entries.

Sphinx warns of wrong links in its own markup. Links of themes, notebooks and raw HTML are only visible in the pages.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from public_names import full_names


class Page(HTMLParser):
    """The links of a page, and the places that others may link to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes the tag's links, and the names by which others may link to it."""
        values = dict(attrs)
        self.places |= {value for name in ("id", "name") if (value := values.get(name))}
        self.links += [value for name in ("href", "src") if (value := values.get(name))]


def wrong_links(site: Path) -> list[str]:
    """Links to missing pages, files or places."""
    found = sorted(path for path in site.rglob("*.html") if "_static" not in path.parts)  # templates of the theme
    pages = {path.resolve(): Page(path.read_text("utf-8")) for path in found}
    wrong = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = target.exists() and target.is_relative_to(site.resolve())
            if there and parts.fragment and target in pages:
                there = unquote(parts.fragment) in pages[target].places
            if not there:
                wrong.append(f"{path.relative_to(site.resolve())} links to {link}, which is not there")
    return wrong


def missing_names(site: Path) -> list[str]:
    """Public names without an entry in the reference."""
    places = {place for path in site.glob("docs/reference/*.html") for place in Page(path.read_text("utf-8")).places}
    return [f"{name} is not in the reference" for name in sorted(set(full_names().values()) - places)]


if __name__ == "__main__":
    site = Path(sys.argv[1])
    if not list(site.rglob("*.html")):
        sys.exit(f"{site} has no pages; make docs builds them")
    found = [*wrong_links(site), *missing_names(site)]
    print("\n".join([*found, f"{len(found)} links or names are missing"]) if found else "every link and name is there")
    sys.exit(bool(found))
