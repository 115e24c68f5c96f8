"""The tools of the site: which inline code becomes a link, and which links of the built pages are wrong."""

import check
import public_names
import pytest


@pytest.fixture(scope="module")
def names():
    return public_names.full_names()


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
    assert public_names.full_name(code, names) == meant


def test_wrong_links_are_found(tmp_path):
    site = tmp_path / "site"
    (site / "docs").mkdir(parents=True)
    (site / "_static").mkdir()
    (site / "a picture.png").touch()
    (tmp_path / "outside.png").touch()
    right = ["docs/b.html#here", "docs/b.html#named", "docs/b.html#caf%C3%A9", "a%20picture.png", "#top"]
    right += ["https://example.org/x", "mailto:a@example.org"]
    wrong = ["c.html", "docs/b.html#there", "../outside.png"]
    (site / "a.html").write_text('<p id="top">' + "".join(f'<a href="{link}"><img src="{link}">' for link in right))
    (site / "wrong.html").write_text("".join(f'<a href="{link}">' for link in wrong) + '<img src="none.png">')
    (site / "docs" / "b.html").write_text('<p id="here"><a name="named"></a><p id="café">', encoding="utf-8")
    (site / "_static" / "template.html").write_text('<a href="{{ link }}">')
    expected = [f"wrong.html links to {link}, which is not there" for link in [*wrong, "none.png"]]
    assert check.wrong_links(site) == expected


def test_missing_names_are_found(tmp_path):
    (tmp_path / "docs" / "reference").mkdir(parents=True)
    (tmp_path / "docs" / "reference" / "x.html").write_text('<dt id="jaxdml.validate">')
    missing = check.missing_names(tmp_path)
    assert "jaxdml.kernels is not in the reference" in missing
    assert "jaxdml.validate is not in the reference" not in missing
