"""The benchmark of 16-bit activations and 4-bit weights, on one small layer."""

import sys
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import sixteen_bits  # noqa: E402

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="benchmarks compare with ONNX Runtime on a CPU")


@pytest.mark.rare
@pytest.mark.parametrize("form", [*sixteen_bits.TYPES, sixteen_bits.IN_BLOCKS])
def test_a_layer_is_measured(form, monkeypatch):
    monkeypatch.setattr(sixteen_bits, "DEPTH", 64)
    monkeypatch.setitem(sixteen_bits.CASES, "product, small", (sixteen_bits.product, (1, 64)))
    found = sixteen_bits.measured("product, small", form, 0.01)
    assert found["on integers"] == "1 of 1"
    assert all(agreement is None or agreement > 30 for agreement in found["decibels"].values())
    assert sixteen_bits.row(found).startswith(f"| product, small | {form} | 1 of 1 | ")
