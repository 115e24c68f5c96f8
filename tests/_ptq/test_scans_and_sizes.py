"""Scans over layers that read values which depend on the sizes of inputs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from _ptq.quantized import decibels
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


def causal(p, x, in_body=False):
    mask = jnp.tril(jnp.ones((x.shape[1],) * 2, bool))

    def layer(x, weights):
        w, q = weights
        seen = jnp.tril(jnp.ones((x.shape[1],) * 2, bool)) if in_body else mask
        scores = jnp.where(seen, jnp.einsum("btd,bsd->bts", x @ q, x @ w), -1e9)
        return x + jax.nn.softmax(scores, -1) @ x, None

    return lax.scan(layer, x, (p["w"], p["q"]))[0]


def by_repeated_layers(p, x):
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, jnp.tile(p["w"], (x.shape[1], 1, 1)))[0]


def by_rows(p, x):
    rows = p["positions"][None, : x.shape[1]]
    return lax.scan(lambda x, w: (jnp.tanh(x @ w) + rows, None), x, p["w"])[0]


def by_sum_of_rows(p, x):
    total = p["positions"][: x.shape[1]].sum()
    return lax.scan(lambda x, w: (jnp.tanh(x @ w) * total, None), x, p["w"])[0]


def by_divided_weights(p, x):
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, p["w"] / x.shape[1])[0]


def by_numbered_rows(p, x):
    """A sum of products of params and numbers."""
    rows = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * p["positions"][:1]
    return lax.scan(lambda x, w: (jnp.tanh(x @ w) + rows.sum(0)[None, None], None), x, p["w"])[0]


def by_sum_of_broadcast_rows(p, x):
    rows = jnp.broadcast_to(p["positions"][:1], (x.shape[1], 8))
    return lax.scan(lambda x, w: (jnp.tanh(x @ w) + rows.sum(0)[None, None], None), x, p["w"])[0]


REFUSED = [by_sum, causal, by_rows, by_sum_of_rows, by_divided_weights, by_numbered_rows, by_sum_of_broadcast_rows]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("f", REFUSED)
def test_constants_computed_from_sizes_are_refused(f):
    model = quantize(f, P, [X], progress=False)
    assert decibels(f(P, X), model.apply(model.params, X)) > 30
    match = "the scan 'scan_1' reads a constant of the model .* compute this value in the body of the scan"
    with pytest.raises(PtqError, match=match):
        model.apply(model.params, X[:, :4])


def test_another_number_of_layers_is_refused():
    model = quantize(by_repeated_layers, P, [X], progress=False)
    with pytest.raises(PtqError, match=r"the scan 'scan_1' has 8 layers, but had 12"):
        model.apply(model.params, X[:, :4])


@pytest.mark.rare
def test_the_remedy_runs_at_other_sizes():
    def in_the_body(p, x):
        def layer(x, w):
            rows = p["positions"][None, : x.shape[1]]
            return jnp.tanh(x @ w) * rows.sum() + rows, None

        return lax.scan(layer, x, p["w"])[0]

    for f in (in_the_body, functools.partial(causal, in_body=True)):
        model = quantize(f, P, [X], progress=False)
        for x in (X, X[:, :4], X[:1, :2]):
            assert decibels(f(P, x), model.apply(model.params, x)) > 30


def test_computed_and_captured_arrays_stay_weights():
    captured = P["q"][0]

    def layers(p, x):
        scale, identity = 1 / jnp.sqrt(8.0), jnp.eye(8)
        return lax.scan(lambda x, w: (jnp.tanh(x @ (w * scale + identity) @ captured), None), x, p["w"])[0]

    model = quantize(layers, P, [X], progress=False)
    assert sum("weight:quantized" in name for name in model.params) == 2
    assert decibels(layers(P, X), model.apply(model.params, X)) > 30
