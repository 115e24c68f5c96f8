"""Functions that fake_quantize values, as in quantization-aware training: the integers are on the functions' grids."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from helpers.compare import assert_same_bits
from jaxdml import ptq

RNG = np.random.default_rng(0)


def normal(*shape, scale=1.0):
    return (scale * RNG.normal(size=shape)).astype(np.float32)


def of_columns(*shape):
    return np.linspace(0.006, 0.012, max(shape), dtype=np.float32).reshape(shape)


PARAMS = {
    "a": normal(8, 16, scale=0.3), "b": normal(16, 8, scale=0.3), "bias": normal(1, 16, scale=0.1),
    "filter": normal(6, 8, 3, 3, scale=0.2), "point": normal(6, 6, 1, 1, scale=0.3), "gain": normal(1, 6, 1, 1),
    "a_scale": of_columns(1, 16), "b_scale": np.float32(0.009), "filter_scale": of_columns(6, 1, 1, 1),
    "x_scale": np.float32(0.025), "h_scale": np.float32(0.02), "y_scale": np.float32(0.04),
}  # fmt: skip


def weights(p, name, **options):
    return dml.fake_quantize(p[name], p.get(f"{name}_scale", np.float32(0.01)), output_dtype=np.int8, **options)


def inputs(p, x):
    return dml.fake_quantize(x, p["x_scale"], np.uint8(128))


def mlp(p, x):
    h = jax.nn.relu(inputs(p, x) @ weights(p, "a") + p["bias"])
    return dml.fake_quantize(dml.fake_quantize(h, p["h_scale"], 0) @ weights(p, "b"), p["y_scale"], np.uint8(100))


def convolve(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME")


def residual(p, x):
    h = convolve(inputs(p, x), weights(p, "filter")) * jnp.abs(p["gain"])  # folded into the weights and their grid
    h = dml.fake_quantize(jax.nn.relu(h), p["h_scale"], np.uint8(0))
    y = dml.fake_quantize(convolve(h, weights(p, "point")), p["y_scale"], np.uint8(120))
    return dml.fake_quantize(h + y, p["y_scale"], np.uint8(90))


def pooled(p, x):
    h = dml.fake_quantize(convolve(inputs(p, x), weights(p, "filter")), p["h_scale"], np.uint8(99))
    h = lax.reduce_window(h, -np.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    h = jnp.transpose(h, (0, 2, 3, 1)).reshape(-1, 6)
    return h @ dml.fake_quantize(p["point"][:, :, 0, 0], np.float32(0.01), output_dtype=np.int8).T


def signed(p, x):
    h = dml.fake_quantize(x, p["x_scale"], np.int8(3)) @ weights(p, "a")
    return dml.fake_quantize(h, p["y_scale"], np.int8(-4))


NETWORKS = {"mlp": (mlp, (32, 8)), "residual": (residual, (4, 8, 6, 6)), "pooled": (pooled, (4, 8, 6, 6)),
            "signed": (signed, (2, 5, 8))}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NETWORKS)
def test_integers_are_on_the_grids_of_the_function(name, tmp_path):
    apply, shape = NETWORKS[name]
    x = normal(*shape)
    model = ptq.quantize(apply, PARAMS, [x], progress=False)
    contractions = [node for node in model._fused.nodes if {"dot_general", "conv_general_dilated"} & {*node.source}]
    assert {node.on for node in contractions} == {"integers"}
    other = normal(3, *shape[1:])
    received, expected = model.apply(model.params, other), jax.jit(apply)(PARAMS, other)
    error = np.abs(np.asarray(received - expected))
    assert error.max() <= 1.01 * PARAMS["y_scale"]
    assert 10 * np.log10(np.sum(np.square(expected)) / max(np.sum(np.square(error)), 1e-9)) > 45
    ptq.save(tmp_path / "model.npz", model)
    loaded = ptq.load(tmp_path / "model.npz", apply)
    assert_same_bits(loaded.apply(loaded.params, other), received)
    one = normal(1, *shape[1:])
    assert np.abs(np.asarray(model.apply(model.params, one) - jax.jit(apply)(PARAMS, one))).max() <= 0.041


def test_weights_are_the_integers_of_fake_quantize():
    model = ptq.quantize(mlp, PARAMS, [normal(4, 8)], progress=False)
    integers = np.asarray(dml.element_wise_quantize_linear(PARAMS["a"], PARAMS["a_scale"], output_dtype=np.int8))
    found = {name: value for name, value in model.graph.constants.items() if value.shape == (8, 16)}
    (stored,) = found.values()
    assert_same_bits(stored, integers)
    assert_same_bits(model.graph.constants["dot_general_1:weight:scale"], PARAMS["a_scale"][0])


def two_grids(p, x):
    h = dml.fake_quantize(inputs(p, x) @ weights(p, "a"), p["h_scale"], np.uint8(128))
    other = dml.fake_quantize(h, p["y_scale"], np.uint8(100))
    return h @ weights(p, "b"), other @ weights(p, "b"), dml.fake_quantize(other, p["y_scale"], np.uint8(100))


def table_and_grid(p, x):
    h = jnp.tanh(dml.fake_quantize(inputs(p, x) @ weights(p, "a"), p["h_scale"], np.uint8(128)))
    return h @ weights(p, "b"), dml.fake_quantize(h, np.float32(1 / 127), np.uint8(128)) @ weights(p, "b")


@pytest.mark.parametrize("apply", [two_grids, pytest.param(table_and_grid, marks=pytest.mark.rare)])
def test_integers_are_rounded_to_another_grid(apply):
    """What fake_quantize rounds exists as integers only: those of another fake_quantize, or of a table."""
    x = normal(64, 8)
    model = ptq.quantize(apply, PARAMS, [x], progress=False)
    for received, expected in zip(model.apply(model.params, x), jax.jit(apply)(PARAMS, x), strict=True):
        error = np.asarray(received - expected)
        assert 10 * np.log10(np.sum(np.square(expected)) / max(np.sum(np.square(error)), 1e-9)) > 36


def test_a_sum_between_grids_runs_on_integers_whatever_sums_is():
    def apply(p, x):
        h = dml.fake_quantize(inputs(p, x) @ weights(p, "a"), p["h_scale"], np.uint8(128))
        return dml.fake_quantize(h + h[:, ::-1], p["y_scale"], np.uint8(128)) @ weights(p, "b")

    model = ptq.quantize(apply, PARAMS, [normal(4, 8)], sums="float", progress=False)
    (row,) = (row for row in str(model).splitlines() if "add" in row)
    assert row.split()[2:] == ["element_wise_quantized_linear_add", "integers"]


@pytest.mark.rare
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_cast_before_fake_quantize(dtype):
    """The graph has no casts between floats, so that x and the scale have different types there."""
    params = {"w": PARAMS["a"].astype(np.float16), "scale": np.float16(0.02)}

    def apply(p, x):
        return dml.fake_quantize(x.astype(jnp.float16), p["scale"], np.uint8(128)) @ p["w"]

    with jax.enable_x64(dtype == np.float64):
        x = normal(64, 8).astype(dtype)
        model = ptq.quantize(apply, params, [x], progress=False)
        received, expected = (np.asarray(y, np.float32) for y in (model.apply(model.params, x), apply(params, x)))
    assert 10 * np.log10(np.sum(np.square(expected)) / np.sum(np.square(received - expected))) > 36


@pytest.mark.rare
def test_scanned_layers_have_their_own_grids():
    params = {"w": normal(3, 8, 8, scale=0.3), "scale": of_columns(1, 3)[0], "values": np.float32([0.03, 0.04, 0.05])}

    def layer(x, p):
        w = dml.fake_quantize(p["w"], p["scale"], output_dtype=np.int8)
        return jnp.tanh(dml.fake_quantize(x, p["values"], np.uint8(128)) @ w) * 3, None

    def apply(params, x):
        return lax.scan(layer, x, params)[0]

    x = normal(16, 8)
    model = ptq.quantize(apply, params, [x], progress=False)
    (stored,) = (value for value in model.graph.constants.values() if value.shape == (3, 8, 8))
    integers = [
        dml.element_wise_quantize_linear(w, s, output_dtype=np.int8)
        for w, s in zip(params["w"], params["scale"], strict=True)
    ]
    assert_same_bits(stored, np.stack(integers))
    received, expected = model.apply(model.params, x), jax.jit(apply)(params, x)
    assert 10 * np.log10(np.sum(np.square(expected)) / np.sum(np.square(received - expected))) > 40


def scanned(at_start):
    """A scan whose body rounds the values at its start, where the product reads them, or at its end."""

    def rounded(x):
        return dml.fake_quantize(x, np.float32(0.01), np.uint8(128))

    def layer(x, w):
        w = dml.fake_quantize(w, np.float32(0.01), output_dtype=np.int8)
        return (jnp.tanh(rounded(x) @ w) if at_start else rounded(jnp.tanh(x @ w))), None

    return lambda w, x: lax.scan(layer, x if at_start else rounded(x), w)[0]


def test_constants_and_sequences_of_a_scan_are_no_carries():
    w, x = normal(3, 8, 8, scale=0.3), normal(16, 8)

    def rounded(x):
        return dml.fake_quantize(jnp.sin(x), np.float32(0.01), np.uint8(128))

    def with_constant(w, x):
        shared = rounded(x)
        return lax.scan(lambda h, each: (jnp.tanh(h @ each) + shared, None), x, w)[0]

    def with_sequence(w, x):
        def step(h, rows):
            return h + jnp.tanh(rows[0] @ w[0]) * rows[1], None

        return lax.scan(step, x[0], (x, rounded(x)))[0]

    for apply in (with_constant, with_sequence):
        assert "a carry of a scan has" not in str(ptq.quantize(apply, w, [x], progress=False))


def test_a_carry_has_no_grid_of_its_own():
    w, x = normal(3, 8, 8, scale=0.3), normal(16, 8)
    remark = "a carry of a scan has no scale of its own: in the body, apply fake_quantize to what products read"
    for at_start in (False, True):
        apply = scanned(at_start)
        model = ptq.quantize(apply, w, [x / 8], progress=False)  # a range that does not fit the carry
        assert str(model).count(remark) == (0 if at_start else 2)
        error = model.apply(model.params, x) - jax.jit(apply)(w, x)
        assert (float(np.max(np.abs(error))) < 0.05) == at_start


@pytest.mark.parametrize("is_rounded", [False, True])
def test_weights_rounded_before_a_scan_are_rounded_again(is_rounded):
    def apply(w, x):
        w = dml.fake_quantize(w, np.float32(0.01), output_dtype=np.int8) if is_rounded else w
        return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, w)[0]

    model = ptq.quantize(apply, normal(3, 8, 8, scale=0.3), [normal(16, 8)], progress=False)
    assert ("fake_quantize rounds the weights to another grid: they are rounded again" in str(model)) == is_rounded


REMARKS = {
    "no contraction reads or writes what it quantizes": lambda p, x: jnp.exp(
        dml.fake_quantize(jnp.sin(x @ p["a"]), 0.01, np.uint8(128))
    ),
    "it has several scales": lambda p, x: dml.fake_quantize(x, np.full((1, 8), 0.1, np.float32), 3) @ p["a"],
    "it rounds to uint16": lambda p, x: dml.fake_quantize(
        x, 0.1, output_dtype="uint16", feature_level=dml.FeatureLevel.JAXDML) @ p["a"],
    "its scale or zero point depends on data": lambda p, x: dml.fake_quantize(x, jnp.max(x) / 255, 3) @ p["a"],
    "jax.vmap maps it along an axis other than the first: write in_axes=0": lambda p, x: jax.vmap(
        lambda x: inputs(p, x) @ p["b"][:8], 1)(jnp.concatenate([x, x]).T),
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("reason", REMARKS)
def test_grids_that_no_operator_takes_are_said(reason):
    x = normal(4, 8)
    model = ptq.quantize(REMARKS[reason], PARAMS, [x], progress=False)
    assert reason in str(model)
    expected = jax.jit(REMARKS[reason])(PARAMS, x)
    error = np.asarray(model.apply(model.params, x) - expected)
    assert 10 * np.log10(np.sum(np.square(expected)) / np.sum(np.square(error))) > 30


def test_grids_in_floats_have_one_answer():
    """They are computed by jaxdml's own operators."""
    model = ptq.quantize(REMARKS["it has several scales"], PARAMS, [normal(4, 8)], progress=False)
    assert str(model).splitlines()[-1].startswith("one answer: ")


ROWS = np.linspace(0.01, 0.02, 8, dtype=np.float32)[:, None]
IN_COLUMNS = "they are rounded again, to int8 with one scale for each output channel"


@pytest.mark.parametrize(("rounded", "options", "text"), [
    (lambda w: dml.fake_quantize(w, ROWS, output_dtype=np.int8), {}, IN_COLUMNS),
    (lambda w: dml.fake_quantize(w, ROWS[0], output_dtype=np.int8) * ROWS, {}, IN_COLUMNS),
    (lambda w: dml.fake_quantize(w, ROWS, output_dtype=np.int8), {"weights": jnp.int4, "block_size": 16,
     "products": "dynamic"}, "they are rounded again, in blocks"),
])  # fmt: skip
def test_grids_of_weights_that_no_operator_takes_are_said(rounded, options, text):
    def apply(p, x):
        return x @ rounded(p["a"]) @ weights(p, "b")

    lines = str(ptq.quantize(apply, PARAMS, [normal(4, 8)], progress=False, **options)).splitlines()
    (row,) = (line for line in lines if line.startswith("a "))
    assert row.endswith(f"fake_quantize rounds the weights to another grid: {text}")
    assert ("rounded again" in next(line for line in lines if line.startswith("b "))) == bool(options)


def learned(p, x):
    """Both scales are learned as logarithms, the weights' with LSQ's factor for gradients."""
    logarithm = p["log_scale"] * 0.1 + lax.stop_gradient(p["log_scale"] * 0.9)
    w = dml.fake_quantize(p["a"], jnp.exp(logarithm), output_dtype=np.int8)
    return dml.fake_quantize(x, jnp.exp(p["log_x_scale"]), np.uint8(128)) @ w


def per_channel(p, x):
    return inputs(p, x) @ weights(p, "a")


def member(p, w, scale, x):
    """One model of an ensemble."""
    return inputs(p, x) @ dml.fake_quantize(w, scale, output_dtype=np.int8)


def of_layers(step):
    def apply(p, x):
        layers = {name: p[f"layers_{name}"] for name in ("w", "scale", "x_scale")}
        return lax.scan(step, x, layers)[0]

    return apply


def layer(x, p):
    w = dml.fake_quantize(p["w"], p["scale"], output_dtype=np.int8)
    return jnp.tanh(dml.fake_quantize(x, p["x_scale"], np.uint8(128)) @ w) * 3, None


def over_time(p, x):
    def step(h, x):
        h = jnp.tanh(member(p, p["layers_w"][0], 0.01, x) + inputs(p, h) @ dml.fake_quantize(
            p["layers_w"][1], p["layers_scale"][1], output_dtype=np.int8))  # fmt: skip
        return h, h

    return lax.scan(step, jnp.zeros((x.shape[0], 8)), x.swapaxes(0, 1))[1].swapaxes(0, 1)


# The ensemble has as many members as the matrices have columns, so that a scale for each member could be mistaken for
# a scale for each column.
MAPPED = PARAMS | {
    "members": normal(8, 8, 8, scale=0.3), "member_scales": of_columns(1, 8)[0], "log_scale": np.log(np.float32(0.01)),
    "log_x_scale": np.log(np.float32(0.025)), "layers_w": normal(3, 8, 8, scale=0.3),
    "layers_scale": of_columns(3, 1, 1), "layers_x_scale": np.float32([0.03, 0.04, 0.05]),
}  # fmt: skip
TRANSFORMED = {
    "vmap over members": lambda p, x: jax.vmap(lambda w, s: member(p, w, s, x))(p["members"], p["member_scales"]),
    "vmap over members and rows": lambda p, x: jax.vmap(
        lambda w, s: jax.vmap(lambda x: member(p, w, s, x))(x))(p["members"], p["member_scales"]),
    "vmap over the last axis of weights": lambda p, x: jax.vmap(
        lambda w: member(p, w, p["member_scales"], x), 2)(p["members"]),
    "jit, vmap and checkpoint": lambda p, x: jax.jit(jax.vmap(jax.checkpoint(learned), (None, 0)))(p, x),
    "nested vmap": jax.vmap(jax.vmap(per_channel, (None, 0)), (None, 0)),
    "checkpoint with a policy": jax.checkpoint(per_channel, policy=jax.checkpoint_policies.dots_saveable),
    "checkpointed layers": of_layers(jax.checkpoint(layer)),
    "vmap of layers": jax.vmap(of_layers(layer), (None, 0)),
    "checkpointed steps under vmap": jax.vmap(
        jax.checkpoint(lambda p, x: over_time(p, x[None])[0]), (None, 0)),
}  # fmt: skip
SHAPES = {"nested vmap": (4, 3, 8), "checkpointed steps under vmap": (6, 5, 8)}
QUICK = "vmap over members", "jit, vmap and checkpoint"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.rare) for name in TRANSFORMED]
)
def test_grids_are_found_under_transformations(name):
    apply, shape = TRANSFORMED[name], SHAPES.get(name, (16, 8))
    model = ptq.quantize(apply, MAPPED, [normal(*shape)], progress=False)
    counted = next(line for line in str(model).splitlines() if "convolutions and products" in line)
    assert counted.split()[0] == counted.split()[2]
    for count in (shape[0], 1):
        x = normal(count, *shape[1:])
        received, expected = model.apply(model.params, x), jax.jit(apply)(MAPPED, x)
        # All integers are on the function's own grids, so that only roundings of float32 differ.
        assert np.sum(np.square(expected - received)) < 1e-10 * np.sum(np.square(expected))


def test_one_value_quantized_along_two_axes_stays_two_values():
    """Both calls read the same arrays, and only one of them is mapped."""

    def apply(p, x):
        of_members = jax.vmap(lambda w, s: dml.fake_quantize(w, s, output_dtype=np.int8))(
            p["members"][0], p["member_scales"]
        )
        of_columns = dml.fake_quantize(p["members"][0], p["member_scales"], output_dtype=np.int8)
        return inputs(p, x) @ of_members, inputs(p, x) @ of_columns

    x = normal(16, 8)
    model = ptq.quantize(apply, MAPPED, [x], progress=False)
    for received, expected in zip(model.apply(model.params, x), jax.jit(apply)(MAPPED, x), strict=True):
        assert 10 * np.log10(np.sum(np.square(expected)) / np.sum(np.square(expected - received))) > 40
