"""Every notebook runs and prints its saved output, and 02 writes the very arrays that come with jaxdml."""

import importlib.resources
import os
from pathlib import Path

import numpy as np
import pytest

import jaxdml
from helpers.compare import assert_same_bits

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MAXIMUM_BYTES = 500_000


@pytest.fixture
def kernel_environment(tmp_path, monkeypatch):
    """The kernel imports this jaxdml, with jax's own defaults, and leaves its files in tmp_path."""
    python_path = [str(Path(jaxdml.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(python_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JAXDML_DIGITS_OUT", str(tmp_path / "digits.npz"))


def printed(notebook):
    """The text that cells print, except for the errors of plain formulas, which depend on the compiler."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    texts = [output.text for output in outputs if output.output_type == "stream" and output.name == "stdout"]
    return [line for text in texts for line in text.splitlines() if not line.startswith("plain")]


@pytest.mark.rare
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, kernel_environment, tmp_path):
    import nbformat

    nbclient = pytest.importorskip("nbclient")  # from the extra `test-all`
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(FOLDER)}}
    options = {"timeout": 300, "kernel_name": "python3", "resources": resources, "coalesce_streams": True}
    nbclient.NotebookClient(notebook, **options).execute()
    assert printed(notebook) == printed(nbformat.read(path, as_version=4))

    if path.stem == "02_digits_network":
        packaged = importlib.resources.files("jaxdml.examples") / "digits.npz"
        with np.load(tmp_path / "digits.npz") as written, packaged.open("rb") as stream, np.load(stream) as shipped:
            assert written.files == shipped.files
            for name in shipped.files:
                assert written[name].dtype == shipped[name].dtype, name
                assert_same_bits(written[name], shipped[name], name)


def test_there_are_notebooks():
    assert [path.stem[:2] for path in NOTEBOOKS] == [f"{number:02}" for number in range(1, 14)]


@pytest.mark.rare
def test_notebooks_are_saved_with_their_outputs():
    import nbformat  # takes two seconds, so that other processes do without it

    for path in NOTEBOOKS:
        assert path.stat().st_size < MAXIMUM_BYTES, path.stem
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert notebook.metadata.kernelspec.name == "python3", path.stem
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        outputs = [output for cell in cells for output in cell.outputs]
        assert outputs, path.stem
        assert not any(output.output_type == "error" or output.get("name") == "stderr" for output in outputs), path.stem
        assert all(cell.execution_count for cell in cells), path.stem
