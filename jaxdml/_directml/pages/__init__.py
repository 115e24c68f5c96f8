"""The registry of pages: every module of this folder is one, and no other list of operators is kept."""

import importlib
import pkgutil

from jaxdml._directml.page import Page

PAGES: dict[str, Page] = {
    module.name: importlib.import_module(f"{__name__}.{module.name}").PAGE for module in pkgutil.iter_modules(__path__)
}


EXAMPLE = next(iter(PAGES.values()))  # for errors that say what would do


def converter(made_of: str, made: str) -> str:
    """The operator that makes the one kind of numbers of the other, such as "integer" of "float"."""
    return next(page.operator for page in PAGES.values() if page.converts == (made_of, made))
