"""A Sphinx extension: inline code that names a public object of jaxdml becomes a link to its reference.

Pages then need no Sphinx markup for links to functions, and read well outside the site.
"""

from typing import Any

from docutils import nodes
from public_names import full_name, full_names
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform


class LinkPublicNames(SphinxTransform):
    """Turns inline code into references, before references are resolved."""

    default_priority = 20

    def apply(self, **_: Any) -> None:
        """Called by Sphinx for each page."""
        names = full_names()
        for literal in list(self.document.findall(nodes.literal)):
            meant = full_name(literal.astext(), names)
            if meant is None or _is_inside(literal, (nodes.reference, nodes.title, pending_xref)):
                continue
            options = {"reftype": "obj", "reftarget": meant, "refexplicit": True, "refwarn": True}
            reference = pending_xref("", refdomain="py", **options)
            literal.replace_self(reference)
            reference += literal


def _is_inside(node: nodes.Node, kinds: tuple[type[nodes.Node], ...]) -> bool:
    while (node := node.parent) is not None:
        if isinstance(node, kinds):
            return True
    return False


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_transform(LinkPublicNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
