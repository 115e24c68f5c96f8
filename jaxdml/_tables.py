"""Writes tables as aligned text, Markdown and HTML."""

import html
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

ELLIPSIS = "..."
SHORT = 8  # characters of a word that is never cut

# Notebooks and web pages have light and dark themes, so lines and tints derive from the text's color. Selectors name
# the class twice to override JupyterLab's rules.
STYLE = """
.jaxdml-table { max-width: 100%; max-height: 40em; overflow: auto; }
.jaxdml-table.jaxdml-table table {
  display: table; width: auto; margin: 0; border-collapse: collapse; color: inherit;
}
.jaxdml-table.jaxdml-table caption { caption-side: top; padding: 0.3em 0; color: inherit; text-align: left; }
.jaxdml-table.jaxdml-table :is(th, td) {
  max-width: 26em; padding: 0.3em 0.8em; text-align: left; vertical-align: top;
  white-space: normal; overflow-wrap: break-word;
}
.jaxdml-table.jaxdml-table th {
  position: sticky; top: 0; white-space: nowrap; backdrop-filter: blur(0.5em); box-shadow: inset 0 -1px currentColor;
}
.jaxdml-table.jaxdml-table .number { text-align: right; font-variant-numeric: tabular-nums; }
.jaxdml-table.jaxdml-table .emphasized td { background: color-mix(in srgb, currentColor 12%, transparent); }
.jaxdml-table.jaxdml-table .emphasized td:first-child { box-shadow: inset 0.25em 0 currentColor; }
@media print { .jaxdml-table { max-height: none; } }
"""


class Table(NamedTuple):
    """A title, a header and rows of text.

    `numbers` names the columns to align right. `emphasized` has the indices of the rows that `html` shows in bold.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Collection[str] = ()
    emphasized: Collection[int] = ()

    def __str__(self) -> str:
        return "\n".join([self.title, *self.lines()])

    def lines(self, *, widest: int | None = None, rule: str | None = None) -> list[str]:
        """The header and the rows in aligned columns, without the title.

        Cells longer than `widest` are cut, except in the last column: in the first column, which has names, each name
        keeps its end; other cells keep their start. "..." stands for what is left out. If `rule` is given, a line of
        dashes follows the header, and `rule` is the text between the dashes of two columns.
        """
        if not self.header:
            return []
        table = [self.header, *self.rows]
        *widths, last = (max(map(len, column)) for column in zip(*table, strict=True))
        widths = [*(width if widest is None else min(width, widest) for width in widths), last]

        def aligned(name: str, cell: str, width: int) -> str:
            if len(cell) > width:
                cell = _start(_ends(cell, width) if name == self.header[0] else cell, width)
            return cell.rjust(width) if name in self.numbers else cell.ljust(width)

        lines = ["  ".join(map(aligned, self.header, cells, widths)).rstrip() for cells in table]
        if rule is not None:
            lines.insert(1, rule.join("-" * width for width in widths))
        return lines

    def markdown(self) -> str:
        """The table in Markdown, without the title. Cells may hold Markdown; a | in a cell is escaped."""
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)

    def html(self) -> str:
        """The table in HTML for a notebook: a box that scrolls, in the colors of its surroundings."""
        title = html.escape(self.title).replace("\n", "<br>")
        if not self.header:
            return f"<div>{title}</div>"
        classes = [' class="number"' if name in self.numbers else "" for name in self.header]
        header = "".join(
            f'<th scope="col"{each}>{html.escape(name)}</th>' for name, each in zip(self.header, classes, strict=True)
        )
        table = f"<caption>{title}</caption><thead><tr>{header}</tr></thead>"
        rows = (_row(cells, classes, place in self.emphasized) for place, cells in enumerate(self.rows))
        table += f"<tbody>{''.join(rows)}</tbody>"
        # With a tabindex, the box can take keyboard focus and be scrolled with keys.
        return f'<div class="jaxdml-table" tabindex="0"><style>{STYLE}</style><table>{table}</table></div>'


def _ends(cell: str, width: int) -> str:
    """The ends of the names in a cell, which distinguish layers; short words, such as "x 12:", are kept."""
    names = [word for word in cell.split() if len(word) > SHORT]
    share = max((width - len(cell) + sum(map(len, names))) // max(len(names), 1), SHORT)
    return re.sub(rf"\S{{{share + 1},}}", lambda name: ELLIPSIS + name[0][len(ELLIPSIS) - share :], cell)


def _start(cell: str, width: int) -> str:
    return cell if len(cell) <= width else cell[: width - len(ELLIPSIS)] + ELLIPSIS


def _row(cells: Sequence[str], classes: Sequence[str], is_emphasized: bool) -> str:
    texts = "".join(f"<td{each}>{_cell(cell, is_emphasized)}</td>" for cell, each in zip(cells, classes, strict=True))
    return f"<tr{' class="emphasized"' * is_emphasized}>{texts}</tr>"


def _cell(cell: str, is_emphasized: bool) -> str:
    text = html.escape(cell)
    return f"<strong>{text}</strong>" if text and is_emphasized else text
