"""The site, made by Sphinx: its sources are the Markdown pages and notebooks of the whole repository.

The folder of sources is the root of the repository, so that links between pages, notebooks and other files are the same
on the site and in the repository.
"""

import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import jaxdml  # noqa: E402

project = "jaxdml"
author = "the jaxdml authors"
version = release = jaxdml.__version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_codeautolink",
    "sphinx_copybutton",
    "public_names",
]
root_doc = "docs/index"
include_patterns = ["docs/**", "notebooks/*.ipynb", "CHANGELOG.md", "CONTRIBUTING.md"]
# Sphinx does not enter these folders at all; environments hold thousands of files.
exclude_patterns = [".*", "build", "dist", "jaxdml", "native", "tests", "benchmarks", "docs/site"]

html_theme = "sphinx_book_theme"
html_title = f"jaxdml {release}"
html_extra_path = ["site"]
html_static_path = ["static"]
html_css_files = ["jaxdml.css"]
html_theme_options = {"show_toc_level": 2, "home_page_in_toc": True, "use_fullscreen_button": False}
html_show_sourcelink = False

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

# Notebooks are executed as their readers would, whatever outputs are saved in them; an error fails the build.
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAXDML_DIGITS_OUT"] = str(Path(tempfile.mkdtemp()) / "digits.npz")

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings say types, and what shapes and values they hold
napoleon_google_docstring = True
napoleon_numpy_docstring = False
codeautolink_warn_on_missing_inventory = False
