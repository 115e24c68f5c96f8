"""`make campaign` runs the cases that its options name."""

import sys

import pytest

from commands import campaign


def run_with(monkeypatch, *options):
    """The makers of each call of a campaign, whose calls are not made."""
    found = []
    monkeypatch.setattr(sys, "argv", ["campaign.py", "--seed", "1", "--outputs", "3", *options])
    monkeypatch.setattr(campaign, "run", lambda seed, number, makers: found.append(set(makers)) or ("xla", 1))
    campaign.main()
    return found


def test_one_kind_of_cases(monkeypatch):
    assert run_with(monkeypatch, "--only", "product_by_blocks") == [{campaign.product_by_blocks}] * 3
    assert run_with(monkeypatch) == [set(campaign.MAKERS)] * 3
    with pytest.raises(SystemExit):
        run_with(monkeypatch, "--only", "unknown")
