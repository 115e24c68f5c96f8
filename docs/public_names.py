"""The public names of jaxdml, and the one that a piece of inline code refers to."""

import importlib
import re
from types import ModuleType

MODULES = ("jaxdml", "jaxdml.descs", "jaxdml.typing", "jaxdml.onnx", "jaxdml.ptq", "jaxdml.dxdispatch")
NAMED = re.compile(r"(?P<package>(?:jaxdml|dml)\.)?(?P<name>\w+(?:\.\w+)*)(?:\(.*\))?", re.S)


def full_names() -> dict[str, str]:
    """Maps every full public name to its name in the reference: an exception of two modules is described once."""
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
