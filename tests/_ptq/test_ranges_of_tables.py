"""A value that only tables read has no steps where its tables have one result."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from _ptq.quantized import decibels, in_floats
from helpers.compare import assert_same_bits
from jaxdml import fake_quantize
from jaxdml.ptq import quantize

RNG = np.random.default_rng(0)
PARAMS = {
    "in": RNG.normal(size=(16, 3, 3, 3)).astype(np.float32),
    "out": RNG.normal(size=(8, 16, 1, 1)).astype(np.float32) / 4,
}
X = RNG.normal(size=(8, 3, 8, 8)).astype(np.float32)
VALUE = "conv_general_dilated_1"  # the result of the first convolution


def conv(x, w):
    return lax.conv(x, w, (1, 1), "SAME")


def network(activation):
    return lambda p, x: conv(activation(conv(x, p["in"])), p["out"])


def grid(model, name=VALUE):
    """The scale and zero point of a value."""
    return tuple(np.asarray(model.graph.constants[f"{name}:{role}"]) for role in ("scale", "zero_point"))


def whole_grid(dtype, x=X):
    """The grid of the whole range of the first convolution's result."""
    y = np.asarray(conv(x, PARAMS["in"]))
    limits, low, high = np.iinfo(dtype), y.min(), y.max()
    scale = (high - low) / np.float32(255)
    return scale, np.rint(limits.min - low / scale).astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("name", ["hard_swish", "tanh", "silu", "square"])
def test_the_range_is_that_in_which_the_table_changes(name, dtype):
    """A tanh has equal results at both ends, and a square at neither."""
    activation = {
        "hard_swish": (jax.nn.hard_swish, lambda x: x * np.clip(x + 3, 0, 6) / 6),
        "tanh": (jnp.tanh, np.tanh),
        "silu": (jax.nn.silu, lambda x: x / (1 + np.exp(-x))),
        "square": (jnp.square, np.square),
    }[name]
    model = quantize(network(activation[0]), PARAMS, [X], activations=dtype, equalize=False, progress=False)
    (result,) = (key.removesuffix(":table") for key in model.graph.constants if key.endswith(":table"))
    scale, zero_point = whole_grid(dtype)
    levels = (np.arange(256) + np.iinfo(dtype).min - np.float32(zero_point)).astype(np.float32) * scale
    y_scale, _ = grid(model, result)
    steps = np.rint(activation[1](levels.astype(np.float64)) / y_scale)
    changes = np.flatnonzero(np.diff(steps))
    low, high = levels[max(changes[0] - 1, 0)], levels[min(changes[-1] + 2, 255)]  # two equal results at each end
    expected = (high - low) / np.float32(255)
    found, zero = grid(model)
    assert_same_bits(found, expected)
    assert zero == np.rint(np.iinfo(dtype).min - low / expected)
    assert (found < scale) == (name != "square")


@pytest.mark.parametrize("factor", [1, 1.5, 2, 3])
def test_values_beyond_the_range_keep_their_result(factor):
    """Also where rounding the zero point moves the end of the range: the table begins with the number for 0."""
    model = quantize(network(jax.nn.hard_swish), PARAMS, [np.float32(factor) * X], equalize=False, progress=False)
    ((name, table),) = ((key, x) for key, x in model.graph.constants.items() if key.endswith(":table"))
    assert table[0] == grid(model, name.removesuffix(":table"))[1]
    assert grid(model)[0] < whole_grid(np.uint8, np.float32(factor) * X)[0]


@pytest.mark.parametrize(
    ("activation", "low", "high"), [(jax.nn.hard_swish, -107.5, 188.9), (jax.nn.silu, -95.8, 137.8)]
)
def test_the_range_does_not_begin_in_a_minimum_between_two_steps(activation, low, high):
    """Below 0, a swish has a minimum. Large steps pass over it: its neighbors on both sides round to 0."""

    def apply(w, x):
        return conv(activation(conv(x, w)), w)

    x = np.linspace(low, high, 512, dtype=np.float32).reshape(1, 8, 8, 8)
    one = np.eye(8, dtype=np.float32)[..., None, None]
    model = quantize(apply, one, [x], equalize=False, progress=False)
    ((name, table),) = ((key, x) for key, x in model.graph.constants.items() if key.endswith(":table"))
    assert table[0] == grid(model, name.removesuffix(":table"))[1]
    assert grid(model)[0] < np.float32(0.9 * (high - low) / 255)


def test_a_range_that_tables_need_keeps_its_bits():
    """Computed again from the least and the greatest number of the grid, this scale would have another last bit."""
    x = np.float32(4.7) * X
    model = quantize(network(jnp.square), PARAMS, [x], equalize=False, progress=False)
    assert grid(model) == whole_grid(np.uint8, x)


@pytest.mark.parametrize(("activation", "least"), [(jax.nn.hard_swish, 36.5), (jnp.tanh, 35)])
def test_the_outputs_are_closer(activation, least):
    """With the whole range, there were 35.9 and 32.7 dB."""
    model = quantize(network(activation), PARAMS, [X], progress=False)
    assert decibels(model.apply(model.params, X), in_floats(network(activation), PARAMS, X)) > least


def test_a_table_of_one_number():
    model = quantize(network(lambda x: jnp.round(x / 1000) + 2), PARAMS, [X], progress=False)
    expected = in_floats(network(lambda x: jnp.round(x / 1000) + 2), PARAMS, X)
    assert decibels(model.apply(model.params, X), expected) > 40


def test_one_result_for_all_integers_says_nothing_of_the_numbers_between_them():
    """Between two steps, the function has another result."""
    x = np.float32(3000) * X
    apply = network(lambda y: 1 + ((y > 240) & (y < 270)).astype(np.float32))
    model = quantize(apply, PARAMS, [x], equalize=False, progress=False)
    assert grid(model) == whole_grid(np.uint8, x)


def test_all_tables_of_the_value_count():
    """The hard swish has one result below -3, and the other function has one above 0."""

    def apply(p, x):
        y = conv(x, p["in"])
        return conv(jax.nn.hard_swish(y), p["out"]) + conv(jnp.minimum(y, 0) * 2 - 1, p["out"])

    model = quantize(apply, PARAMS, [X], equalize=False, progress=False)
    assert sum(key.endswith(":table") for key in model.graph.constants) == 2
    assert grid(model) == whole_grid(np.uint8)


OTHERS = {
    "an output": lambda p, y: (conv(jax.nn.hard_swish(y), p["out"]), y),
    "a sum in floats": lambda p, y: (conv(jax.nn.hard_swish(y), p["out"]), jnp.sort(y)),
    "an operator that reads part of the function": (
        lambda p, y: (conv(y * (z := jax.nn.relu6(y + 3)), p["out"]), jnp.sort(z))
    ),
    "a convolution": lambda p, y: (conv(jax.nn.hard_swish(y), p["out"]), conv(y, p["out"])),
    "a mover": lambda p, y: conv(jax.nn.hard_swish(y[:, :, 1:]), p["out"]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_value_that_something_else_reads_keeps_its_range(name):
    model = quantize(
        lambda p, x: OTHERS[name](p, conv(x, p["in"])), PARAMS, [X], equalize=False, progress=False
    )  # fmt: skip
    assert any(key.endswith(":table") for key in model.graph.constants)
    assert grid(model) == whole_grid(np.uint8)
    assert "slice_1:scale" not in model.graph.constants


def test_a_grid_of_the_function_stays():
    scale = np.float32(0.25)
    model = quantize(
        network(lambda x: jax.nn.hard_swish(fake_quantize(x, scale, np.int8(0)))), PARAMS, [X], progress=False
    )
    assert any(key.endswith(":table") for key in model.graph.constants)
    assert any(key.endswith(":scale") and x == scale for key, x in model.graph.constants.items() if np.size(x) == 1)


def test_results_of_products_keep_their_16_bits():
    weights = RNG.normal(size=(2, 16, 16)).astype(np.float32)
    x = RNG.normal(size=(64, 16)).astype(np.float32)
    model = quantize(
        lambda w, x: jax.nn.hard_swish(x @ w[0]) @ w[1], weights, [x], equalize=False, progress=False
    )  # fmt: skip
    y = x @ weights[0]
    scale, zero_point = grid(model, "dot_general_1")
    assert zero_point.dtype == np.uint16
    np.testing.assert_allclose(scale, (y.max() - y.min()) / 65535, rtol=1e-5)


def test_layers_of_a_scan_have_ranges_of_their_own():
    weights = np.stack([PARAMS["in"][:3], 3 * PARAMS["in"][3:6]])

    def step(h, w):
        return jnp.tanh(conv(jax.nn.hard_swish(conv(h, w)), w) / 16), None

    def unrolled(p, x):
        for w in p:
            x, _ = step(x, w)
        return x

    scanned = quantize(lambda p, x: lax.scan(step, x, p)[0], weights, [X], equalize=False, progress=False)
    model = quantize(unrolled, weights, [X], equalize=False, progress=False)
    exact = in_floats(unrolled, weights, X)
    both = [decibels(each.apply(each.params, X), exact) for each in (scanned, model)]
    assert both[0] > both[1] - 0.5
    scales, others = (
        np.concatenate([np.ravel(x) for key, x in each.graph.constants.items() if key.endswith(":scale")])
        for each in (scanned, model)
    )
    assert np.isclose(scales[:, None], others, rtol=1e-5).any(-1).all()
