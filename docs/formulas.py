"""A Sphinx extension: formulas become MathML, which browsers render without a script and without a network."""

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def mathml(formula: str, display: str = "inline") -> str:
    """A TeX formula as MathML; of the environments with aligned lines, the converter supports only align*."""
    return convert(formula.replace("{aligned}", "{align*}"), display=display)


def inline(self: HTML5Translator, node: nodes.math) -> None:
    """Writes an inline formula."""
    self.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def block(self: HTML5Translator, node: nodes.math_block) -> None:
    """Writes a displayed formula; one that is wider than the page scrolls."""
    self.body.append(self.starttag(node, "div", CLASS="math"))
    self.body.append(f"{mathml(node.astext(), 'block')}</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
