"""Sphinx's configuration of the site, whose sources are the Markdown pages and notebooks of the whole repository.

The source folder is the root of the repository, so that links between pages, notebooks and other files are the same on
the site and in the repository.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
os.environ["JAX_PLATFORMS"] = "cpu"  # before jax is imported

import jaxdml  # noqa: E402


def documented(version: str, changes: str) -> str:
    """The version that the site documents, with the suffix "+development" if there are changes after that release."""
    unreleased = re.search(r"^## \[Unreleased\]\n(.*?)(?=^## |\Z)", changes, re.M | re.S)
    return f"{version}+development" if unreleased and unreleased[1].strip() else version


project = "jaxdml"
author = "the jaxdml authors"
version = release = documented(jaxdml.__version__, (HERE.parent / "CHANGELOG.md").read_text(encoding="utf-8"))
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_codeautolink",
    "sphinx_copybutton",
    "links",
    "formulas",
]
html_math_renderer = "mathml"
root_doc = "docs/index"
include_patterns = ["docs/**", "notebooks/*.ipynb", "benchmarks/results/*.md", "CHANGELOG.md", "CONTRIBUTING.md"]
# Sphinx does not enter these folders at all; environments hold thousands of files.
exclude_patterns = [".*", "build", "dist", "jaxdml", "native", "tests", "docs/site"]

html_theme = "sphinx_book_theme"
html_title = f"jaxdml {release}"
html_context = {"default_mode": "auto"}  # the theme logs an error if a page does not set light, dark or auto
html_favicon = "static/icon.svg"
html_extra_path = ["site"]
html_static_path = ["static"]
html_css_files = ["jaxdml.css"]
html_js_files = ["sidebar.js"]
html_search_scorer = str(HERE / "scorer.js")
html_theme_options = {"show_toc_level": 2, "home_page_in_toc": True, "use_fullscreen_button": False}
html_show_sourcelink = False
html_use_index = False  # the search finds names, and so does the list in docs/reference/index.md

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

# Notebooks are executed as their readers would, whatever outputs are saved in them; an error fails the build.
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True

default_role = "literal"  # names in docstrings look as on the pages
add_function_parentheses = False  # "Contents" is narrow
toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings give types, shapes and values
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_attr_annotations = False
codeautolink_warn_on_missing_inventory = False


def with_names_of_types(signature: str) -> str:
    """A signature as text, with the defaults that are types of jax.numpy as users write them."""
    return re.sub(r"<class 'jax\.numpy\.(\w+)'>", r"jnp.\1", signature)


def _write_signature(app: Sphinx, what: str, name: str, of: Any, options: Any, signature: str, returns: str) -> Any:
    return signature and with_names_of_types(signature), returns


def setup(app: Sphinx) -> None:
    """Called by Sphinx; notebooks write their files next to those that Sphinx caches between builds."""
    os.environ["JAXDML_DIGITS_OUT"] = str(app.doctreedir / "digits.npz")
    app.connect("autodoc-process-signature", _write_signature)
