"""The benchmark of files that packages ship, on a file of jaxdml and on one that the test writes."""

import sys
from pathlib import Path

import jax
import numpy as np
import onnx.parser
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import shipped_files  # noqa: E402
from benchmarks.shipped_models import SHIPPED, Shipped, pixels  # noqa: E402

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="benchmarks compare with ONNX Runtime on a CPU")


def test_a_quantized_file_is_compared_as_it_is(monkeypatch):
    digits = Shipped("jaxdml/examples/digits.onnx", "reads digits", {"images": pixels(4, 1, 8, 8)}, is_quantized=True)
    monkeypatch.setitem(SHIPPED, "digits", digits)
    found = dict(shipped_files.cells("digits", 0))
    assert found == {"as shipped": "8 of 8, equal"}
    assert shipped_files.row("digits", found) == "| digits | reads digits | 8 of 8, equal |  |  |  |"


def test_a_package_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(SHIPPED, "none", Shipped("no_such_package/a.onnx", "nothing", {}))
    with pytest.raises(FileNotFoundError, match=r"the package with no_such_package/a.onnx is not installed"):
        dict(shipped_files.cells("none", 0))


def test_ratios_of_quantized_files_are_summed_up():
    magika = {"as shipped": "0 of 0, 9 dB, 9.00", "QDQ": "4 of 4, equal, 2.00", "dynamic": "4 of 4, 30 dB, 0.50"}
    networks = {"Magika": magika, "Tashkeel Rawi": {"as shipped": "3 of 3, equal, 1.00"}}
    assert (
        shipped_files.summary(networks) == "Ratios of the 3 quantized files: 1.00 in the geometric mean, at least 0.50."
    )
    assert shipped_files.summary({"Magika": {"QDQ": "not quantized: an error, 3.1"}}) == ""


@pytest.mark.rare
def test_a_float_file_of_an_older_opset_is_quantized_in_three_ways(tmp_path, monkeypatch):
    model = onnx.parser.parse_model("""
        <ir_version: 7, opset_import: ["" : 12]> layer (float[4, 8] x) => (float[4, 3] y)
        { sum = MatMul(x, w)  y = Relu(sum) }
    """)
    weights = np.random.default_rng(0).normal(0, 1, (8, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    (tmp_path / "made_package").mkdir()
    (tmp_path / "made_package" / "__init__.py").touch()
    onnx.save(model, tmp_path / "made_package" / "float.onnx")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(SHIPPED, "made", Shipped("made_package/float.onnx", "multiplies", {"x": pixels(4, 8)}))
    found = dict(shipped_files.cells("made", 0.01))
    assert {form: cell.split(", ")[0] for form, cell in found.items()} == {
        "as shipped": "0 of 0", "QDQ": "1 of 1", "QOperator": "1 of 1", "dynamic": "1 of 1",
    }  # fmt: skip
    assert all(float(cell.split(", ")[2]) > 0 for cell in found.values())
