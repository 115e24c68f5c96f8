"""Tables that read well in a terminal, in Markdown and in a notebook."""

import html
from collections.abc import Collection, Sequence
from typing import NamedTuple

# Notebooks and pages have themes of their own, light and dark. So no colour is named here: lines and tints are made of
# the colour of the text. The class stands twice in a selector so that these rules go before those of JupyterLab.
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
    """A title, a header and rows of text, for a terminal, a page or a notebook.

    `numbers` are the columns of the header that a notebook aligns right. `emphasized` are the places of the rows that a
    notebook shows in bold and tinted, the first row at 0.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Collection[str] = ()
    emphasized: Collection[int] = ()

    def __str__(self) -> str:
        if not self.header:
            return self.title
        lines = [self.header, *self.rows]
        widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
        text = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
        return "\n".join([self.title, *(line.rstrip() for line in text)])

    def markdown(self) -> str:
        """Without the title. Cells are Markdown; a | in a cell is escaped, as it would end the cell."""
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)

    def html(self) -> str:
        """For a notebook: in a box that scrolls where the table is larger, in the colours of whatever is around it."""
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
        # By tabindex the keyboard reaches the box, and scrolls it.
        return f'<div class="jaxdml-table" tabindex="0"><style>{STYLE}</style><table>{table}</table></div>'


def _row(cells: Sequence[str], classes: Sequence[str], is_emphasized: bool) -> str:
    texts = "".join(f"<td{each}>{_cell(cell, is_emphasized)}</td>" for cell, each in zip(cells, classes, strict=True))
    return f"<tr{' class="emphasized"' * is_emphasized}>{texts}</tr>"


def _cell(cell: str, is_emphasized: bool) -> str:
    text = html.escape(cell)
    return f"<strong>{text}</strong>" if text and is_emphasized else text
