"""Scans over layers that read values which depend on the sizes of inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from _ptq.quantized import decibels
from helpers.compare import assert_same_bits
from jaxdml.errors import PtqError
from jaxdml.ptq import quantize

RNG = np.random.default_rng(0)
P = {
    "w": (RNG.standard_normal((2, 8, 8)) / 3).astype(np.float32),
    "q": (RNG.standard_normal((2, 8, 8)) / 3).astype(np.float32),
    "positions": RNG.standard_normal((9, 8)).astype(np.float32),
}
X = RNG.standard_normal((3, 6, 8)).astype(np.float32)


def by_sum(p, x):
    total = jnp.arange(x.shape[1], dtype=jnp.float32).sum()
    return lax.scan(lambda x, w: (jnp.tanh(x @ w) * total, None), x, p["w"])[0]


def by_logarithm(p, x):
    size = jnp.log(jnp.float32(x.shape[1]))
    return lax.scan(lambda x, w: (jnp.tanh(x @ w) * size, None), x, p["w"])[0]


def causal(p, x):
    mask = jnp.tril(jnp.ones((x.shape[1],) * 2, bool))

    def layer(x, weights):
        w, q = weights
        scores = jnp.where(mask, jnp.einsum("btd,bsd->bts", x @ q, x @ w), -1e9)
        return x + jax.nn.softmax(scores, -1) @ x, None

    return lax.scan(layer, x, (p["w"], p["q"]))[0]


OF_SIZES = {"a sum": by_sum, "a logarithm": by_logarithm, "a causal mask": causal}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", OF_SIZES)
def test_values_computed_from_sizes_are_those_of_the_call(name, tmp_path):
    f = OF_SIZES[name]
    model = quantize(f, P, [X], progress=False)
    for x in (X, X[:, :4], X[:1], X[:1, :2]):
        assert decibels(f(P, x), model.apply(model.params, x)) > 20
    if name == "a logarithm":  # of a number, which no symbolic size is
        return
    dml.onnx.save(model, tmp_path / "model.onnx", shapes="batch, tokens, 8")
    loaded = dml.onnx.load(tmp_path / "model.onnx")
    for x in (X[:, :4], X[:1]):
        (got,) = loaded.apply(loaded.params, x).values()
        assert_same_bits(got, model.apply(model.params, x))


def by_rows(p, x):
    rows = p["positions"][None, : x.shape[1]]
    return lax.scan(lambda x, w: (jnp.tanh(x @ w) + rows, None), x, p["w"])[0]


def by_sum_of_rows(p, x):
    total = p["positions"][: x.shape[1]].sum()
    return lax.scan(lambda x, w: (jnp.tanh(x @ w) * total, None), x, p["w"])[0]


def by_divided_weights(p, x):
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, p["w"] / x.shape[1])[0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("f", [by_rows, by_sum_of_rows, by_divided_weights])
def test_values_computed_from_params_and_sizes_are_refused(f):
    model = quantize(f, P, [X], progress=False)
    assert decibels(f(P, X), model.apply(model.params, X)) > 30
    match = r"the scan 'scan_1' reads a value .* from params and from the sizes .* compute this value in the body"
    with pytest.raises(PtqError, match=match):
        model.apply(model.params, X[:, :4])


@pytest.mark.rare
def test_the_remedy_runs_at_other_sizes():
    def in_the_body(p, x):
        def layer(x, w):
            rows = p["positions"][None, : x.shape[1]]
            return jnp.tanh(x @ w) * rows.sum() + rows, None

        return lax.scan(layer, x, p["w"])[0]

    model = quantize(in_the_body, P, [X], progress=False)
    for x in (X, X[:, :4], X[:1, :2]):
        assert decibels(in_the_body(P, x), model.apply(model.params, x)) > 30


def test_an_array_that_the_body_captures_stays_a_weight():
    captured = P["q"][0]
    layers = lambda p, x: lax.scan(lambda x, w: (jnp.tanh(x @ w @ captured), None), x, p["w"])[0]  # noqa: E731
    model = quantize(layers, P, [X], progress=False)
    assert sum("weight:quantized" in name for name in model.params) == 2
