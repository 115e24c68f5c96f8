"""The command that compares the results of a device runs here on a CPU, and can fail."""

import argparse

import jax
import numpy as np
import pytest

from commands import on_device
from helpers.every_float import every
from helpers.marks import on_xla_alone
from jaxdml.reference import floats

pytestmark = [on_xla_alone, pytest.mark.rare]
FEW = argparse.Namespace(count=1, step=2**20 + 1, seconds=1, seed=5)


@pytest.mark.parametrize("part", on_device.PARTS)
def test_a_part_runs(part, monkeypatch):
    monkeypatch.setattr(on_device, "CHUNK", 2**12)
    monkeypatch.setattr(on_device, "DEPTHS", (5, 32))
    assert on_device.PARTS[part](FEW)


def test_wrong_products_of_xla_are_counted(monkeypatch):
    monkeypatch.setattr(on_device, "DEPTHS", (5,))
    assert on_device.products(FEW).startswith("of XLA's own 0 are wrong; 7 ")
    matmul = on_device.jnp.matmul
    monkeypatch.setattr(on_device.jnp, "matmul", lambda a, b, **options: 2 * matmul(a, b, **options))
    assert on_device.products(FEW).startswith("of XLA's own 7 are wrong; 7 ")


@pytest.mark.parametrize("part", on_device.PARTS)
def test_a_part_compares(part, monkeypatch):
    """Each comparison is replaced with one that fails."""

    def wrong(*arguments):
        raise AssertionError("differs")

    monkeypatch.setattr(on_device, "CHUNK", 2**12)
    monkeypatch.setattr(on_device, "assert_same_bits", wrong)
    monkeypatch.setattr(on_device.attention_battery, "expected", wrong)
    monkeypatch.setattr(on_device.campaign, "assert_same", wrong)
    with pytest.raises(AssertionError, match=r"^differs$"):
        on_device.PARTS[part](FEW)


def test_every_so_many_th_float():
    x = np.concatenate([floats.flushed(x) for x in every(2**10 + 1, 2**20)])
    assert x.size == -(-(2**32) // (2**10 + 1))
    assert np.unique(x[np.isfinite(x) & (x != 0)]).size == (np.isfinite(x) & (x != 0)).sum()  # no value occurs twice
    assert np.isnan(x).any()
    assert (x < 0).any()
    assert not ((x != 0) & (abs(x) < 2.0**-126)).any()


def test_quotients_that_err_too_much_are_seen(monkeypatch):
    monkeypatch.setattr(on_device, "CHUNK", 2**12)
    divide = jax.lax.div
    monkeypatch.setattr(on_device.lax, "div", lambda x, y: divide(x, y) * np.float32(1.000001))
    with pytest.raises(AssertionError, match=r"errs by .* ulp; jaxdml corrects 3"):
        on_device.quotients(FEW)


def test_a_cpu_is_not_compared_with_itself(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["on_device.py", "sums"])
    with pytest.raises(SystemExit):
        on_device.main()
    assert "first device is a CPU" in capsys.readouterr().err


def test_a_part_that_there_is_not_is_named(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["on_device.py", "sum"])
    with pytest.raises(SystemExit):
        on_device.main()
    assert "there is no sum; parts are sums, products" in capsys.readouterr().err
