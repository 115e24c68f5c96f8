"""Values that are computed from params alone by products: they are computed once, in quantize.

The elements of params are multiples of 1/8, and their products and sums are exact in float32.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import jaxdml as dml
from _ptq.quantized import decibels
from helpers.compare import assert_same_bits
from jaxdml.ptq._choose import unit

RANDOM = np.random.default_rng(0)


def eighths(*shape):
    return RANDOM.integers(-8, 9, shape).astype(np.float32) / 8


P = {"w": eighths(8, 8), "queries": eighths(6, 8), "down": eighths(8, 3), "up": eighths(3, 8), "long": eighths(9, 8)}
X = RANDOM.standard_normal((8, 6, 8)).astype(np.float32)


def low_rank(p, t):
    return t @ p["down"] @ p["up"]


def attended(p, t):
    """Queries that attend to each other, without softmax."""
    return t @ t.swapaxes(-1, -2) @ (t @ p["w"])


REPEATED = {  # learned queries with a copy for each input
    "broadcast": lambda q, n: jnp.broadcast_to(q, (n, *q.shape)),
    "tiled": lambda q, n: jnp.tile(q[None], (n, 1, 1)),
    "repeated": lambda q, n: jnp.repeat(q[None], n, 0),
    "gathered": lambda q, n: q[jnp.broadcast_to(jnp.arange(6), (n, 6))],
    "mapped": lambda q, n: jax.vmap(lambda _: q)(jnp.arange(n)),
    "moved": lambda q, n: jnp.broadcast_to(q[:, None], (6, n, 8)).swapaxes(0, 1),
}


def quantized(apply, floats="exact", params=P, batches=(X[:4],)):
    return dml.ptq.quantize(apply, params, batches, floats=floats, progress=False)


def constants(model):
    return [value for name, value in model.graph.constants.items() if name.endswith(":once")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("learn", [low_rank, attended])
@pytest.mark.parametrize("name", REPEATED)
def test_a_value_that_is_repeated_for_each_input_is_computed_once(name, learn):
    def apply(p, x):
        return x @ p["w"] + jnp.abs(learn(p, REPEATED[name](p["queries"], x.shape[0]))) * x

    model = quantized(apply)
    text, (held,) = str(model), constants(model)
    assert "\n1 of 1 convolutions and products" in text
    assert "one answer" in text
    assert_same_bits(held, np.abs(learn(P, P["queries"])))
    given = quantized(lambda p, x: x @ p["w"] + p["held"][None] * x, params=P | {"held": held})
    for size in (4, 1, 3, 8):
        assert_same_bits(model.apply(model.params, X[:size]), given.apply(given.params, X[:size]))
    one = jax.vmap(lambda x: model.apply(model.params, x[None])[0])
    assert_same_bits(one(X), given.apply(given.params, X))
    if name != "tiled":  # jnp.tile takes no symbolic sizes
        (size,) = export.symbolic_shape("batch")
        exported = export.export(jax.jit(lambda x: model.apply(model.params, x)))(
            jax.ShapeDtypeStruct((size, 6, 8), np.float32)
        )
        assert_same_bits(exported.call(X[:3]), given.apply(given.params, X[:3]))


def with_filter(p, x):
    """The filter of a convolution is the result of a small network."""
    w = jax.nn.relu(p["queries"][:4] @ p["w"]) @ p["w"][:, :4]
    return lax.conv(x.reshape(-1, 1, 6, 8), w.reshape(4, 1, 2, 2), (1, 1), "SAME")


WEIGHTS = {
    "factors": (
        lambda p, x: x @ (p["down"] @ p["up"]), lambda p, x: x @ p["once"], lambda p: p["down"] @ p["up"]
    ),
    "filter": (
        with_filter, lambda p, x: lax.conv(x.reshape(-1, 1, 6, 8), p["once"], (1, 1), "SAME"),
        lambda p: (np.maximum(p["queries"][:4] @ p["w"], 0) @ p["w"][:, :4]).reshape(4, 1, 2, 2),
    ),
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_may_be_results_of_products(name):
    apply, same, once = WEIGHTS[name]
    model, given = quantized(apply), quantized(same, params={"once": once(P)})
    assert "\n1 of 1 convolutions and products" in str(model)
    assert "one answer" in str(model)
    for size in (4, 1):
        assert_same_bits(model.apply(model.params, X[:size]), given.apply(given.params, X[:size]))


def test_files_hold_the_values(tmp_path, monkeypatch):
    """A file of format 6 has the products instead."""

    def apply(p, x):
        return x @ p["w"] + low_rank(p, jnp.broadcast_to(p["queries"], (x.shape[0], 6, 8))) * x

    model, path = quantized(apply), tmp_path / "model.npz"
    dml.ptq.save(path, model)
    read = dml.ptq.load(path, apply)
    assert str(read) == str(model)
    assert read.sqnr(P, X).total == model.sqnr(P, X).total > 30
    with monkeypatch.context() as patch:
        patch.setattr(unit, "computed_once", lambda *_: [])
        dml.ptq.save(path, quantized(apply))
    with np.load(path) as arrays:
        stored = dict(arrays)
    text = json.loads(bytes(stored.pop("model.json"))) | {"format": "jaxdml.ptq 6"}
    np.savez(path, **stored | {"model.json": np.frombuffer(json.dumps(text).encode(), np.uint8)})
    old = dml.ptq.load(path, apply)
    assert "compute it once" in str(old)
    for size in (4, 3):
        expected = model.apply(model.params, X[:size])
        assert_same_bits(read.apply(read.params, X[:size]), expected)
        assert_same_bits(old.apply(old.params, X[:size]), expected)  # the products are exact


def of_both(p, x):
    """One result of a loop is computed once, and the sizes of the input change what is computed from the other."""
    last, each = lax.scan(lambda h, _: (jnp.clip(h @ p["w"], -1, 1), h), p["queries"], None, length=3)
    numbers = jnp.arange(x.shape[1], dtype=jnp.float32)
    return x @ p["w"] + last[None, :1] * x + (each[:, :1] * numbers[None, :, None]).sum(0)[None]


def numbered(p, size):
    return jnp.arange(size, dtype=jnp.float32)[:, None] * p["long"][:1]


BY_SIZE = {  # the number of rows of a value, or its elements, depend on the sizes of the inputs
    "positions": lambda p, x: x @ p["w"] + low_rank(p, p["long"][: x.shape[1]])[None],
    "numbered positions": lambda p, x: x @ p["w"] + low_rank(p, numbered(p, x.shape[1]))[None],
    "a mean": lambda p, x: x @ p["w"] + low_rank(p, p["queries"][None, :1]) / x.shape[1] * x,
    "two results": of_both,
    "hidden": lambda p, x: x @ p["w"] + low_rank(p, jnp.broadcast_to(p["long"][0], x.shape).at[:, 0].set(0)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", BY_SIZE)
def test_values_that_depend_on_sizes_are_computed_again(name):
    apply = BY_SIZE[name]
    few = X[:3, :4]
    model = quantized(apply, "xla", batches=(X[:4], X))
    assert constants(model)
    for x in (X[:4], few):
        assert decibels(model.apply(model.params, x), apply(P, x)) > 30
    exact = quantized(apply)
    assert "one answer" in str(exact)
    with pytest.raises(dml.ptq.PtqError, match=r"no single answer.*batches of these shapes, or with floats='xla'"):
        exact.apply(exact.params, few)
    of_few = quantized(apply, batches=(few,))
    assert decibels(of_few.apply(of_few.params, few), apply(P, few)) > 30


def test_positions_are_sliced_after_their_product():
    """So that the value does not depend on the sizes of the input."""
    apply = lambda p, x: x @ p["w"] + low_rank(p, p["long"])[None, : x.shape[1]]  # noqa: E731
    model = quantized(apply)
    (held,) = constants(model)
    assert held.shape == (9, 8)
    for x in (X[:4], X[:3, :2]):
        assert decibels(model.apply(model.params, x), apply(P, x)) > 30


def test_a_value_without_elements_is_not_computed_once():
    apply = lambda p, x: (x @ p["w"], x[:0] + jnp.exp(jnp.broadcast_to(low_rank(p, p["queries"]), (0, 6, 8))))  # noqa: E731
    model = quantized(apply)
    assert not constants(model)
    assert model.apply(model.params, X)[1].shape == (0, 6, 8)


def test_products_in_the_body_of_a_scan_stay_in_floats():
    def apply(p, x):
        return lax.scan(lambda h, w: (h @ w + (w @ w)[None, :1] * h, None), x, jnp.stack([p["w"], -p["w"]]) / 8)[0]

    text = str(quantized(apply))
    assert "\n1 of 2 convolutions and products" in text
    assert "it depends only on parameters: compute it once" in text
