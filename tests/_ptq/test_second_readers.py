"""Functions that a rule about one value, one reader or one type would get wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from _ptq.quantized import decibels
from helpers.compare import assert_same_bits

pytestmark = pytest.mark.oldest

RANDOM = np.random.default_rng(0)


def normal(*shape):
    return RANDOM.standard_normal(shape, np.float32)


X, W, V, B = normal(4, 16), normal(16, 16) / 4, normal(16, 16) / 4, normal(16)
BF16 = jnp.bfloat16


def conv(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME")


def dead_channel(p, x):
    return conv(jax.nn.relu(conv(x, p["filter"]) + p["bias"][None, :, None, None]), p["reader"])


FILTER = normal(8, 3, 3, 3) * np.float32(1e-3)
FILTER[3] = 0
DEAD = {"filter": FILTER, "bias": np.float32([0, 0, 0, 0.4, 0, 0, 0, 0]), "reader": normal(4, 8, 3, 3) / 9}
ROW, COLUMN = B[None], B[:, None]
COMPLEX, TWO_POINT_SEVEN = np.complex64(1 + 2j), np.float32(2.7)


def cast_number(x):
    """2.7 as an integer, 2, in floats, for each element of x."""
    return jnp.broadcast_to(TWO_POINT_SEVEN.astype(jnp.int32).astype(jnp.float32), x.shape)


CASES = {
    # Operations after one name of a result are affine, those after the other are not.
    "transposed and clamped": lambda p, x: (lambda y: (y.T + COLUMN, jnp.maximum(y, 0)))(x @ p["w"]),
    "cast and doubled": lambda p, x: (lambda y: (y.astype(BF16) + ROW.astype(BF16), y * 2))(x @ p["w"]),
    "stopped and summed": lambda p, x: (lambda y: (lax.stop_gradient(y) * ROW, jnp.sum(y, 0)))(x @ p["w"]),
    "moved and summed": lambda p, x: (lambda y: (y.T[:, None, :] * COLUMN[..., None], jnp.sum(y, 0)))(x @ p["w"]),
    # A clamp after a table of the same value.
    "clip of silu": lambda p, x: jnp.clip(jax.nn.silu(x @ p["w"]), -0.1, 1.0) @ p["v"],
    "relu of a sum with tanh": lambda p, x: (lambda y: jax.nn.relu(y + jnp.tanh(y)) @ p["v"])(x @ p["w"]),
    # Numbers are those after the cast.
    "clamp at a number that was an integer": lambda p, x: jnp.minimum(x @ p["w"] * 4, cast_number(x)) @ p["v"],
    "table with a number that was an integer": lambda p, x: (jnp.tanh(x @ p["w"]) * cast_number(x)) @ p["v"],
    "complex factor": lambda p, x: jnp.abs((x @ p["w"]).astype(jnp.complex64) * COMPLEX) @ p["v"],
    "printed": lambda p, x: (jax.debug.callback(lambda y: None, x), x @ p["w"])[1],
    "Python's truths in calls": lambda p, x: (
        jnp.select([jnp.where(x > 1, True, x < -1), x > 0], [x, 2 * x], 4.0) @ p["w"]
    ),
    "Python's truths in loops": lambda p, x: lax.while_loop(lambda at: ~at[1], once, (x, False))[0] @ p["w"],
    "Python's truths in scans": lambda p, x: (
        lax.scan(lambda at, _: (once(at), at[1]), (x, True), None, 2)[0][0] @ p["w"]
    ),
    "many clamps": lambda p, x: clamped(x, 12) @ p["w"],
}


def once(at):
    return at[0] / 2, at[1] ^ True


def clamped(x, times):
    for number in range(times):
        x = jnp.minimum(jnp.maximum(x, number / 50 - 2), 2 - number / 50)
    return x


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_each_result_is_its_own(name):
    params = {"w": W, "v": V}
    model = dml.ptq.quantize(CASES[name], params, [X], progress=False)
    expected = CASES[name](params, X)
    for ours, theirs in zip(jax.tree.leaves(model.apply(model.params, X)), jax.tree.leaves(expected), strict=True):
        assert ours.dtype == theirs.dtype
        assert decibels(ours, theirs) > 35


@pytest.mark.rare
def test_a_channel_of_zeros_keeps_its_bias():
    x = normal(2, 3, 6, 6) * 100
    model = dml.ptq.quantize(dead_channel, DEAD, [x], progress=False)
    assert decibels(model.apply(model.params, x), dead_channel(DEAD, x)) > 38


INTEGERS = {
    "sums": lambda p, a, b, x: (a + b, x @ p["w"]),
    "products": lambda p, a, b, x: (a * b, x @ p["w"]),
    "means": lambda p, a, b, x: (lax.div(jnp.sum(a, 1, a.dtype), jnp.full(4, 16, a.dtype)), x @ p["w"]),
    "places": lambda p, a, b, x: (jnp.concatenate([a, b], 1) % 5, jnp.take(p["w"], (a + b) % 16, 0) + x[..., None] * 0),
    "truths": lambda p, a, b, x: (jnp.concatenate([a > b, b > a], 1), x @ p["w"]),
    "clamps": lambda p, a, b, x: (jnp.clip(a, 3, a.dtype.type(201)), x @ p["w"]),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_stay_exact(name, dtype):
    a = jnp.full((4, 16), 200 if dtype == jnp.uint8 else 16777217, dtype)
    b, function = jnp.asarray(RANDOM.integers(1, 100, (4, 16)), dtype), INTEGERS[name]
    params = {"w": W}
    model = dml.ptq.quantize(lambda p, a, b, x: (function(p, a, b, x), x @ p["w"]), params, [(a, b, X)], progress=False)
    received, _ = model.apply(model.params, a, b, X)
    assert_same_bits(received[0], function(params, a, b, X)[0])


def test_doubles_are_added_as_such():
    with jax.enable_x64(True):
        x, w = jnp.full((2, 4), 1.7e9 + 0.25, jnp.float64), jnp.ones((4, 4), jnp.float64)
        model = dml.ptq.quantize(lambda p, x, y: (x + y, x @ p), w, [(x, x)], progress=False)
        assert (model.apply(model.params, x, x)[0] == x + x).all()
