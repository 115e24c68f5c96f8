"""sums="float": sums of two values and their terms stay in floats, and each contraction that reads one rounds it."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from _onnx.saved import EXACT, run, saved
from _ptq.quantized import decibels, in_floats, network, quantized
from _ptq.test_reference import compared
from _ptq.test_sixteen_bits import in_all_ways, normal, product
from helpers.compare import assert_same_bits
from helpers.marks import rarely_on_xla
from jaxdml.ptq import PtqError, Rule

REASON = "kept in floats by sums='float'"


def quantize(apply, params, *inputs, sums="float", **options):
    return dml.ptq.quantize(apply, params, [inputs], sums=sums, progress=False, **options)


def layer(p, x):
    return x @ p["w"] + p["b"][None]


def residual(p, x):
    h = layer(p["in"], x)
    s = jax.nn.relu(h + layer(p["up"], h))
    return layer(p["out"], s)


def small(*shape):
    """Whole numbers, whose products and sums are exact in floats."""
    return np.rint(2 * normal(*shape))


RESIDUAL = {name: {"w": small(16, 16), "b": small(16)} for name in ("in", "up", "out")}
X = small(32, 16)


@rarely_on_xla
def test_each_reader_rounds_the_float_sum_and_its_terms():
    """The oracle computes each product by exact sums of integers, and adds floats."""
    model = quantize(residual, RESIDUAL, X)
    first, up, out = ((each["w"], each["b"]) for each in RESIDUAL.values())
    h = product(X, *first, np.uint8)
    calibrated = X @ first[0] + first[1]
    s = np.maximum(h + product(h, *up, np.uint8, of=calibrated), 0)
    calibrated = np.maximum(calibrated + calibrated @ up[0] + up[1], 0)
    assert_same_bits(in_all_ways(model, X), product(s, *out, np.uint8, of=calibrated))
    assert re.search(rf" add \+ quantize +floats +{re.escape(REASON)}$", str(model), re.MULTILINE)
    assert str(model).count("matrix_multiply_integer_to_float") == 3
    assert REASON not in str(quantize(residual, RESIDUAL, X, sums="integer"))


def test_a_term_that_is_no_sum_names_its_reader():
    def apply(p, x):
        with jax.named_scope("clamp"):
            h = jax.nn.relu(layer(p["in"], x))
        with jax.named_scope("join"):
            s = h + layer(p["up"], h)
        return layer(p["out"], s)

    assert re.search(r"^clamp .* clip \+ quantize +floats +kept in floats: join reads it$", str(
        quantize(apply, RESIDUAL, X)), re.MULTILINE)  # fmt: skip


def gelu(p, x):
    return layer(p["out"], jax.nn.gelu(layer(p["in"], x)))


def returned(p, x):
    h = layer(p["in"], x)
    return h + layer(p["out"], jax.nn.relu(h))


def normalized(p, x):
    for name in ("in", "up"):
        x = x + layer(p[name], jax.nn.standardize(x))
    return layer(p["out"], jax.nn.standardize(x))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("apply", [
    gelu, lambda p, x: jax.nn.gelu(layer(p["in"], x)), returned, pytest.param(normalized, marks=pytest.mark.rare),
])  # fmt: skip
def test_additions_that_no_contraction_reads_stay_as_they_are(apply):
    """Additions inside a gelu, whether it is a table or floats; a sum that is returned, or that a norm reads."""
    model, other = (quantize(apply, RESIDUAL, X, sums=sums) for sums in ("float", "integer"))
    assert str(model) == str(other)
    assert_same_bits(model.apply(model.params, X), other.apply(other.params, X))


def test_grids_of_the_function_and_layers_in_floats():
    """A term on a grid of fake_quantize keeps it; a layer in floats reads the float sum."""
    scale, zero_point = np.float32(4), np.uint8(128)

    def apply(p, x):
        h = dml.fake_quantize(layer(p["in"], x), scale, zero_point)
        return layer(p["out"], h + layer(p["up"], h))

    grid = quantize(apply, RESIDUAL, X)
    assert REASON in str(grid)
    h = (X @ RESIDUAL["in"]["w"] + RESIDUAL["in"]["b"]) / 4
    h = (np.clip(np.rint(h), -128, 127) * 4).astype(np.float32)
    kept = quantize(apply, RESIDUAL, X, rules=[Rule("out|in", keep="float")])
    up = h.astype(np.float64) @ RESIDUAL["up"]["w"] + RESIDUAL["up"]["b"]
    assert decibels(kept.apply(kept.params, X), layer(RESIDUAL["out"], h + up)) > 40
    assert "out " not in "".join(line for line in str(kept).splitlines() if "integers" in line)


@pytest.mark.rare
@pytest.mark.parametrize("name", ["ResNet-18", "ResNet-18, channels last", "MobileNetV3", "scanned transformer"])
def test_every_node_of_networks_computes_what_the_reference_says(name):
    inputs = network(name).make_inputs(2, seed=30)
    assert compared(quantized(name, 2, sums="float"), inputs)[0].total() >= 4


@pytest.mark.rare
@pytest.mark.parametrize("products", ["static", "dynamic"])
def test_outputs_of_a_residual_network_are_more_accurate(products):
    apply, params, make_inputs = network("ResNet-18")
    inputs = make_inputs(8, seed=30)
    exact = in_floats(apply, params, *inputs)
    models = [quantized("ResNet-18", products=products, sums=sums) for sums in ("integer", "float")]
    before, after = (decibels(each.apply(each.params, *inputs), exact) for each in models)
    assert after > before + 1


def scanned(p, x):
    """A product in the body reads the sum."""
    x, _ = lax.scan(lambda h, w: ((h + jax.nn.relu(h @ w[0])) @ w[1], None), x, p["layers"])
    return x @ p["head"]


def flipped_if_few(p, x):
    """A small batch has different equations, so the function is planned again."""
    return residual(p, jnp.flip(jnp.flip(x, 1), 1) if len(x) < 8 else x)


@pytest.mark.parametrize("apply", [flipped_if_few, pytest.param(scanned, marks=pytest.mark.rare)])
def test_other_sizes_and_files(tmp_path, apply):
    """A file keeps which sums are floats; inputs of other sizes are computed alike."""
    params = {"layers": normal(3, 2, 16, 16) / 8, "head": normal(16, 4)} if apply is scanned else RESIDUAL
    model = quantize(apply, params, X)
    assert REASON in str(model)
    expected = model.apply(model.params, X)
    dml.ptq.save(tmp_path / "model.npz", model)
    loaded = dml.ptq.load(tmp_path / "model.npz", apply)
    assert str(loaded) == str(model)
    for each in (model, loaded):
        assert_same_bits(each.apply(each.params, X[:3]), expected[:3])
    assert model._requantized(params, [X], ()).modes == model.modes


@pytest.mark.rare
def test_channels_of_a_term_are_scaled_for_the_products_that_read_it():
    """Only the products read the scaled term."""
    factors = np.geomspace(1, 1000, 16, dtype=np.float32)
    first, up = (RESIDUAL[name] for name in ("in", "up"))
    uneven = RESIDUAL | {"in": {"w": first["w"] * factors, "b": first["b"] * factors}}
    uneven["up"] = {"w": up["w"] / factors[:, None], "b": up["b"]}

    def apply(p, x):
        h = layer(p["in"], x)
        return h, layer(p["out"], h + layer(p["up"], h)), layer(p["up"], h)

    x = np.concatenate([X] * 4)
    ratios = []
    for equalize in (False, True):
        model = quantize(apply, uneven, x, equalize=equalize)
        ratios.append(decibels(model.apply(model.params, x)[2], apply(uneven, x)[2]))
    assert ratios[1] > ratios[0] + 10


@pytest.mark.rare
def test_a_rule_for_16_bits_applies_to_readers_of_sums():
    model = quantize(residual, RESIDUAL, X, rules=[Rule("out", activations=jnp.uint16)])
    assert re.search(r"^out .*reads 16 bits$", str(model), re.MULTILINE)
    fine, coarse = (decibels(each.apply(each.params, X), residual(RESIDUAL, X)) for each in (
        model, quantize(residual, RESIDUAL, X)))  # fmt: skip
    assert fine > coarse


def test_another_word_is_refused():
    with pytest.raises(PtqError, match=re.escape("sums is 'floats', expected 'integer' or 'float'")):
        quantize(residual, RESIDUAL, X, sums="floats")


@pytest.mark.rare
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_onnxruntime_computes_the_same_bits(form, tmp_path):
    model, (x,) = quantized("ResNet-18", 2, sums="float"), network("ResNet-18").make_inputs(2, seed=3)
    saved(model, tmp_path / "model.onnx", form, weights="uint8")
    (ours,) = jax.tree.leaves(model.apply(model.params, x))
    loaded = dml.onnx.load(tmp_path / "model.onnx")
    for received in (run(tmp_path / "model.onnx", x, **EXACT), loaded.apply(loaded.params, x)):
        assert_same_bits(*received.values(), ours)
