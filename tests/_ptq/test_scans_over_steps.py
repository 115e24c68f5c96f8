"""Scans over time, fori_loop and lax.map: one body on integers, whose scales and weights all steps share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import jaxdml as dml
from _ptq.quantized import decibels, in_floats
from helpers.compare import assert_same_bits
from jaxdml.ptq import Rule, quantize


def normal(*shape, scale=1.0):
    return (scale * np.random.default_rng(sum(shape)).normal(size=shape)).astype(np.float32)


CELL = {
    "kernel": normal(8, 32, scale=0.3), "recurrent": normal(8, 32, scale=0.3), "bias": normal(1, 32, scale=0.1),
    "head": normal(8, 4, scale=0.3), "layers": normal(3, 8, 8, scale=0.3),
}  # fmt: skip


def lstm(p, reverse=False):
    def step(state, x):
        h, c = state
        i, f, g, o = jnp.split(x @ p["kernel"] + h @ p["recurrent"] + p["bias"], 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    def unrolled(x):  # [N, T, 8]
        start = jnp.zeros((x.shape[0], 8))
        return lax.scan(step, (start, start), x.swapaxes(0, 1), reverse=reverse)[1].swapaxes(0, 1)

    return unrolled


def both_ways(p, x):
    return (lstm(p)(x) + lstm(p, reverse=True)(x))[:, 0] @ p["head"]


def looped(p, x):
    return lax.fori_loop(0, 3, lambda i, x: jnp.tanh(x @ p["layers"][0]), x[:, 0]) @ p["head"]


def indexed(p, x):
    return lax.fori_loop(0, 3, lambda i, x: jnp.tanh(x @ p["layers"][i]), x[:, 0]) @ p["head"]


def mapped(p, x):
    return lax.map(lambda x: jnp.tanh(x @ p["kernel"]) @ p["recurrent"].T, x.swapaxes(0, 1))[0] @ p["head"]


def with_positions(p, x):
    """A sequence of fixed numbers, which are not weights, next to a sequence of data."""
    times = jnp.arange(x.shape[1], dtype=jnp.float32)
    step = lambda h, each: (jnp.tanh(each[0] @ p["layers"][0] + h * jnp.cos(each[1])), None)  # noqa: E731
    return lax.scan(step, jnp.zeros((x.shape[0], 8)), (x.swapaxes(0, 1), times))[0] @ p["head"]


NETWORKS = {"LSTM": both_ways, "fori_loop": looped, "layers by index": indexed, "map": mapped,
            "positions": with_positions}  # fmt: skip
LEAST = {"fori_loop": 25}  # dB; all steps share one scale
LAYERS = {"LSTM": 5, "fori_loop": 2, "layers by index": 2, "map": 3, "positions": 2}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("products", ["static", pytest.param("dynamic", marks=pytest.mark.rare)])
@pytest.mark.parametrize("name", [pytest.param("LSTM", marks=pytest.mark.rare), *list(NETWORKS)[1:]])
def test_bodies_run_on_integers_for_all_batches_and_lengths(name, products, tmp_path):
    apply = NETWORKS[name]
    batches = [normal(64, 5, 8), *([normal(64, 7, 8)] if name == "LSTM" else [])]
    model = quantize(apply, CELL, batches, products=products, progress=False)
    assert f"\n{LAYERS[name]} of {LAYERS[name]} convolutions and products" in str(model)
    dml.ptq.save(tmp_path / "model.npz", model)
    loaded = dml.ptq.load(tmp_path / "model.npz", apply)
    x = normal(1, 3, 8)
    received = model.apply(model.params, x)
    assert decibels(received, in_floats(apply, CELL, x)) > LEAST.get(name, 28)
    assert_same_bits(loaded.apply(loaded.params, x), received)
    batch, length = export.symbolic_shape("batch, length")
    struct = jax.ShapeDtypeStruct((batch, length, 8), np.float32)
    assert jax.eval_shape(model.apply, model.params, struct).shape == (batch, 4)


def unrolled(p, x):
    """A step's sum, and all steps' products."""
    h = jnp.zeros((x.shape[0], 8))
    for time in range(x.shape[1]):
        h = jnp.maximum(x[:, time] @ p["layers"][0] + h @ p["layers"][1], 0)
    return h


def scanned(p, x):
    step = lambda h, x: (jnp.maximum(x @ p["layers"][0] + h @ p["layers"][1], 0), None)  # noqa: E731
    return lax.scan(step, jnp.zeros((x.shape[0], 8)), x.swapaxes(0, 1))[0]


def test_ranges_hold_the_values_of_all_steps_and_batches():
    """Each of three steps has the largest of some value."""
    batches = [normal(4, 3, 8), 2 * normal(4, 3, 8)]
    model = quantize(scanned, CELL, batches, observer="minmax", progress=False)
    scales = {name: value for name, value in model.graph.constants.items() if name.endswith("scale")}
    of_inputs = [float(value[0]) for name, value in scales.items() if "input" in name]
    values = np.concatenate([np.asarray(each).reshape(-1) for each in batches])
    states = [np.asarray(unrolled(CELL, x[:, :time])) for x in batches for time in range(3)]
    ends = [(min(values.min(), 0), max(values.max(), 0)), (0, max(each.max() for each in states))]
    assert sorted(of_inputs) == pytest.approx(sorted((high - low) / 255 for low, high in ends), rel=1e-5)


@pytest.mark.rare
@pytest.mark.parametrize("observer", ["moving_average", "percentile", "mse"])
def test_each_observer_watches_all_steps(observer):
    x = normal(8, 5, 8)
    model = quantize(scanned, CELL, [x], observer=observer, progress=False)
    assert decibels(model.apply(model.params, x), in_floats(unrolled, CELL, x)) > 25


def test_weights_that_all_steps_share_are_held_once():
    """Also if a sequence of parameters that are not weights is among the sequences."""

    def apply(p, x):
        step = lambda h, b: (jnp.tanh(h @ p["w"] + b), None)  # noqa: E731
        return lax.scan(step, x, p["biases"])[0]

    params, x = {"w": CELL["layers"][0], "biases": normal(50, 1, 8)}, normal(8, 8)
    model = quantize(apply, params, [x], progress=False)
    assert decibels(model.apply(model.params, x), in_floats(apply, params, x)) > 25
    assert {value.shape for value in model.graph.constants.values() if value.dtype == np.int8 and value.ndim > 2} == {
        (1, 8, 8)
    }


def test_layers_may_read_and_write_sequences_of_data():
    """Such as a cache of each layer."""

    def apply(p, x, cache):
        def layer(x, each):
            w, old = each
            new = 0.5 * old + x
            return jnp.tanh(new @ w), new

        return lax.scan(layer, x, (p["layers"], cache))

    x, cache = normal(8, 8), normal(3, 8, 8)
    model = quantize(apply, CELL, [(x, cache)], progress=False)
    assert "1 of 1 convolutions and products" in str(model)
    assert {value.shape for value in model.graph.constants.values() if value.dtype == np.int8 and value.ndim > 2} == {
        (3, 8, 8)
    }
    assert decibels(model.apply(model.params, x, cache), in_floats(apply, CELL, x, cache)) > 25


@pytest.mark.rare
def test_a_rule_keeps_a_layer_of_the_body_in_floats():
    x = normal(8, 5, 8)
    model = quantize(both_ways, CELL, [x], rules=[Rule("recurrent", keep="float")], progress=False)
    assert "3 of 5 convolutions and products" in str(model)
    names = [layer.name for layer in model.sqnr(CELL, x).layers]
    assert "head" in names


REASONS = {
    "a scan in a scan": (
        lambda p, x: lax.scan(
            lambda x, w: (lax.fori_loop(0, 2, lambda _, x: jnp.tanh(x @ w), x), None), x, p["layers"]
        )[0] @ p["head"],
        "a scan inside of a scan runs in floats: write one of the two as a Python loop",
    ),
    "while": (
        lambda p, x: lax.while_loop(lambda x: x[0, 0] > 9, lambda x: x @ p["layers"][0], x) @ p["head"],
        "its body runs in floats: write lax.fori_loop with a number of steps, or quantize a function of one step",
    ),
    "cond": (
        lambda p, x: lax.cond(x[0, 0] > 9, lambda x: x @ p["layers"][0], jnp.tanh, x) @ p["head"],
        "its branches run in floats: quantize each branch, or compute both and write jnp.where",
    ),
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", REASONS)
def test_loops_that_stay_in_floats_have_a_remedy(name):
    apply, words = REASONS[name]
    x = normal(8, 8)
    model = quantize(apply, CELL, [x], progress=False)
    assert words in str(model)
    assert "\n1 of 2 convolutions and products" in str(model)
    assert decibels(model.apply(model.params, x), in_floats(apply, CELL, x)) > 25
