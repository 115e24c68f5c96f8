"""How close quantized networks are to the float ones, and how small they are."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen

import jaxdml as dml
from _ptq import models as ptq_models
from _ptq.quantized import batches_for, decibels, network, quantized
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely


def size(tree):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("seed", rest_rarely(range(5), 0))
def test_digits_are_read_as_well(seed):
    apply, params, _, train_images, images, labels = ptq_models.digits_cnn(seed)
    batches = [train_images[start : start + 64] for start in range(0, 512, 64)]
    model = dml.ptq.quantize(apply, params, batches, progress=False)
    exact, received = jax.jit(apply)(params, images), jax.jit(model.apply)(model.params, images)
    right, wrong = (float(jnp.mean(jnp.argmax(y, 1) == labels)) for y in (exact, received))
    assert right > 0.97
    assert abs(wrong - right) <= 0.005
    assert decibels(received, exact) >= 37  # XLA trains a different network on each processor


def check_resnet(apply, params, make_inputs, tmp_path, least, most):
    (calibration,), (x,) = make_inputs(8, seed=2), make_inputs(4, seed=3)
    model = dml.ptq.quantize(apply, params, [calibration], progress=False)
    received, exact = jax.jit(model.apply)(model.params, x), jax.jit(apply)(params, x)
    assert decibels(received, exact) >= least
    dml.ptq.save(tmp_path / "model.npz", model)
    assert (tmp_path / "model.npz").stat().st_size <= most * size(params)


@pytest.mark.rare
def test_resnet18_of_224_pixels(tmp_path):
    check_resnet(*ptq_models.resnet18(), tmp_path, 33, 0.26)


@pytest.mark.rare
@pytest.mark.parametrize("name", ["ResNet-18"])
def test_resnet18_of_64_pixels(name, tmp_path):
    """Small layers have more scales and names relative to their weights."""
    check_resnet(*network(name), tmp_path, 28, 0.32)


class Block(linen.Module):
    """`ptq_models.transformer_block`, in flax."""

    heads: int = 8

    @linen.compact
    def __call__(self, x):
        width = x.shape[-1]
        h = linen.LayerNorm(epsilon=1e-5, use_fast_variance=False, name="norm_1")(x)
        parts = jnp.split(linen.Dense(3 * width, name="qkv")(h), 3, -1)
        q, k, v = (part.reshape(*x.shape[:2], self.heads, -1).transpose(0, 2, 1, 3) for part in parts)
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
        read = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + linen.Dense(width, name="out")(read)
        h = linen.LayerNorm(epsilon=1e-5, use_fast_variance=False, name="norm_2")(x)
        return x + linen.Dense(width, name="down")(jax.nn.gelu(linen.Dense(4 * width, name="up")(h)))


def of_flax(params):
    dense = {name: {"kernel": params[name]["w"], "bias": params[name]["b"]} for name in ("qkv", "out", "up", "down")}
    return dense | {name: params[name] for name in ("norm_1", "norm_2")}


def qwix_result(params, x):
    """The result of qwix's post-training quantization: int8 weights, and activations by their own ranges."""
    import qwix  # this takes a second

    rule = qwix.QuantizationRule(module_path=".*", weight_qtype="int8", act_qtype="int8")
    model = qwix.quantize_model(Block(), qwix.PtqProvider([rule]))
    abstract = jax.eval_shape(model.init, jax.random.key(0), x)["params"]
    return model.apply({"params": qwix.quantize_params(of_flax(params), abstract)}, x)


@pytest.mark.rare
@pytest.mark.filterwarnings("ignore:'VariableState' was removed:DeprecationWarning")  # which qwix names
def test_transformer_block():
    apply, params, make_inputs = ptq_models.transformer_block()
    (x,) = make_inputs(seed=5)
    exact, found = jax.jit(apply)(params, x), {}
    np.testing.assert_allclose(Block().apply({"params": of_flax(params)}, x), exact, atol=1e-4)
    for products in ("static", "dynamic"):
        batches = batches_for(make_inputs, 4, 2)
        model = dml.ptq.quantize(apply, params, batches, products=products, progress=False)
        found[products] = decibels(model.apply(model.params, x), exact)
    # The more batches, the wider the extremes of normally distributed values; least squares clips them.
    model = dml.ptq.quantize(apply, params, batches_for(make_inputs, 4, 8), observer="mse", progress=False)
    assert decibels(model.apply(model.params, x), exact) >= 37
    # Without the strict rules for promotion, which qwix breaks.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        theirs = decibels(qwix_result(params, x), exact)
    assert found["static"] >= 37
    assert found["dynamic"] >= max(41, theirs - 0.3)
    assert theirs > 35


@pytest.mark.rare
def test_small_transformer_block():
    apply, params, make_inputs = network("transformer")
    (x,) = make_inputs(8, seed=5)
    exact = jax.jit(apply)(params, x)
    found = {}
    for products in ("static", "dynamic"):
        model = quantized("transformer", products=products)
        found[products] = decibels(model.apply(model.params, x), exact)
    assert found["static"] >= 36
    assert found["dynamic"] >= max(40, found["static"])


@pytest.mark.rare
@pytest.mark.parametrize("activations", [jnp.int8, jnp.uint8])
@pytest.mark.parametrize("observer", ["mse", "minmax", "moving_average", "percentile"])
def test_observers_and_activations(activations, observer):
    apply, params, make_inputs = network("plain")
    batches = batches_for(make_inputs, 32, 3)
    model = dml.ptq.quantize(apply, params, batches, activations=activations, observer=observer, progress=False)
    (x,) = make_inputs(32, seed=1)
    assert decibels(model.apply(model.params, x), jax.jit(apply)(params, x)) > 23
    zero_points = [v.dtype for name, v in model.graph.constants.items() if name.endswith("zero_point")]
    assert zero_points.count(np.dtype(activations)) >= 4


@pytest.mark.rare
@pytest.mark.parametrize("filler", [-1e9, -np.inf])
def test_the_filler_of_a_masked_maximum_takes_no_range(filler):
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=size).astype(np.float32) / 3 for name, size in (("a", (16, 8)), ("b", (8, 4)))}
    x, is_element = rng.normal(size=(32, 10, 16)).astype(np.float32), rng.random((32, 10)) > 0.3

    def apply(params, x, is_element):
        return jnp.where(is_element[..., None], x @ params["a"], filler).max(1) @ params["b"]

    model = dml.ptq.quantize(apply, params, [(x, is_element)], progress=False)
    received = model.apply(model.params, x, is_element)
    assert decibels(received, apply(params, x, is_element)) > 35

    def of_maximum(x):
        return next(layer for layer in model.sqnr(params, x, is_element).layers if layer.operator == "select_n")

    assert of_maximum(x).own > 35
    assert of_maximum(x).clipped == 0
    assert of_maximum(3 * x).own < 20
    assert of_maximum(3 * x).clipped > 0.1
    wide = [dml.ptq.Rule("^b$", activations=jnp.uint16)]
    model = dml.ptq.quantize(apply, params, [(x, is_element)], rules=wide, progress=False)
    assert decibels(model.apply(model.params, x, is_element), apply(params, x, is_element)) > 35


def of_grid(model, role):
    return [float(x) for name, x in model.flat(X).constants.items() if name.endswith(f":{role}") and np.ndim(x) == 0]


X = np.random.default_rng(1).normal(size=(16, 5, 8)).astype(np.float32)


def test_a_grid_of_the_function_before_a_maximum_stays():
    def apply(w, x):
        return dml.fake_quantize(x, np.float32(0.5), np.uint8(128)).max(1) @ w

    model = dml.ptq.quantize(apply, np.eye(8, dtype=np.float32), [X], progress=False)
    assert 0.5 in of_grid(model, "scale")
    assert_same_bits(model.apply(model.params, X), np.round(X.max(1) * 2) / 2 + np.float32(0))


def test_what_a_minimum_leaves_out_may_be_clamped():
    w, is_element = np.eye(8, dtype=np.float32), np.arange(5) < 4

    def apply(w, x, is_element):
        return jnp.where(is_element[:, None], x, 1e6).min(1) @ w

    model = dml.ptq.quantize(apply, w, [(X, is_element)], progress=False)
    layers = {layer.operator: layer for layer in model.sqnr(w, X, is_element).layers}
    assert layers["select_n"].own > 30
    assert decibels(model.apply(model.params, X, is_element), X[:, :4].min(1)) > 30


@pytest.mark.rare
def test_int8_and_uint8_are_about_as_good():
    """The grids are the same, except for a shift by 128."""
    apply, params, make_inputs = network("plain")
    (x,) = make_inputs(32, seed=1)
    one, other = (quantized("plain", activations=dtype) for dtype in ("uint8", "int8"))
    np.testing.assert_allclose(one.apply(one.params, x), other.apply(other.params, x), atol=0.5)
    exact = jax.jit(apply)(params, x)
    assert abs(decibels(one.apply(one.params, x), exact) - decibels(other.apply(other.params, x), exact)) < 1.5
