"""A Sphinx extension: inline code that names a public object of jaxdml becomes a link to its reference.

Pages then need no markup of Sphinx for links to functions, and read well outside of the site.
"""

import importlib
import re
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

MODULES = ("jaxdml", "jaxdml.onnx", "jaxdml.ptq", "jaxdml.dxdispatch")
NAMED = re.compile(r"(?P<package>(?:jaxdml|dml)\.)?(?P<name>\w+(?:\.\w+)*)(?:\(.*\))?", re.S)


def full_names() -> dict[str, str]:
    """Every public name in full, to that of the reference: an exception of two modules is described once."""
    described: dict[int, str] = {}
    return {
        f"{module}.{name}": described.setdefault(id(getattr(imported, name)), f"{module}.{name}")
        for module in MODULES
        for imported in [importlib.import_module(module)]
        for name in imported.__all__
        if not isinstance(getattr(imported, name), ModuleType)
    }


def full_name(text: str, names: dict[str, str]) -> str | None:
    """The public object that inline code names, if it names one, as `ptq.save` and `kernels()` do."""
    found = NAMED.fullmatch(text)
    if found is None:
        return None
    if found["package"] or "." in found["name"]:
        return names.get(f"jaxdml.{found['name']}")
    meant = {full for name, full in names.items() if name.rpartition(".")[2] == found["name"]}
    return meant.pop() if len(meant) == 1 else None  # `quantize` is an operator, and a function of ptq


class LinkPublicNames(SphinxTransform):
    """Makes references of inline code, before references are resolved."""

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
