"""Networks whose channels differ by factors, and how accurate they are as integers."""

import gc
import json
import time
import weakref
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from _ptq import outliers
from _ptq.layers import conv
from _ptq.models import transformer_block
from _ptq.quantized import batches_for, decibels, in_floats
from helpers.compare import assert_same_bits
from jaxdml.errors import PtqError
from jaxdml.ptq import MinMax, Rule, load, quantize, save
from jaxdml.ptq._grids.measured import Measured

RANDOM = np.random.default_rng(0)


def normal(*shape):
    return RANDOM.standard_normal(shape, np.float32)


FACTORS = np.exp(RANDOM.uniform(0, np.log(100), 16)).astype(np.float32)
CNN = {
    "first": {"w": normal(16, 3, 3, 3) / 5 * FACTORS[:, None, None, None], "b": normal(16) * FACTORS},
    "last": {"w": normal(8, 16, 3, 3) / 12 / FACTORS[:, None, None], "b": normal(8)},
}
IMAGES = normal(8, 3, 8, 8)


def cnn(params, x):
    return conv(params["last"], jax.nn.relu(conv(params["first"], x)))


def ratio(model, apply, params, *inputs):
    return decibels(model.apply(model.params, *inputs), in_floats(apply, params, *inputs))


@pytest.mark.rare
def test_channels_of_a_convolution():
    before, after = (quantize(cnn, CNN, [IMAGES], equalize=each, progress=False) for each in (False, True))
    assert ratio(before, cnn, CNN, IMAGES) < 25
    assert ratio(after, cnn, CNN, IMAGES) > 37
    assert str(before) == str(after)  # only the constants differ
    found = after.sqnr(CNN, IMAGES)
    assert min(layer.own for layer in found.layers) > 37
    assert found.outputs[0] == pytest.approx(ratio(after, cnn, CNN, IMAGES), abs=0.1)


def block_with_outliers():
    """A transformer block with gains times 1 to 100."""
    apply, params, make_inputs = transformer_block(2, 16, 64, 4)[:3]
    for norm, reader in (("norm_1", "qkv"), ("norm_2", "up")):
        factors = np.exp(np.random.default_rng(1).uniform(0, np.log(100), 64)).astype(np.float32)
        params[norm] = {name: x * factors for name, x in params[norm].items()}
        params[reader] = params[reader] | {"w": params[reader]["w"] / factors[:, None]}
    return apply, params, make_inputs


GAINS = [("static", 26, 35), pytest.param("dynamic", 27, 39, marks=pytest.mark.rare)]


@pytest.mark.rare
@pytest.mark.parametrize(("products", "most", "least"), GAINS)
def test_gains_of_a_norm(products, most, least):
    apply, params, make_inputs = block_with_outliers()
    batches, (x,) = batches_for(make_inputs, 8), make_inputs(3, seed=1)
    options = {"products": products, "progress": False}
    before, after = (quantize(apply, params, batches, equalize=each, **options) for each in (False, True))
    assert ratio(before, apply, params, x) < most
    assert ratio(after, apply, params, x) > least


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, kw_only=True)
class MinMaxOfAUser(MinMax):
    """XLA updates it, while NumPy updates MinMax, from the ends of channels where these are observed."""


@pytest.mark.parametrize(
    "case", [lambda: (cnn, CNN, [IMAGES, 2 * IMAGES[:3]]), pytest.param(lambda: scaled_block(), marks=pytest.mark.rare)]
)
def test_numpy_finds_the_ranges_that_xla_finds(case):
    apply, params, batches = case()
    models = [quantize(apply, params, batches, observer=each(), progress=False) for each in (MinMax, MinMaxOfAUser)]
    received, expected = (jax.tree.leaves_with_path(each.params) for each in models)
    assert [path for path, _ in received] == [path for path, _ in expected]
    for (path, one), (_, other) in zip(received, expected, strict=True):
        assert_same_bits(one, other, jax.tree_util.keystr(path))


def _flattened(params, x):
    y = jax.nn.relu(conv(params["first"], x))
    return y.reshape(y.shape[0], -1) @ params["flat"]


def _squeezed(params, x):
    return jnp.max(conv(params["first"], x), (2, 3), keepdims=True)[..., 0, 0] @ params["flat"][:16]


def _scanned(params, x):
    def step(h, w):
        y = jax.nn.relu(h.reshape(-1, 2, 16) @ (w * FACTORS[None]))
        return h + y.reshape(-1, 16) @ (w / FACTORS[:, None]), None

    return jax.lax.scan(step, x.reshape(-1, 16), params["layers"])[0]


@pytest.mark.parametrize("apply", [_flattened, _squeezed, _scanned])
def test_products_of_moved_values_and_a_last_batch_of_another_size(apply):
    """Factors are chosen from the first batch, and ranges from all."""
    params = CNN | {"flat": normal(1024, 4) / 32, "layers": normal(2, 16, 16) / 4}
    model = quantize(apply, params, [IMAGES, 2 * IMAGES[:3]], progress=False)
    exact = in_floats(apply, params, 2 * IMAGES[:3])
    assert decibels(model.apply(model.params, 2 * IMAGES[:3]), exact) > 28


def test_squares_of_large_numbers_are_infinite_and_no_nan():
    """With `jax_debug_nans`, a NaN would stop the calibration."""
    measured = jax.jit(lambda x: Measured.of(x, 1))(np.full((2, 3, 4), 1e25, np.float32))
    assert_same_bits(measured.squares, np.full(3, np.inf, np.float32))
    assert_same_bits(measured.rest, np.zeros(3, np.float32))


def scaled_block():
    apply, params, make_inputs = block_with_outliers()
    return apply, params, batches_for(make_inputs, 8)


@pytest.mark.rare
@pytest.mark.parametrize("products", ["static", "dynamic"])
def test_scaled_gains_are_saved(products, tmp_path):
    """The loaded model works with inputs of other sizes."""
    apply, params, make_inputs = block_with_outliers()
    model = quantize(apply, params, batches_for(make_inputs, 8), products=products, progress=False)
    save(tmp_path / "model.npz", model)
    loaded, (x,) = load(tmp_path / "model.npz", apply), make_inputs(3, seed=1)
    assert_same_bits(loaded.apply(loaded.params, x), model.apply(model.params, x))
    assert str(loaded.sqnr(params, x)) == str(model.sqnr(params, x))
    assert min(layer.own for layer in model.sqnr(params, x).layers) > 28


UNEVEN = {"gains": np.exp(RANDOM.uniform(0, np.log(100), (1, 16))).astype(np.float32)}
UNEVEN["w"] = normal(16, 8) / UNEVEN["gains"].T


@pytest.mark.rare
@pytest.mark.parametrize("products", ["static", "dynamic"])
def test_floats_behind_movers_are_not_scaled(products):
    """For inputs of other sizes, a mover's result may have another name, such as that of the squeeze of one step."""

    def apply(params, x):
        return (jnp.tanh(x) * params["gains"][:, None])[:, 0] @ params["w"]

    batches = [normal(64, 2, 16), normal(64, 3, 16), normal(64, 1, 16)]
    x, options = normal(5, 1, 16), {"products": products, "progress": False}
    plain, model = (quantize(apply, UNEVEN, batches, equalize=each, **options) for each in (False, True))
    assert_same_bits(model.apply(model.params, x), plain.apply(plain.params, x))


def test_products_of_two_values_read_floats_that_are_not_scaled():
    """Weights make up for the factors by which their inputs are multiplied; a second value does not."""

    def apply(params, x):
        x = jnp.sin(x) * params["gains"][None]
        return x @ params["w"], x @ jnp.swapaxes(x, -1, -2)

    x = normal(32, 12, 16)
    model = quantize(apply, UNEVEN, [x], products="dynamic", progress=False)
    received, exact = model.apply(model.params, x), in_floats(apply, UNEVEN, x)
    assert min(map(decibels, received, exact)) > 35


@pytest.mark.rare
def test_layers_of_a_scan_have_scales_of_their_own():
    def apply(params, x):
        def layer(x, layer):
            return x + jax.nn.relu(x @ layer["up"]) @ layer["down"], None

        return jax.lax.scan(layer, x, params)[0]

    factors = np.exp(RANDOM.uniform(0, np.log(100), (3, 32))).astype(np.float32)
    params = {"up": normal(3, 16, 32) / 4 * factors[:, None], "down": normal(3, 32, 16) / 8 / factors[:, :, None]}
    x = normal(64, 16)
    before, after = (quantize(apply, params, [x], equalize=each, progress=False) for each in (False, True))
    assert ratio(before, apply, params, x) < 28
    assert ratio(after, apply, params, x) > 33
    assert after.sqnr(params, x).outputs[0] == pytest.approx(ratio(after, apply, params, x), abs=0.1)


def are_released(references):
    """Whether objects are deleted within ten seconds: a thread of JAX, or a cycle, may hold an array for a while."""
    end = time.monotonic() + 10
    while any(reference() is not None for reference in references) and time.monotonic() < end:
        gc.collect()
        time.sleep(0.1)
    return all(reference() is None for reference in references)


def test_a_batch_is_read_once():
    """One batch is held at a time, also if the first one is run twice."""
    made = []

    def batches():
        for number in range(3):
            assert are_released(made[:-1])
            batch = IMAGES * (number + 1)
            made.append(weakref.ref(batch))
            yield batch
            del batch

    model = quantize(cnn, CNN, batches(), progress=False)
    assert model.factors
    assert len(made) == 3
    assert ratio(model, cnn, CNN, 3 * IMAGES) > 33  # ranges are those of all batches


def without(path, name):
    """A file without the additions of this version to the earlier format."""
    with np.load(path) as arrays:
        stored = dict(arrays)
    text = json.loads(bytes(stored.pop("model.json"))) | {"format": name}
    stored = {key: x for key, x in stored.items() if not key.startswith("factor:")}
    np.savez(path, **stored | {"model.json": np.frombuffer(json.dumps(text).encode(), np.uint8)})


def test_a_file_of_the_format_before_has_its_old_bits(tmp_path):
    model = quantize(cnn, CNN, [IMAGES], equalize=False, progress=False)
    save(tmp_path / "model.npz", model)
    without(tmp_path / "model.npz", "jaxdml.ptq 4")
    loaded = load(tmp_path / "model.npz", cnn)
    assert_same_bits(loaded.apply(loaded.params, IMAGES), model.apply(model.params, IMAGES))


@pytest.mark.rare
def test_few_values_and_dead_channels_scale_nothing():
    """The largest of a few values does not tell how large others will be."""
    few, many = normal(1, 3, 4, 4), normal(8, 3, 8, 8)
    for images, is_scaled in ((few, False), (many, True)):
        model = quantize(cnn, CNN, [images], progress=False)
        assert bool(model.factors) == is_scaled
    dead = CNN | {"first": {"w": CNN["first"]["w"] * 0, "b": -jnp.ones(16)}}
    assert not quantize(cnn, dead, [IMAGES], progress=False).factors


@pytest.mark.rare
def test_where_nothing_is_to_be_gained_the_bits_stay():
    params = {
        "first": {"w": CNN["first"]["w"] / FACTORS[:, None, None, None], "b": CNN["first"]["b"] / FACTORS},
        "last": {"w": CNN["last"]["w"] * FACTORS[:, None, None], "b": CNN["last"]["b"]},
    }
    models = [quantize(cnn, params, [IMAGES], equalize=each, progress=False) for each in (False, True)]
    assert_same_bits(*(model.apply(model.params, IMAGES) for model in models))


@pytest.mark.rare
def test_rules_and_grids_are_respected():
    rules = [Rule("^last$", keep="float")]
    models = [quantize(cnn, CNN, [IMAGES], equalize=each, rules=rules, progress=False) for each in (False, True)]
    assert_same_bits(*(model.apply(model.params, IMAGES) for model in models))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("products", ["static", "dynamic"])
def test_stacks_of_matrices(products):
    """The matrices of a stack share the scales of their columns."""
    params, x = (normal(3, 8, 16), normal(3, 16, 4)), normal(3, 64, 8)

    def experts(params, x):
        return jax.nn.relu(x @ params[0]) @ params[1]

    model = quantize(experts, params, [x], products=products, progress=False)
    assert ratio(model, experts, params, x) > 30


def test_wrong_equalize():
    with pytest.raises(PtqError, match="equalize is 'yes', expected True or False"):
        quantize(cnn, CNN, [IMAGES], equalize="yes")


@pytest.mark.rare
@pytest.mark.parametrize("products", ["static", "dynamic"])
@pytest.mark.parametrize("name", outliers.NETWORKS)
def test_outliers(name, products):
    """A network with outliers is as accurate as the same network without them, or accurate enough."""
    plain, network = outliers.WITHOUT[name.split(",")[0]](), outliers.NETWORKS[name]()
    found = {}
    for key, each, options in (("plain", plain, {}), ("before", network, {"equalize": False}), ("after", network, {})):
        batches = batches_for(each.make_inputs, 32, 3)
        model = quantize(each.apply, each.params, batches, products=products, progress=False, **options)
        (x,) = each.make_inputs(256, seed=-7)
        found[key] = ratio(model, each.apply, each.params, x)
    assert found["after"] >= min(34, found["plain"] - 0.3), found
    assert found["after"] >= found["before"] + 5, found
    assert decibels(in_floats(network.apply, network.params, x), in_floats(plain.apply, plain.params, x)) > 100
