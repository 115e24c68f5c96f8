"""The table of advice: its options, their answers, and the models that are quantized for it."""

import html
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from jaxdml.ptq import Rule

RANDOM = np.random.default_rng(5)


def test_other_options_are_listed_by_their_answer():
    gains = {"keep='float'": 3.0, "observer='mse'": 4.0, "products='dynamic'": 2.04, "observer='minmax'": -1.0}
    one_answer = {option: option.startswith("observer") for option in gains}
    row = dml.ptq.Advice("head", "^head$", gains, one_answer).row()
    assert row == (
        "head", "Rule('^head$', observer='mse')", "+4.0", "one answer",
        "no single answer: keep='float' +3.0, products='dynamic' +2.0; one answer: observer='minmax' -1.0",
    )  # fmt: skip


def test_rules_are_shown_whole():
    """A rule that was cut could not be copied."""
    name = "_".join(["encoder", *map(str, range(30)), "attention"])
    advice = dml.ptq.Advice(name, f"^{name}$", {"products='dynamic'": 1.0}, {"products='dynamic'": False})
    found = dml.ptq.Sqnr((), (30.0,), ("output",), (advice,))
    assert f"Rule('^{name}$', products='dynamic')" in str(found)
    assert f"Rule('^{name}$', products='dynamic')" in html.unescape(found._repr_html_())


@pytest.mark.rare
def test_the_models_tried_for_advice_are_counted(capfd):
    """One without a rule, and one for each option of a layer."""
    x, filters = RANDOM.standard_normal((4, 3, 8, 8), np.float32), RANDOM.standard_normal((4, 3, 3, 3), np.float32)
    model = dml.ptq.quantize(lambda w, x: jax.lax.conv(x, w, (1, 1), "SAME"), filters, [x], progress=False)
    model.sqnr(filters, x)
    model.sqnr(filters, x, advice=1, progress=False)
    assert capfd.readouterr().err == ""
    (advice,) = model.sqnr(filters, x, advice=1).advice
    count = 1 + len(advice.gains)
    lines = re.sub(r"\d+ s", "- s", capfd.readouterr().err)
    assert lines == "".join(f"\radvice: {number} of {count} models, - s" for number in range(1, count + 1)) + "\n"


@pytest.mark.rare
def test_an_observer_is_advised_for_a_layer_that_reads_16_bits():
    """Percentile clips the extremes of cubes, which costs more than 8 bits do."""
    x, w = RANDOM.standard_normal((256, 8), np.float32) ** 3, RANDOM.standard_normal((8, 3), np.float32)
    options = {"rules": [Rule("", activations=jnp.uint16)], "observer": "percentile", "equalize": False}
    model = dml.ptq.quantize(lambda w, x: x @ w, w, [x], **options, progress=False)
    (advice,) = model.sqnr(w, x, advice=1).advice
    assert max(advice.gains, key=advice.gains.get) == "observer='minmax'"


def test_a_layer_without_options_has_no_advice():
    """A rule can change neither the range that a dynamic product finds nor the function's own grid."""
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(8, 6)).astype(np.float32), rng.normal(size=(16, 8)).astype(np.float32)
    model = dml.ptq.quantize(
        lambda w, x: dml.fake_quantize(x, np.float32(0.05), 128) @ w, w, [x], products="dynamic", progress=False
    )
    found = model.sqnr(w, x, advice=3)
    assert found.advice == ()
    assert "rule that gains most" not in str(found)
