"""The campaign draws calls that reach the kernels they are meant for, and a wrong output ends it."""

import sys

import numpy as np
import pytest

from commands import campaign
from commands import campaign_programs as programs
from helpers.marks import rarely_on_xla
from helpers.modes import UNOPTIMISED, assert_same
from helpers.native_calls import native_calls, needs_native

KERNELS = {
    programs.max_pooling: "max_pool", programs.table: "looked_up", programs.multiplication: "products",
    programs.attention: "attention", programs.rows: "rows", programs.attention_of_integers: "chained",
    programs.perceptron: "chained", programs.lstm: "lstm",
}  # fmt: skip


def test_every_kind_of_call_is_here():
    assert set(KERNELS) == set(programs.MAKERS) <= set(campaign.MAKERS)


@rarely_on_xla
@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", KERNELS, ids=lambda make: make.__name__)
def test_a_call_has_the_bits_of_numpy(make):
    case = make(np.random.default_rng(3))
    for own, got in campaign.jitted(case, UNOPTIMISED):
        assert_same(own, got, own.expected)


@needs_native
@pytest.mark.rare
@pytest.mark.parametrize("make", KERNELS, ids=lambda make: make.__name__)
def test_most_calls_reach_their_kernel(make):
    cases = [make(np.random.default_rng([seed, 7])) for seed in range(6)]
    assert sum(KERNELS[make] in native_calls(case.call, *case.arguments) for case in cases) > 3


@pytest.mark.parametrize("make", [programs.table, campaign.add])
def test_a_wrong_output_ends_the_campaign(make, monkeypatch, capsys):
    assert campaign.run(5, 0, (make,))[-1] > 0
    original = campaign.assert_same
    monkeypatch.setattr(campaign, "assert_same", lambda case, got, wanted: original(case, got, wanted + 1))
    with pytest.raises(AssertionError, match="differ"):
        campaign.run(5, 0, (make,))
    assert "call 0 of seed 5: " in capsys.readouterr().out


def run_with(monkeypatch, *options):
    """The makers of each call of a campaign, whose calls are not made."""
    found = []
    monkeypatch.setattr(sys, "argv", ["campaign.py", "--seed", "1", "--outputs", "3", *options])
    monkeypatch.setattr(campaign, "run", lambda seed, number, makers: found.append(set(makers)) or ("xla", "", 1))
    campaign.main()
    return found


def test_one_kind_of_cases(monkeypatch):
    assert run_with(monkeypatch, "--only", "product_by_blocks") == [{campaign.product_by_blocks}] * 3
    assert run_with(monkeypatch) == [set(campaign.MAKERS)] * 3
    with pytest.raises(SystemExit):
        run_with(monkeypatch, "--only", "unknown")
