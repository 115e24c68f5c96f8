"""Sizes other than those of calibration, and calibration in little memory."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import jaxdml as dml
from _ptq.quantized import FRAMEWORKS, NETWORKS, decibels, in_floats, network
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely

NAMES = list(dict.fromkeys(("plain", "causal", *NETWORKS, *FRAMEWORKS)))


def check_sizes(name, calibrated_with, sizes):
    """The model is close to the float function for all these sizes; exported, it takes batches of any size."""
    apply, params, make_inputs = network(name)
    inputs = make_inputs(12, seed=9)

    def rows(first, last):
        return tuple(x[first:last] for x in inputs)

    batches = [rows(first, first + calibrated_with) for first in range(0, 12, calibrated_with)]
    model = dml.ptq.quantize(apply, params, batches, progress=False)
    exact = jax.tree.leaves(in_floats(apply, params, *rows(0, max(sizes))))
    for size in sizes:
        received = jax.tree.leaves(model.apply(model.params, *rows(0, size)))
        for y, right in zip(received, exact, strict=True):
            assert y.shape[0] == size
            assert decibels(y, right[:size]) > LEAST.get(name, 25)
    (size,) = export.symbolic_shape("batch")
    shapes = (jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype) for x in inputs)
    of_any = jax.tree.leaves(jax.eval_shape(model.apply, model.params, *shapes))
    assert [y.shape for y in of_any] == [(size, *y.shape[1:]) for y in received]


LEAST = {"UNet": 20}  # dB; it has few channels


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", rest_rarely(NAMES, 1))
@pytest.mark.parametrize("calibrated_with", [1, 4])
def test_calibrated_with_some_and_run_with_others(name, calibrated_with):
    check_sizes(name, calibrated_with, (1, 5))


def normal(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


ATTENTION = {
    "cls": normal(1, 1, 32), "position": normal(64, 32), "gain": np.ones(32, np.float32),
    "qkv": 0.2 * normal(32, 96), "out": 0.2 * normal(32, 32),
}  # fmt: skip


def attention(p, x):
    """Sizes that Python reads: a class token tiled over the batch, positions sliced, heads split, a causal mask."""
    batch, length, _ = x.shape
    token = jnp.tile(p["cls"], (batch, 1, 1))
    x = jnp.concatenate([token, x], 1) + p["position"][None, : length + 1]
    centered = x - x.mean(-1, keepdims=True)
    h = centered / jnp.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * p["gain"][None, None]
    q, k, v = (each.reshape(batch, length + 1, 4, 8) for each in jnp.split(h @ p["qkv"], 3, -1))
    y = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(batch, length + 1, 32)
    return (x + y @ p["out"]).mean(1)


@pytest.mark.rare
@pytest.mark.parametrize("products", ["static", "dynamic"])
def test_batch_and_length_may_be_any(products, tmp_path):
    batches = [normal(4, 9, 32), normal(1, 6, 32)]
    model = dml.ptq.quantize(attention, ATTENTION, batches, products=products, progress=False)
    dml.ptq.save(tmp_path / "model.npz", model)
    loaded = dml.ptq.load(tmp_path / "model.npz", attention)
    batch, length = export.symbolic_shape("batch, length", constraints=["length <= 63"])
    exported = export.export(jax.jit(model.apply))(model.params, jax.ShapeDtypeStruct((batch, length, 32), np.float32))
    for shape in ((1, 9), (4, 1), (1, 1), (7, 30)):
        x = normal(*shape, 32)
        received = model.apply(model.params, x)
        assert decibels(received, in_floats(attention, ATTENTION, x)) > 30, shape
        assert_same_bits(loaded.apply(loaded.params, x), received)
        assert decibels(exported.call(model.params, x), received) > 40  # floats in between have XLA's bits
    assert model.sqnr(ATTENTION, normal(1, 1, 32)).outputs[0] > 30


def padded(p, x):
    """A pad in floats, whose result a convolution reads; the last line has the batch size as a literal."""
    h = jnp.where(x > jnp.mean(x, 2, keepdims=True), x, 0)
    h = jnp.pad(h, ((0, 0), (1, 1), (0, 0)))
    y = lax.conv_general_dilated(h, p["w"], (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))
    return y[jnp.arange(x.shape[0])]


def test_a_pad_in_floats_has_its_range_at_other_batch_sizes():
    params = {"w": normal(3, 8, 8)}
    model = dml.ptq.quantize(padded, params, [normal(4, 6, 8)], progress=False)
    for size in (1, 5):
        x = normal(size, 6, 8)
        assert decibels(model.apply(model.params, x), in_floats(padded, params, x)) > 25, size


@pytest.mark.rare
@pytest.mark.parametrize(
    "name", rest_rarely(("two layers", "transformer", "scanned transformer", "causal", "plain"), 1)
)
def test_batches_of_several_sizes_calibrate(name):
    if name == "two layers":
        apply, params, make_inputs = two_layers, PARTS, lambda size, seed: (normal(size, 8),)
    else:
        apply, params, make_inputs = network(name)
    batches = [make_inputs(size, seed=size) for size in (3, 1, 4)]
    together = tuple(np.concatenate(each) for each in zip(*batches, strict=True))
    one, other = (dml.ptq.quantize(apply, params, each, progress=False) for each in (batches, [together]))
    assert one.graph.constants.keys() == other.graph.constants.keys()
    for key, value in one.graph.constants.items():
        np.testing.assert_allclose(value, other.graph.constants[key], rtol=1e-5, atol=1, err_msg=key)


def two_layers(p, x):
    return jax.nn.relu(x @ p["w"]) @ p["v"]


PARTS = {"w": normal(8, 8), "v": normal(8, 8), "b": normal(1, 8), "extra": normal(6, 8)}


class Batches:
    """Batches that are made when they are requested, and the number of those alive at a time."""

    def __init__(self, count, shape):
        self.count, self.shape, self.made, self.alive, self.most = count, shape, 0, 0, 0

    def _died(self):
        self.alive -= 1

    def __iter__(self):
        random = np.random.default_rng(0)
        for _ in range(self.count):
            if self.alive > 1:
                gc.collect()  # sometimes JAX releases an array only in its next collection
            batch = random.standard_normal(self.shape, np.float32)
            self.made, self.alive = self.made + 1, self.alive + 1
            self.most = max(self.most, self.alive)
            weakref.finalize(batch, self._died)
            yield batch
            del batch


@pytest.mark.rare
@pytest.mark.parametrize("count", [5, pytest.param(1000, marks=pytest.mark.rare)])
def test_batches_are_streamed_in_the_memory_of_two(count):
    apply, params, _ = network("plain")
    gc.collect()
    before, batches, most = len(large_arrays(64 * 192)), Batches(count, (64, 8, 8, 3)), 0

    def watched():
        nonlocal most
        each = iter(batches)
        while (batch := next(each, None)) is not None:
            yield batch
            del batch
            most = max(most, len(large_arrays(64 * 192)) - before)

    dml.ptq.quantize(apply, params, watched(), progress=False)
    assert batches.made == count
    assert batches.most <= 2
    assert most <= 1


def large_arrays(size):
    return [None for x in jax.live_arrays() if x.size >= size]


def test_the_generator_is_read_once_and_to_its_end():
    seen = []

    def batches():
        for seed in range(3):
            seen.append(seed)
            yield (seed + 1) * normal(2, 8)
        seen.append("end")

    model = dml.ptq.quantize(two_layers, PARTS, batches(), progress=False)
    assert seen == [0, 1, 2, "end"]
    listed = dml.ptq.quantize(two_layers, PARTS, [(seed + 1) * normal(2, 8) for seed in range(3)], progress=False)
    for key, value in model.graph.constants.items():
        assert_same_bits(value, listed.graph.constants[key])


DIFFERENCES = {  # how a function may differ between a batch of 4 and one of 6, and words of the error
    "weights": (
        lambda p, x: x @ p["w"][:, : len(x)],
        r"the weights of layer 'w', computed from params and sizes, have the shape \(8, 6\), but had \(8, 4\)",
    ),
    "bias": (
        lambda p, x: x @ p["w"] + p["b"] if len(x) == 4 else x @ p["w"],
        "layer 'w' is dot_general, but was .* add",
    ),
    "reader": (
        lambda p, x: (h := x @ p["w"], jax.nn.relu(h) @ p["v"])[len(x) == 4 :],
        "the result of node 'max_1' .* is computed from different values than in calibration",
    ),
    "params": (
        lambda p, x: jnp.tanh(x @ p["w"]) * (p["extra"] if len(x) == 6 else 1.0),
        "params.extra is read, but was not",
    ),
    "layer": (lambda p, x: x @ p["w"] @ p["v"] if len(x) == 6 else x @ p["w"], "it has the new layer 'v'"),
    "type": (lambda p, x: x @ p["w"], "input 0 is float16 of 2 dimensions, but was float32 of 2 dimensions"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", DIFFERENCES)
def test_sizes_that_make_another_function_are_an_error(name):
    apply, words = DIFFERENCES[name]
    model = dml.ptq.quantize(apply, PARTS, [normal(4, 8)], progress=False)
    other = normal(6, 8).astype(np.float16 if name == "type" else np.float32)
    with jax.numpy_dtype_promotion("standard"), pytest.raises(dml.ptq.PtqError, match=words):
        model.apply(model.params, other)
    model.apply(model.params, normal(4, 8))


def by_halves(p, x):
    """Prefix products of decays, as in jax.lax.associative_scan, whose equations depend on the length."""
    combine = lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1])  # noqa: E731
    return jax.lax.associative_scan(combine, (jnp.full(x.shape, 0.9), x @ p["w"]))[1] @ p["v"]


@pytest.mark.rare
def test_a_layer_that_reads_other_values_is_not_new():
    w = {"w": normal(8, 8), "v": normal(8, 4)}
    model = dml.ptq.quantize(by_halves, w, [normal(16, 8)], progress=False)
    with pytest.raises(dml.ptq.PtqError, match="layer 'v' reads values from other equations than in calibration"):
        model.apply(model.params, normal(8, 8))


HELD = {  # integers hold numbers that depend on the batch, in each of these ways
    "weights": lambda p, x: x @ (p["w"] / len(x)),
    "weights contracted along an axis": lambda p, x: (
        x @ jax.lax.dot_general(p["w"], p["w"], (((int(len(x) == 4),), (0,)), ((), ())))
    ),
    "captured weights": lambda p, x: x @ np.full((8, 8), 1 / len(x), np.float32),
    "folded": lambda p, x: (x @ p["w"]) / len(x),
    "table": lambda p, x: jnp.tanh((x @ p["w"]) * (1.0 / len(x))) @ p["v"],
    "table with casts": lambda p, x: (
        jnp.tanh((x @ p["w"]).astype(jnp.int8 if len(x) == 4 else jnp.int16).astype(jnp.float32)) @ p["v"]
    ),
    "clamp": lambda p, x: jnp.clip(x @ p["w"], 0, float(len(x))) @ p["v"],
    "grid": lambda p, x: dml.fake_quantize(x, 0.1 / len(x), np.uint8(128)) @ p["w"],
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", HELD)
def test_numbers_that_integers_hold_may_not_depend_on_sizes(name):
    model = dml.ptq.quantize(HELD[name], PARTS, [normal(4, 8)], progress=False)
    with pytest.raises(dml.ptq.PtqError, match="has literals or arrays that depend on the sizes of the inputs"):
        model.apply(model.params, normal(6, 8))
    with pytest.raises(dml.ptq.PtqError, match=r"batch 1: .*that depend on the sizes of the inputs"):
        dml.ptq.quantize(HELD[name], PARTS, [normal(4, 8), normal(6, 8)], progress=False)


REPEATED = {  # the same matrix for each input
    "by a broadcast": lambda w, count: jnp.broadcast_to(w[None], (count, *w.shape)),
    "by repeat": lambda w, count: jnp.repeat(w[None], count, axis=0),
    "by tile": lambda w, count: jnp.tile(w[None], (count, 1, 1)),
}


@pytest.mark.rare
@pytest.mark.parametrize("products", ["static", pytest.param("dynamic", marks=pytest.mark.rare)])
@pytest.mark.parametrize("name", rest_rarely(REPEATED, 1))
def test_matrices_that_are_repeated_for_each_input_are_held_once(name, products):
    """For example relative positions, which a layer projects, in heads."""

    def apply(p, x):  # x: [N, 3, 8]
        positions = (REPEATED[name](p["extra"], x.shape[0]) @ p["v"]).reshape(x.shape[0], 6, 2, 4)
        return jnp.einsum("nshk,nthk->nhts", positions, (x @ p["w"]).reshape(x.shape[0], 3, 2, 4))

    model = dml.ptq.quantize(apply, PARTS, [normal(32, 3, 8)], products=products, progress=False)
    assert "2 of 2 convolutions and products" in str(model)
    assert {value.shape for value in model.graph.constants.values() if value.ndim == 3} == {(2, 4, 6)}
    for size in (1, 5):
        x = normal(size, 3, 8)
        assert decibels(model.apply(model.params, x), in_floats(apply, PARTS, x)) > 25
    if name == "by a broadcast":  # repeat and tile do not accept symbolic sizes
        (size,) = export.symbolic_shape("batch")
        shape = jax.ShapeDtypeStruct((size, 3, 8), np.float32)
        assert jax.eval_shape(model.apply, model.params, shape).shape == (size, 2, 3, 6)


def test_tables_behind_movers_fit_other_sizes():
    """The halves of a split have other names where the equations differ."""

    def apply(p, x):
        x = x if len(x) > 1 else x.reshape(8).reshape(1, 8)
        one, other = jnp.split(x @ p["w"], 2, -1)
        return jnp.concatenate([jnp.tanh(one), jax.nn.sigmoid(other)], -1) @ p["v"]

    model = dml.ptq.quantize(apply, PARTS, [normal(64, 8)], progress=False)
    assert len(model._fused.nodes) > 6
    for size in (1, 5):
        x = normal(size, 8)
        assert decibels(model.apply(model.params, x), in_floats(apply, PARTS, x)) > 25


MOVERS = {  # movers whose results have ranges of their own, because the graph runs them in floats
    "integers cast to floats": lambda y: jnp.argsort(y, 1).astype(jnp.float32),
    "floats cast to integers and back": lambda y: (y * 4).astype(jnp.int8).astype(jnp.float32),
    "taken by a number": lambda y: jnp.take(y, np.array([3, 0, 5, 5]), 1),
    "tiled": lambda y: jnp.tile(y, (1, 2, 1)),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MOVERS)
def test_movers_in_floats_have_their_ranges_at_other_sizes(name):
    """JAX squeezes a batch of 1 for jnp.matmul, and writes slices as gathers for a symbolic batch."""

    def apply(p, x):
        x = x @ p["w"]
        first, y = x[:, :1, :1], MOVERS[name](x)
        scores = jnp.matmul(y @ p["v"], (y @ p["w"]).swapaxes(1, 2))
        return scores + first + y[..., :1]

    x = normal(4, 6, 8)
    model = dml.ptq.quantize(apply, PARTS, [x], progress=False)
    expected = model.apply(model.params, x)
    assert_same_bits(model.apply(model.params, x[:1]), expected[:1])
    (size,) = export.symbolic_shape("batch")
    shape = jax.ShapeDtypeStruct((size, 6, 8), np.float32)
    assert jax.eval_shape(model.apply, model.params, shape).shape == (size, *expected.shape[1:])


def test_numbers_of_float_operators_may_depend_on_sizes():
    def apply(p, x):
        return jnp.tanh(x @ p["w"]).sum(0, keepdims=True) / len(x)

    x = normal(6, 8)
    model = dml.ptq.quantize(apply, PARTS, [normal(4, 8), x[:4]], progress=False)
    assert decibels(model.apply(model.params, x), in_floats(apply, PARTS, x)) > 25


def test_weights_of_many_steps_are_compared_step_by_step():
    """Each step reads the one before twice: following each reader would take 2**60 steps."""

    def apply(p, x):
        w = p["w"] / 8
        for _ in range(60):
            w = (w * w + w) / 2
        y = x @ w
        return y if len(x) > 1 else y.reshape(8).reshape(1, 8)

    model = dml.ptq.quantize(apply, PARTS, [normal(4, 8)], progress=False)
    x = normal(1, 8)
    assert decibels(model.apply(model.params, x), in_floats(apply, PARTS, x)) > 25


def test_an_image_that_a_window_does_not_fit():
    """The mean of its empty result is still a mean, and the error names the window."""
    params = {"w": normal(4, 3, 3, 3), "head": normal(4, 2)}
    model = dml.ptq.quantize(
        lambda p, x: jnp.mean(lax.conv(x, p["w"], (1, 1), "VALID"), (2, 3)) @ p["head"],
        params, [normal(4, 3, 8, 8)], progress=False,
    )  # fmt: skip
    with pytest.raises(
        dml.errors.PtqError, match="FilterTensor spans 3 elements with dilation 1, the padded input has 2"
    ):
        model.apply(model.params, normal(1, 3, 2, 2))
    shape = export.symbolic_shape("n, 3, h, w", constraints=["h>=3", "w>=3"])
    with dml.use_kernels("xla"):
        exported = export.export(jax.jit(model.apply))(model.params, jax.ShapeDtypeStruct(shape, np.float32))
    with pytest.raises(ValueError, match="h"):
        exported.call(model.params, normal(1, 3, 2, 2))
