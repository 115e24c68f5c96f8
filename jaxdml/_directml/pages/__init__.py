"""The registry of operators: each module in this folder is the page of one operator."""

import importlib
import pkgutil

from jaxdml._directml.page import Page

PAGES: dict[str, Page] = {
    module.name: importlib.import_module(f"{__name__}.{module.name}").PAGE for module in pkgutil.iter_modules(__path__)
}


EXAMPLE = next(iter(PAGES.values()))  # for errors that name an operator as an example


def converter(source: str, target: str) -> str:
    """The operator that converts numbers of one kind to another, such as "float" to "integer"."""
    return next(page.operator for page in PAGES.values() if page.converts == (source, target))
