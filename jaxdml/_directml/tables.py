"""Tables that read well in a terminal, in Markdown and in a notebook."""

import html
from collections.abc import Sequence
from typing import NamedTuple


class Table(NamedTuple):
    """A title, a header and rows of text."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        if not self.header:
            return self.title
        lines = [self.header, *self.rows]
        widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
        text = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
        return "\n".join([self.title, *(line.rstrip() for line in text)])

    def markdown(self) -> str:
        """Without the title."""
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def html(self) -> str:
        def row(tag: str, cells: Sequence[str]) -> str:
            style = "text-align: left"
            return "<tr>" + "".join(f'<{tag} style="{style}">{html.escape(cell)}</{tag}>' for cell in cells) + "</tr>"

        rows = "".join(row("td", cells) for cells in self.rows)
        title = html.escape(self.title).replace("\n", "<br>")
        return f"<table><caption>{title}</caption><thead>{row('th', self.header)}</thead><tbody>{rows}</tbody></table>"
