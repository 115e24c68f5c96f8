"""Which layer hurts: each ratio beside one that NumPy computes, the table, and the plot."""

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
    """First the layers as float64 has them, with weights, inputs and results on their grids."""
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
    assert ratio == pytest.approx(decibels(model.apply(model.params, *inputs), exact), abs=0.3)


@pytest.mark.rare
def test_each_output_has_its_ratio():
    model = of_two_layers()
    received, exact = model.apply(model.params, X), apply(PARAMS, X)
    found = model.sqnr(PARAMS, X)
    expected = [decibels(*pair) for pair in zip(received, exact, strict=True)]
    assert found.outputs == pytest.approx(expected, abs=0.05)
    assert [line.split()[0] for line in str(found).splitlines()[-2:]] == ["output[0]", "output[1]"]


def test_an_output_in_a_dict_is_named_by_its_key():
    program = program_of(lambda p, x: {"logits": p * x, "more": (x,)}, X, (X,))
    assert program.output_names() == ("output['logits']", "output['more'][0]")


@pytest.mark.rare
def test_a_layer_with_few_levels_hurts_by_itself_alone():
    """One large number in its weights; the layers behind it have good ratios of their own."""
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
