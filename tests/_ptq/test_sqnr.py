"""Which layer costs accuracy: each ratio against one that NumPy computes, the table, and the plot."""

import functools
import math
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from _ptq.quantized import decibels, network, quantized
from helpers.marks import rest_rarely
from jaxdml.ptq import Rule
from jaxdml.ptq._trace.equations import program_of

RANDOM = np.random.default_rng(5)
PARAMS = {
    "first": {"w": RANDOM.standard_normal((16, 32), np.float32), "b": RANDOM.standard_normal(32, np.float32)},
    "last": {"w": RANDOM.standard_normal((32, 8), np.float32)},
}
X = RANDOM.standard_normal((64, 16), np.float32)


def apply(params, x):
    hidden = jax.nn.relu(x @ params["first"]["w"] + params["first"]["b"][None])
    return hidden @ params["last"]["w"], hidden


def of_two_layers():
    return dml.ptq.quantize(apply, PARAMS, [X], progress=False)


def rounded_to(x, steps, symmetric=False, axis=None):
    """x in steps of its range, in float64: the definition of a grid of 8 bits."""
    low, high = (np.minimum(x.min(axis, keepdims=True), 0), np.maximum(x.max(axis, keepdims=True), 0))
    if symmetric:
        scale = np.maximum(-low, high) / steps
        return np.rint(x / scale) * scale
    scale = (high - low) / steps
    return (np.clip(np.rint(x / scale) + np.rint(-low / scale), 0, steps) - np.rint(-low / scale)) * scale


@pytest.mark.rare
def test_ratios_of_two_layers_are_those_that_numpy_computes():
    """First computes the layers in float64, with weights, inputs and results on their grids."""
    x, w, b, v = (np.asarray(a, np.float64) for a in (X, PARAMS["first"]["w"], PARAMS["first"]["b"],
                                                       PARAMS["last"]["w"]))  # fmt: skip
    hidden = np.maximum(x @ w + b, 0)
    on_w, on_v = (rounded_to(each, 127, symmetric=True, axis=0) for each in (w, v))
    first = rounded_to(np.maximum(rounded_to(x, 255) @ on_w + b, 0), 255)
    own = rounded_to(hidden, 255) @ on_v
    expected = {
        "first": (decibels(first, hidden),) * 2,
        "last": (decibels(own, hidden @ v), decibels(first @ on_v, hidden @ v)),
        "input_0": (decibels(rounded_to(x, 255), x),) * 2,
    }
    found = of_two_layers().sqnr(PARAMS, X)
    assert [layer.name for layer in found.layers] == ["input_0", "first", "last"]
    for layer in found.layers:
        assert layer.own == pytest.approx(expected[layer.name][0], abs=0.3), layer
        assert layer.so_far == pytest.approx(expected[layer.name][1], abs=0.3), layer
    assert found.layers[-1].own > found.layers[-1].so_far + 1


@pytest.mark.parametrize("name", rest_rarely(("plain", "digits", "transformer", "scanned MLP"), 1))
def test_the_ratios_of_outputs_are_those_of_what_apply_returns(name):
    network_apply, params, make_inputs = network(name)
    inputs, model = make_inputs(64, seed=3), quantized(name)
    (ratio,) = model.sqnr(params, *inputs).outputs
    exact = jax.jit(network_apply)(params, *inputs)
    assert ratio == pytest.approx(decibels(model.apply(model.params, *inputs), exact), abs=0.002)


@pytest.mark.rare
def test_each_output_has_its_ratio():
    model = of_two_layers()
    received, exact = model.apply(model.params, X), apply(PARAMS, X)
    found = model.sqnr(PARAMS, X)
    expected = [decibels(*pair) for pair in zip(received, exact, strict=True)]
    assert found.outputs == pytest.approx(expected, abs=0.002)
    assert [line.split()[0] for line in str(found).splitlines()[-2:]] == ["output[0]", "output[1]"]


def test_both_parts_of_a_complex_output_count():
    def transformed(w, x):
        return jax.lax.complex(x @ w, 3 * (x @ w.T))

    w = RANDOM.standard_normal((8, 8)).astype(np.float32)
    x = RANDOM.standard_normal((64, 8)).astype(np.float32)
    model = dml.ptq.quantize(transformed, w, [x], progress=False)
    exact, received = transformed(w, x), np.asarray(model.apply(model.params, x))
    signal, noise = (np.sum(np.abs(each) ** 2) for each in (exact, received - exact))
    assert model.sqnr(w, x).outputs[0] == pytest.approx(10 * np.log10(signal / noise), abs=1e-3)


@pytest.mark.rare
def test_nan_in_both_outputs_and_random_keys_have_no_noise():
    def function(params, x):
        y = apply(params, x)[0]
        return y, jnp.where(jnp.arange(8) == 3, jnp.nan, y), jax.random.fold_in(jax.random.key(0), jnp.sum(x > 0))

    ratios = dml.ptq.quantize(function, PARAMS, [X], progress=False).sqnr(PARAMS, X).outputs
    rest = [place for place in range(8) if place != 3]
    y = dml.ptq.quantize(lambda p, x: apply(p, x)[0][:, np.array(rest)], PARAMS, [X], progress=False)
    assert math.isclose(ratios[1], y.sqnr(PARAMS, X).outputs[0], abs_tol=0.5)
    assert ratios[2] == math.inf


def test_an_output_in_a_dict_is_named_by_its_key():
    program = program_of(lambda p, x: {"logits": p * x, "more": (x,)}, X, (X,))
    assert program.output_names() == ("output['logits']", "output['more'][0]")


@pytest.mark.rare
def test_a_layer_with_few_levels_hurts_by_itself_alone():
    """Its weights have one large number; the layers after it have good ratios of their own."""
    params = PARAMS | {"first": {"w": PARAMS["first"]["w"].copy(), "b": PARAMS["first"]["b"]}}
    params["first"]["w"][0] = 300
    x = X.copy()
    x[:, 0] = 0
    model = dml.ptq.quantize(apply, params, [x], progress=False)
    ratios = {layer.name: layer for layer in model.sqnr(params, x).layers}
    assert ratios["first"].own < 20 < 35 < ratios["last"].own
    assert ratios["last"].so_far < 20
    kept = dml.ptq.quantize(apply, params, [x], rules=[Rule("first", keep="float")], progress=False)
    assert kept.sqnr(params, x).outputs[0] > 35  # the remedy


def test_floats_have_no_error():
    model = dml.ptq.quantize(apply, PARAMS, [X], rules=[Rule("first", keep="float")], progress=False)
    assert model.sqnr(PARAMS, X).outputs[1] > 120


@pytest.mark.rare
def test_the_clipped_share_is_that_of_values_beyond_the_calibrated_range():
    model, x = of_two_layers(), 2 * X
    layers = {layer.name: layer for layer in model.sqnr(PARAMS, x).layers}
    for name, calibrated, given in (("input_0", X, x), ("first", apply(PARAMS, X)[1], apply(PARAMS, x)[1])):
        low, high = min(calibrated.min(), 0), calibrated.max()
        step = (high - low) / 255
        low = -np.rint(-low / step) * step  # the zero point is an integer
        share = np.mean((given < low - step / 2) | (given > low + 255.5 * step))
        assert 0.01 < share < 0.5
        assert layers[name].clipped == pytest.approx(share, abs=2 / given.size), name
    assert layers["last"].clipped is None  # its results are floats
    assert {layer.clipped for layer in model.sqnr(PARAMS, X).layers} == {0, None}


def test_the_table():
    found = quantized("plain").sqnr(network("plain").params, *network("plain").make_inputs(4))
    header, line, *rows = str(found).splitlines()
    assert re.fullmatch(r"layer +computes +own dB +dB so far +clipped", header)
    assert set(line) == {"-"}
    assert [row.split()[0] for row in rows] == [*(layer.name for layer in found.layers), "output"]
    for row, layer in zip(rows, found.layers, strict=False):
        clipped = [] if layer.clipped is None else [f"{layer.clipped:.1%}"]
        assert row.split()[-2 - len(clipped) :] == [f"{layer.own:.1f}", f"{layer.so_far:.1f}", *clipped]
    assert rows[-1].split()[-1] == f"{found.outputs[0]:.1f}"
    names = [layer.name for layer in found.layers]
    assert {"unit_1", "unit_2", "head"} <= set(names)
    assert all(math.isfinite(layer.own) and layer.operator for layer in found.layers)


def test_long_names_keep_their_ends_which_distinguish_layers():
    scope = "ModuleForSequenceClassification/encoder/layers"
    params = {scope: {"first": PARAMS["first"], "last": PARAMS["last"]}}
    found = dml.ptq.quantize(lambda p, x: apply(p[scope], x), params, [X], progress=False).sqnr(params, X)
    starts = [row.split()[0] for row in str(found).splitlines()[2:]]
    for name in ("first", "last"):
        assert f"...{f'{scope}/{name}'[-45:]}" in starts


def test_a_row_names_the_layers_that_it_reads_in_floats():
    """Only a table reads the first layer, which has no row of its own."""
    silu = lambda p, x: jax.nn.silu(apply(p, x)[0] @ p["last"]["w"].T) @ p["last"]["w"]  # noqa: E731
    layers = dml.ptq.quantize(silu, PARAMS, [X], progress=False).sqnr(PARAMS, X).layers
    words = {layer.operator: layer.contractions for layer in layers}
    read = [each for operator, (each, *_) in words.items() if operator == f"mul of {each}"]
    assert len(read) == 1
    assert read[0] not in [layer.name for layer in layers]
    assert sum(" of " in each for each in words) == 1


def scanned_rows(w, x):
    """The last state and the results of all steps, of which the first layer makes few levels of most weights."""

    def step(h, row):
        h = jnp.tanh(row @ w["first"] + h @ w["again"])
        return h, h @ w["out"]

    return jax.lax.scan(step, jnp.zeros_like(x[0]), x)


def of_scan(chosen):
    """The layers and outputs of a model of what `chosen` makes of `scanned_rows`, and the outputs' ratios in NumPy."""
    rng = np.random.default_rng(0)
    w = {name: rng.normal(size=(8, 8)).astype(np.float32) / 3 for name in ("first", "again", "out", "head")}
    x = rng.normal(size=(5, 16, 8)).astype(np.float32)
    w["first"][0], x[..., 0] = 30, 0
    model = dml.ptq.quantize(lambda w, x: chosen(w, scanned_rows(w, x)), w, [x], equalize=False, progress=False)
    received, exact = (jax.tree.leaves(f) for f in (model.apply(model.params, x), chosen(w, scanned_rows(w, x))))
    found = model.sqnr(w, x, advice=1)
    return {layer.name: layer for layer in found.layers}, found, [*map(decibels, received, exact)]


@pytest.mark.rare
@pytest.mark.parametrize("returned", [slice(2), slice(1), slice(1, 2)], ids=["both", "the state", "the steps"])
def test_the_results_of_a_scan_that_are_read_count(returned):
    layers, found, expected = of_scan(lambda w, both: both[returned])
    assert layers["scan_1"].so_far == pytest.approx(total(expected), abs=0.1)
    assert layers["scan_1"].alone == pytest.approx(total(expected), abs=0.1)
    assert found.total == pytest.approx(total(expected), abs=0.002)


@pytest.mark.rare
def test_the_error_of_a_scan_is_not_that_of_the_layer_after_it():
    layers, found, _ = of_scan(lambda w, both: both[1] @ w["head"])
    assert layers["scan_1"].own < 20 < 35 < layers["head"].own
    assert layers["scan_1"].alone < 20
    assert [each.layer for each in found.advice] == ["first"]


@pytest.mark.rare
def test_the_plot(tmp_path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = of_two_layers().sqnr(PARAMS, X)
    axes = found.plot()
    assert [label.get_text() for label in axes.get_yticklabels()] == [layer.name for layer in found.layers]
    np.testing.assert_allclose([bar.get_width() for bar in axes.patches], [layer.own for layer in found.layers])
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [layer.so_far for layer in found.layers])
    _, own = plt.subplots()
    assert found.plot(own) is own
    axes.figure.savefig(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 5000
    plt.close("all")


def test_the_plot_names_its_extra_where_matplotlib_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=re.escape("Sqnr.plot needs matplotlib: pip install 'jaxdml[plot]'")):
        of_two_layers().sqnr(PARAMS, X).plot()


@pytest.mark.rare
def test_64_bit_types_change_no_ratio():
    found = of_two_layers().sqnr(PARAMS, X)
    with jax.enable_x64(True):
        assert str(of_two_layers().sqnr(PARAMS, jnp.asarray(X))) == str(found)


# Advice --------------------------------------------------------------------------------------------------------------

UNEVEN = PARAMS | {
    "first": {"w": PARAMS["first"]["w"] * np.where(np.arange(16) == 0, 300, 1)[:, None], "b": np.zeros(32)}
}
WITHOUT_FIRST = np.where(np.arange(16) == 0, 0, X).astype(np.float32)


@functools.cache
def advised(products="static"):
    """A network whose first layer has large weights that are only multiplied by zeros, and advice for it."""
    params = jax.tree.map(np.float32, UNEVEN)
    model = dml.ptq.quantize(apply, params, [WITHOUT_FIRST], products=products, progress=False)
    return params, model.sqnr(params, WITHOUT_FIRST, advice=1)


def total(outputs):
    """The outputs' noise shares, added, in dB."""
    return -10 * math.log10(sum(10 ** (-each / 10) for each in outputs))


@pytest.mark.rare
@pytest.mark.parametrize("products", ["static", "dynamic"])
def test_advice_is_what_its_rule_gains(products):
    """The gain is that of a model quantized with the rule, for the layer that costs most."""
    params, found = advised(products)
    (advice,) = found.advice
    layer, rule, gain, answer, _ = advice.row()
    assert (advice.layer, layer, rule) == ("first", "first", "Rule('^first$', keep='float')")
    rules = [eval(rule, {"Rule": Rule})]
    with_rule = dml.ptq.quantize(apply, params, [WITHOUT_FIRST], products=products, rules=rules, progress=False)
    assert str(with_rule).splitlines()[-1].startswith(answer)
    gained = total(with_rule.sqnr(params, WITHOUT_FIRST).outputs) - total(found.outputs)
    assert float(gain) == pytest.approx(gained, abs=0.06)  # it is rounded
    if products == "dynamic":  # the second product rounds the floats of the first by itself
        assert {each.name: each.contractions for each in found.layers} == {"first": ("first",), "last": ("last",)}
    assert gained > 10


@pytest.mark.rare
def test_the_error_of_a_layer_alone_is_what_numpy_computes():
    """In float64, one layer on its grids in a network that is exact otherwise."""
    params, found = advised()
    x, w, v = (np.asarray(a, np.float64) for a in (WITHOUT_FIRST, params["first"]["w"], params["last"]["w"]))
    hidden, on_x = np.maximum(x @ w, 0), rounded_to(x, 255)
    first = rounded_to(np.maximum(on_x @ rounded_to(w, 127, symmetric=True, axis=0), 0), 255)
    last = rounded_to(hidden, 255) @ rounded_to(v, 127, symmetric=True, axis=0)
    with_x = np.maximum(on_x @ w, 0)
    expected = {
        "input_0": (decibels(with_x @ v, hidden @ v), decibels(with_x, hidden)),
        "first": (decibels(first @ v, hidden @ v), decibels(first, hidden)),
        "last": (decibels(last, hidden @ v),),
    }
    changing = {each.name: each.contractions for each in found.layers}
    assert changing == {"input_0": ("first",), "first": ("first", "last"), "last": ("last",)}
    for layer in found.layers:
        assert layer.alone == pytest.approx(total(expected[layer.name]), abs=0.3), layer


@pytest.mark.rare
def test_advice_is_a_second_table():
    _, found = advised()
    first, second = str(found).split("\n\n")
    assert re.fullmatch(r"layer +computes +own dB +dB so far +clipped +alone dB", first.splitlines()[0])
    assert [line.split()[0] for line in second.splitlines()[2:]] == ["first"]
    row = r"Rule\('\^first\$', keep='float'\) +\+\d\d\.\d  no single answer  one answer: \w+='\w+' [+-]\d\.\d, "
    assert re.search(row, second)
    assert "-0.0" not in second
    assert found._repr_html_().count("<table") == 2


@pytest.mark.rare
def test_what_is_tried_is_what_can_change_the_layer():
    """A convolution cannot be dynamic, a product by blocks has no ranges, and one contraction stays on integers."""
    x = RANDOM.standard_normal((4, 3, 8, 8), np.float32)
    filters = RANDOM.standard_normal((4, 3, 3, 3), np.float32)

    def options(apply, params, x, **kwargs):
        model = dml.ptq.quantize(apply, params, [x], progress=False, **kwargs)
        return [[*each.gains] for each in model.sqnr(params, x, advice=9).advice]

    observers = [f"observer='{name}'" for name in ("minmax", "percentile", "mse")]
    wide = "activations='uint16'"
    assert options(lambda w, x: jax.lax.conv(x, w, (1, 1), "SAME"), filters, x) == [[*observers, wide]]
    of_two = lambda kwargs: options(lambda p, x: apply(p, x)[0], PARAMS, X, **kwargs)  # noqa: E731
    assert of_two({"products": "dynamic"}) == [[wide, "keep='float'"]] * 2
    wider = "weights='int8', block_size=16"
    assert of_two({"weights": jnp.int4, "block_size": 16}) == [[wider, "products='dynamic'", "keep='float'"]] * 2
    kept = of_two({"rules": [Rule("last", keep="float")]})
    assert kept == [[*observers, wide, "products='dynamic'"]]


@pytest.mark.rare
def test_layers_in_a_scan_have_advice():
    """One product in a scan has the largest error; the rule of the advice gains what it says."""
    rng = np.random.default_rng(0)
    w = {name: rng.normal(size=(3, 8, 8)).astype(np.float32) / 3 for name in ("first", "second")} | {"head": np.eye(8)}
    w["first"][:, 0] *= 1e-3
    x = rng.normal(size=(32, 8)).astype(np.float32)

    def scanned(w, x):
        def step(h, each):
            wide = jnp.concatenate([h[:, :1] * 1000, h[:, 1:]], 1)  # makes the other columns coarse
            return jnp.tanh(wide @ each[0]) @ each[1], None

        return jax.lax.scan(step, x, (w["first"], w["second"]))[0] @ w["head"].astype(np.float32)

    options = {"equalize": False, "progress": False}
    model = dml.ptq.quantize(scanned, w, [x], **options)
    found = model.sqnr(w, x, advice=2)
    assert ("first", "second") in [each.contractions for each in found.layers]
    advice = next(each for each in found.advice if each.layer == "first")
    rule = Rule("^first$", keep="float")
    after = dml.ptq.quantize(scanned, w, [x], rules=[rule], **options).sqnr(w, x).total
    assert after - found.total > 3
    assert np.isclose(advice.gains["keep='float'"], after - found.total, atol=0.1)
    assert "activations='uint16'" in advice.gains  # the product can read 16 bits


@pytest.mark.parametrize("advice", [-1, True, 1.5])
def test_advice_is_a_number_of_layers(advice):
    with pytest.raises(dml.ptq.PtqError, match=re.escape(f"advice is {advice!r}, expected the number of layers")):
        of_two_layers().sqnr(PARAMS, X, advice=advice)


def test_a_loaded_model_names_the_model_to_ask(tmp_path):
    dml.ptq.save(tmp_path / "model.npz", of_two_layers())
    loaded = dml.ptq.load(tmp_path / "model.npz", apply)
    with pytest.raises(dml.ptq.PtqError, match="call sqnr on the model that quantize returned"):
        loaded.sqnr(PARAMS, X, advice=1)
