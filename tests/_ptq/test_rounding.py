"""Weights rounded by second moments, against GPTQ with an inverse for each weight."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from _ptq.layers import conv, dense
from _ptq.models import scanned_mlp
from _ptq.quantized import batches_for, decibels, in_floats, network
from helpers.compare import assert_same_bits, assert_same_values
from helpers.marks import rest_rarely
from jaxdml.ptq import PtqError, Rule, quantize_weights
from jaxdml.ptq._grids.rounding import rounded

RANDOM = np.random.default_rng(0)
START = RANDOM.bit_generator.state


@pytest.fixture(autouse=True)
def same_numbers_in_any_order():
    RANDOM.bit_generator.state = START


def correlated(*shape):
    """Rows of integers that depend on each other, and whose mean is not 0. Sums of integers are exact."""
    few = max(1, shape[-1] // 4)
    mixed = RANDOM.standard_normal((*shape[:-1], few)) @ RANDOM.standard_normal((few, shape[-1]))
    mixed += RANDOM.standard_normal(shape) / 4 + RANDOM.standard_normal(shape[-1])
    return np.rint(8 * mixed).astype(np.float32)


def expected(w, scale, x, most=127):
    """GPTQ: `w` [depth, outputs] and its scales, for rows x; the other weights compensate for each weight's error.

    The inverse of the moments of the weights that are not yet rounded determines how.
    """
    w, x = w.astype(np.float64), x.reshape(-1, len(w)).astype(np.float64)
    scale = np.broadcast_to(scale, w.shape).astype(np.float64)
    moments = x.T @ x
    left = sorted(range(len(w)), key=lambda i: -moments[i, i])
    moments += np.eye(len(w)) * (0.01 * np.trace(moments) / len(w))
    integers = np.zeros(w.shape, np.int8)
    while left:
        inverse, first = np.linalg.inv(moments[np.ix_(left, left)]), left[0]
        integers[first] = np.clip(np.rint(w[first] / scale[first]), -most, most)
        error = w[first] - integers[first] * scale[first]
        w[left] -= inverse[:, :1] / inverse[0, 0] * error
        left = left[1:]
    return integers


def assert_alike(integers, right):
    """For rows of fractions, whose moments are rounded: occasionally, another integer is as good."""
    assert integers.shape == right.shape
    assert np.mean(integers == right) > 0.98


def moments_of(x):
    return x.T.astype(np.float64) @ x / len(x)


@pytest.mark.parametrize(("depth", "most"), [(24, 127), pytest.param(150, 7, marks=pytest.mark.rare)])
def test_the_integers_are_those_of_gptq(depth, most):
    x, w = correlated(2, 400, depth), RANDOM.standard_normal((2, depth, 5), np.float32)
    scale = np.broadcast_to(np.abs(w).max(1, keepdims=True) / most, w.shape)
    got = rounded(w, scale, np.stack(list(map(moments_of, x))), most)
    for each in range(2):
        assert_same_bits(got[each], expected(w[each], scale[each], x[each], most))
        nearest = np.rint(w[each] / scale[each])
        errors = [np.square(x[each] @ (y * scale[each] - w[each])).sum() for y in (got[each], nearest)]
        assert errors[0] < 0.5 * errors[1]


def test_no_integer_is_beyond_the_greatest():
    """Weights of the greatest magnitude, all of the same sign, to which errors of others are added."""
    x, w = correlated(400, 24), np.full((24, 5), 0.96, np.float32) + RANDOM.uniform(0, 0.04, (24, 5))
    got = rounded(w[None], np.full((1, 24, 5), 1 / 7), moments_of(x)[None], 7)[0]
    assert_same_bits(got, expected(w, 1 / 7, x, 7))
    assert got.max() == 7
    assert rounded(w[None], np.full((1, 24, 5), 1 / 7), moments_of(x)[None], 127).max() > 7


def test_what_multiplies_zeros_is_rounded_to_nearest():
    x, w = correlated(100, 8), RANDOM.standard_normal((8, 3), np.float32)
    for zeros in (slice(2, 4), slice(None)):
        x[:, zeros] = 0
        got = rounded(w[None], np.full((1, 8, 3), 0.05), moments_of(x)[None], 127)[0]
        assert_same_values(got[zeros], np.rint(w / 0.05)[zeros].astype(np.int8))


# Products ------------------------------------------------------------------------------------------------------------

PARAMS = {
    "first": {"w": RANDOM.standard_normal((40, 24), np.float32) / 64, "b": RANDOM.standard_normal(24, np.float32)},
    "last": {"w": RANDOM.standard_normal((24, 8), np.float32), "b": RANDOM.standard_normal(8, np.float32)},
}
X = correlated(200, 40)
MODES = {
    "int4": {"weights": jnp.int4, "block_size": 16},
    "static": {"products": "static"},
    "dynamic": {"products": "dynamic"},
    "int8": {"weights": jnp.int8, "block_size": 32},
}


def mlp(params, x):
    return dense(params["last"], jnp.tanh(dense(params["first"], x)))


def quantize(apply=mlp, params=PARAMS, batches=(X[:150], X[150:]), rounding="gptq", **options):
    return dml.ptq.quantize(apply, params, batches, rounding=rounding, progress=False, **options)


def constants(model, *roles):
    """The only constants whose names end in the roles."""
    found = model.graph.constants
    return [found[next(name for name in found if name.endswith(role))] for role in roles]


@pytest.mark.parametrize("mode", rest_rarely(list(MODES), 1))
def test_products(mode, tmp_path):
    options = MODES[mode]
    model, nearest = quantize(equalize=False, **options), quantize(equalize=False, rounding="nearest", **options)
    integers, scale, bias = constants(model, "weight:quantized", "weight:scale", "bias")
    assert_same_bits(scale, constants(nearest, "weight:scale")[0])
    w = PARAMS["first"]["w"]
    scales = np.repeat(scale, options["block_size"], 0)[:40] if "block_size" in options else scale
    assert_same_values(integers.astype(np.int8), expected(w, scales, X, 7 if mode == "int4" else 127))
    errors = X.mean(0, np.float64) @ (integers.astype(np.float64) * scales - w)
    np.testing.assert_allclose(bias, PARAMS["first"]["b"] - errors, rtol=1e-4, atol=1e-6)

    test = X + RANDOM.standard_normal(X.shape, np.float32)
    exact = in_floats(mlp, PARAMS, test)
    found = [decibels(each.apply(each.params, test), exact) for each in (model, nearest)]
    assert found[0] > found[1]
    dml.ptq.save(tmp_path / "model.npz", model)
    loaded = dml.ptq.load(tmp_path / "model.npz", mlp)
    assert_same_bits(loaded.apply(loaded.params, test[:3]), model.apply(model.params, test[:3]))


@pytest.mark.parametrize("products", rest_rarely(["static", "dynamic"], 1))
def test_scaled_channels(products):
    """Moments are those of the scaled channels, as the weights are."""
    factors = np.geomspace(0.1, 10, 40, dtype=np.float32)
    params = PARAMS | {"first": PARAMS["first"] | {"w": PARAMS["first"]["w"] / factors[:, None]}}
    model = quantize(mlp, params, [X * factors], products=products)
    integers, scale, factor = constants(model, "weight:quantized", "weight:scale", "factor")
    w, x = params["first"]["w"] / factor.reshape(-1, 1), X * factors * factor
    assert_alike(integers, expected(w, scale, x))


@pytest.mark.rare
def test_nearest_is_the_default():
    one = dml.ptq.quantize(mlp, PARAMS, [X], progress=False)
    assert_same_bits(
        one.apply(one.params, X), (other := quantize(batches=[X], rounding="nearest")).apply(other.params, X)
    )
    assert str(one) == str(quantize(batches=[X]))


@pytest.mark.rare
@pytest.mark.parametrize("copies", [1, 2])
def test_several_matrices(copies):
    """Each is multiplied by rows of its own; one that is repeated along an axis is stored once, for all rows there."""
    w, x = RANDOM.standard_normal((copies, 3, 40, 8)).astype(np.float32), correlated(2, 3, 50, 40)

    def experts(w, x):
        w = jnp.broadcast_to(w, (2, 3, 40, 8))
        return lax.dot_general(x, w, (((3,), (2,)), ((0, 1), (0, 1)))) + jnp.ones((1, 1, 1, 8))

    model = quantize(experts, w, [x], products="dynamic", equalize=False)
    integers, scale = constants(model, "weight:quantized", "weight:scale")
    assert integers.shape == (w[0] if copies == 1 else w).shape
    for place in np.ndindex(copies, 3):
        own, rows = (integers[place[1]], x[:, place[1]]) if copies == 1 else (integers[place], x[place])
        assert_same_bits(own, expected(w[place], scale, rows))


@pytest.mark.rare
def test_sums_of_many_terms_are_rounded_to_nearest():
    w, x = RANDOM.standard_normal((2, 8200, 3), np.float32), RANDOM.standard_normal((2, 8200), np.float32)
    w = {"long": w[0], "short": w[1, :3]}
    model = quantize(lambda w, x: x @ w["long"] @ w["short"], w, [x], equalize=False)
    assert re.search(r"long.* weights are rounded to nearest: each sum has 8200 terms, more than 8192", str(model))
    assert "short" in str(model).split("weights are rounded to nearest")[1]
    nearest = quantize(lambda w, x: x @ w["long"] @ w["short"], w, [x], "nearest", equalize=False)
    assert "rounded" not in str(nearest)
    assert_same_bits(constants(model, "weight:quantized")[0], quantize_weights(w["long"], 1)[0])


@pytest.mark.rare
def test_a_printed_model_says_where_rows_are_few():
    text = "weights are rounded with moments of 9 rows, fewer than the 40 terms of a sum: calibrate with more"
    (line,) = (line for line in str(quantize(batches=[X[:9]])).splitlines() if text in line)
    assert line.startswith("first")
    assert text not in str(quantize(batches=[X[:40]]))


@pytest.mark.rare
def test_weights_on_own_grids_stay():
    scale = np.float32(0.05)

    def on_grid(params, x):
        return x @ dml.fake_quantize(params["w"], scale, output_dtype=np.int8)

    params = {"w": RANDOM.uniform(-8, 6, (40, 4)).astype(np.float32)}
    models = [quantize(on_grid, params, rounding=each) for each in ("gptq", "nearest")]
    one, other = (constants(each, "weight:quantized")[0] for each in models)
    assert one.min() == -128
    assert_same_bits(one, other)
    assert str(models[0]) == str(models[1])


def test_values_that_are_not_finite():
    wrong = X.copy()
    wrong[3, 3] = np.nan
    with pytest.raises(PtqError, match=r"batch 1: .*is already NaN or infinite in the float function"):
        quantize(batches=[X, wrong], products="dynamic")


# Convolutions --------------------------------------------------------------------------------------------------------

CONVOLUTIONS = {
    "strides and padding": {"window_strides": (2, 1), "padding": ((1, 2), (0, 1))},
    "dilations": {"padding": "SAME", "rhs_dilation": (2, 3)},
    "groups": {"padding": "VALID", "feature_group_count": 2},
    "depthwise": {"padding": "SAME", "feature_group_count": 4, "window_strides": (2, 2)},
    "cut off": {"padding": ((-1, 0), (1, -2))},
}


def patches_of(x, w, groups, options):
    """The patches [groups, count, depth] of images, by JAX."""
    options = {name: value for name, value in options.items() if name != "feature_group_count"}
    patches = np.asarray(lax.conv_general_dilated_patches(x, w.shape[2:], **options))
    patches = patches.reshape(len(x), groups, -1, *patches.shape[2:])
    return np.moveaxis(patches, 1, 0).transpose(0, 1, 3, 4, 2).reshape(groups, -1, patches.shape[2])


@pytest.mark.rare
@pytest.mark.parametrize("name", rest_rarely(list(CONVOLUTIONS), 1))
def test_convolutions(name):
    options = {"window_strides": (1, 1)} | CONVOLUTIONS[name]
    groups = options.get("feature_group_count", 1)
    params = {
        "w": RANDOM.standard_normal((8, 4 // groups, 3, 2), np.float32),
        "b": RANDOM.standard_normal(8, np.float32),
    }
    batches = [correlated(20, 4, 9, 9), correlated(20, 4, 10, 10)]  # "SAME" pads differently

    def apply(params, x):
        return lax.conv_general_dilated(x, params["w"], **options) + params["b"][None, :, None, None]

    model = quantize(apply, params, batches, equalize=False)
    integers, scale, bias = constants(model, "weight:quantized", "weight:scale", "bias")
    patches = np.concatenate([patches_of(x, params["w"], groups, options) for x in batches], 1)
    columns, of_scale = (x.reshape(groups, 8 // groups, -1).transpose(0, 2, 1) for x in (params["w"], scale))
    right = np.stack([expected(*each) for each in zip(columns, of_scale, patches, strict=True)])
    assert_same_bits(integers, right.transpose(0, 2, 1).reshape(params["w"].shape))
    errors = np.einsum("gi,gio->go", patches.mean(1, dtype=np.float64), right * of_scale.astype(np.float64) - columns)
    np.testing.assert_allclose(bias, params["b"] - errors.reshape(-1), rtol=1e-4, atol=1e-6)
    x = batches[1][:2]
    assert decibels(model.apply(model.params, x), apply(params, x)) > 30


@pytest.mark.rare
def test_scaled_channels_of_convolutions():
    factors = np.geomspace(0.1, 10, 4, dtype=np.float32)
    params = {"w": RANDOM.standard_normal((6, 2, 3, 3), np.float32) / 4}
    params["w"] /= factors.reshape(2, 1, 2, 1, 1).repeat(3, 1).reshape(6, 2, 1, 1)
    x = correlated(40, 4, 8, 8) * factors[:, None, None]

    def apply(params, x):
        return conv(params, x)

    model = quantize(apply, params, [x])
    integers, scale, factor = constants(model, "weight:quantized", "weight:scale", "factor")
    of_inputs = factor.reshape(2, 1, 2, 1, 1).repeat(3, 1).reshape(6, 2, 1, 1)
    patches = patches_of(x * factor, params["w"], 2, {"window_strides": (1, 1), "padding": ((1, 1), (1, 1))})
    w = (params["w"] / of_inputs).reshape(2, 3, -1).transpose(0, 2, 1)
    right = [expected(*each) for each in zip(w, scale.reshape(2, 1, 3), patches, strict=True)]
    assert_alike(integers, np.stack(right).transpose(0, 2, 1).reshape(6, 2, 3, 3))


# Networks ------------------------------------------------------------------------------------------------------------


@pytest.mark.rare
def test_layers_of_a_scan():
    """Each layer has the moments of its own rows."""
    apply, params, make_inputs = scanned_mlp(3, 24)
    (x,) = make_inputs(200)
    model = quantize(apply, params, [x], equalize=False)
    integers, scale = constants(model, "weight:quantized", "weight:scale")
    for layer in range(3):
        w, b = (np.asarray(params["layers"][name][layer]) for name in "wb")
        assert_alike(integers[layer], expected(w, scale[layer], np.asarray(x)))
        x = jax.nn.relu(x @ w + b[None])


@pytest.mark.rare
def test_steps_of_a_scan():
    """All steps share the weights, whose moments are those of all steps."""

    def rnn(w, x):
        return lax.scan(lambda h, x: (jnp.tanh(h @ w["h"] + x @ w["x"]),) * 2, jnp.zeros((len(x[0]), 24)), x)[1]

    w, x = {name: RANDOM.standard_normal((24, 24), np.float32) / 5 for name in "hx"}, correlated(6, 50, 24)
    model = quantize(rnn, w, [x], products="dynamic", equalize=False)
    h = np.asarray(rnn(w, x))
    rows = {"x": x, "h": np.concatenate([np.zeros_like(h[:1]), h[:-1]])}
    scales = {name: np.abs(each).max(0) / np.float32(127) for name, each in w.items()}
    right = [expected(w[name], scales[name], rows[name]) for name in "hx"]
    found = [x[0] for name, x in model.graph.constants.items() if name.endswith("weight:quantized")]
    for each in right:
        assert_alike(max(found, key=lambda x: np.mean(x == each)), each)  # used at once


@pytest.mark.rare
@pytest.mark.parametrize(
    ("name", "mode", "gain"),
    [("digits", "static", 1), ("transformer", "dynamic", 0.5), ("scanned transformer", "int4", 1),
     ("tied embeddings", "int4", 2)],
)  # fmt: skip
def test_networks_lose_less(name, mode, gain, tmp_path):
    pytest.importorskip("onnx")
    apply, params, make_inputs = network(name)
    batches, (x,) = batches_for(make_inputs, 64), make_inputs(64, seed=5)
    models = [quantize(apply, params, batches, each, **MODES[mode]) for each in ("gptq", "nearest")]
    found = [decibels(model.apply(model.params, x), in_floats(apply, params, x)) for model in models]
    assert found[0] > found[1] + gain
    dml.onnx.save(models[0], tmp_path / "model.onnx")
    loaded = dml.onnx.load(tmp_path / "model.onnx")
    (received,) = loaded.apply(loaded.params, x).values()
    assert decibels(received, models[0].apply(models[0].params, x)) > 80  # floats between layers may differ


@pytest.mark.rare
def test_every_observer_of_auto_has_rounded_weights():
    model = quantize(observer="auto", equalize=False, batches=[X])
    integers, scale = constants(model, "weight:quantized", "weight:scale")
    assert_same_bits(integers, expected(PARAMS["first"]["w"], scale, X))


@pytest.mark.rare
def test_layers_in_floats_have_no_moments():
    model = quantize(rules=[Rule("first", keep="float")])
    assert "kept in floats" in str(model)
    assert_same_bits(constants(model, "bias")[0], PARAMS["first"]["b"])
