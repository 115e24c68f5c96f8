"""The tools of the site: which inline code becomes a link, and which links of the built pages are wrong."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))


@pytest.fixture(scope="module")
def names():
    return importlib.import_module("public_names").full_names()


@pytest.mark.parametrize(
    ("code", "meant"),
    {
        "quantized_linear_convolution": "jaxdml.quantized_linear_convolution",
        "jaxdml.quantize": "jaxdml.quantize",
        "dml.quantize(x, scale)": "jaxdml.quantize",
        "ptq.quantize": "jaxdml.ptq.quantize",
        "jaxdml.ptq.quantize(apply, params, batches)": "jaxdml.ptq.quantize",
        "kernels()": "jaxdml.kernels",
        "quantize": None,  # of two modules
        "load": None,
        "PtqError": "jaxdml.ptq.PtqError",
        "dxdispatch.DxDispatchError": "jaxdml.DxDispatchError",  # described once
        "jax.jit": None,
        "scale": None,
        "jaxdml.dxdispatch": None,  # a module
        "a + quantized_linear_convolution": None,
    }.items(),
)
def test_inline_code_links_to_what_it_names(code, meant, names):
    assert importlib.import_module("public_names").full_name(code, names) == meant


def test_wrong_links_and_missing_names_are_found(tmp_path):
    check = importlib.import_module("check")
    reference = tmp_path / "docs" / "reference"
    reference.mkdir(parents=True)
    (tmp_path / "picture.png").touch()
    right = (
        '<a href="docs/b.html#here">b</a><img src="picture.png"><a href="https://example.org/x">x</a><a href="#top">'
    )
    wrong = '<a href="c.html"></a><a href="docs/b.html#there"></a><img src="../outside.png">'
    (tmp_path / "a.html").write_text(f'<p id="top">{right}{wrong}')
    (tmp_path / "docs" / "b.html").write_text('<p id="here">')
    (tmp_path.parent / "outside.png").touch()
    found = check.wrong_links(tmp_path)
    assert [line.split()[3].rstrip(",") for line in found] == ["c.html", "docs/b.html#there", "../outside.png"]

    (reference / "x.html").write_text('<dt id="jaxdml.validate">')
    missing = check.missing_names(tmp_path)
    assert "jaxdml.kernels is not in the reference" in missing
    assert "jaxdml.validate is not in the reference" not in missing
