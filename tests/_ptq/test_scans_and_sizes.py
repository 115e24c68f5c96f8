"""Values that are computed from the sizes of inputs, outside of scans and in them."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from _ptq.quantized import decibels
from helpers.compare import assert_same_bits
from jaxdml.errors import PtqError
from jaxdml.ptq import quantize

RNG = np.random.default_rng(0)
P = {
    "w": jnp.asarray(RNG.standard_normal((2, 8, 8)) / 3, jnp.float32),
    "q": jnp.asarray(RNG.standard_normal((2, 8, 8)) / 3, jnp.float32),
    "positions": jnp.asarray(RNG.standard_normal((9, 8)), jnp.float32),
}
X = RNG.standard_normal((3, 6, 8)).astype(np.float32)


CAPTURED, ROW = np.asarray(P["q"][0]), np.asarray(P["positions"][None, :1])


def attend(p, x, mask, last=lambda x: x):
    def layer(x, weights):
        w, q = weights
        scores = mask(jnp.einsum("btd,bsd->bts", x @ q, x @ w))
        return x + last(jax.nn.softmax(scores, -1) @ x), None

    return lax.scan(layer, x, (p["w"], p["q"]))[0]


def causal(p, x):
    seen = jnp.tril(jnp.ones((x.shape[1],) * 2, bool))
    return attend(p, x, lambda scores: jnp.where(seen, scores, -1e9))


def causal_in_body(p, x):
    return attend(p, x, lambda scores: jnp.where(jnp.tril(jnp.ones((x.shape[1],) * 2, bool)), scores, -1e9))


def causal_by_numpy(p, x):
    unseen = np.where(np.tril(np.ones((x.shape[1],) * 2, bool)), 0, -1e9).astype(np.float32)
    return attend(p, x, lambda scores: scores + unseen[None])


def by_relative_positions(p, x):
    places = jnp.arange(x.shape[1])
    bias = p["positions"][jnp.clip(places[:, None] - places[None], -3, 3) + 3, 0]
    return attend(p, x, lambda scores: scores + bias[None])


def by_angles(p, x):
    places, powers = jnp.arange(x.shape[1], dtype=jnp.float32), jnp.arange(4, dtype=jnp.float32)
    angles = places[:, None] * 100.0 ** (-powers[None] / 4)
    cos, sin = jnp.cos(angles)[None], jnp.sin(angles)[None]

    def layer(x, w):
        a, b = jnp.split(x @ w, 2, -1)
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1), None

    return lax.scan(layer, x, p["w"])[0]


def by_sum(p, x):
    total = jnp.arange(x.shape[1], dtype=jnp.float32).sum()
    return lax.scan(lambda x, w: (jnp.tanh(x @ w) * total, None), x, p["w"])[0]


def by_rows(p, x):
    rows = p["positions"][None, : x.shape[1]]
    return lax.scan(lambda x, w: (jnp.tanh(x @ w) + rows, None), x, p["w"])[0]


def by_sum_of_broadcast_rows(p, x):
    rows = jnp.broadcast_to(p["positions"][:1], (x.shape[1], 8))
    return lax.scan(lambda x, w: (jnp.tanh(x @ w) + rows.sum(0)[None, None], None), x, p["w"])[0]


def over_steps(p, x):
    rows = p["positions"][:, None]

    def step(h, each):
        x, t = each
        h = jnp.tanh(x @ p["w"][0] + h @ p["q"][0] + rows[t])
        return h, h

    return lax.scan(step, jnp.zeros_like(x[:, 0]), (x.swapaxes(0, 1), jnp.arange(x.shape[1])))[1]


def by_two_masks_of_long_inputs(p, x):
    seen = np.tril(np.ones((x.shape[1],) * 2, bool))
    near, far = np.triu(seen, -4), jnp.triu(jnp.ones((x.shape[1],) * 2, bool), -9)
    both = (lambda: jnp.logical_and(near, seen) & far) if x.shape[1] > 4 else (lambda: seen)
    return attend(p, x, lambda scores: jnp.where(both(), scores, -1e9), lambda x: jnp.sin(x * ROW) @ CAPTURED)


def by_length(p, x):
    length = jnp.float32(x.shape[1])
    return attend(p, x, lambda scores: scores + length)


def by_key(p, x):
    key = jax.random.key(3)

    def layer(x, w):
        return jnp.tanh(x @ w) + jax.random.normal(key, x.shape[1:])[None] / 9, None

    return lax.scan(layer, x, p["w"])[0]


def by_keys_of_layers(p, x):
    def layer(x, each):
        w, key = each
        return jnp.tanh(x @ w) + jax.random.normal(key, x.shape[1:])[None] / 9, None

    return lax.scan(layer, x, (p["w"], jax.random.split(jax.random.key(3), 2)))[0]


WORKING = [
    causal, causal_in_body, causal_by_numpy, by_relative_positions, by_angles, by_sum, by_rows,
    by_sum_of_broadcast_rows, over_steps, by_two_masks_of_long_inputs, by_length, by_key,
    by_keys_of_layers,
]  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("f", WORKING)
def test_scans_read_values_computed_from_sizes(f):
    for batches in ([X], [X, X[:1, :5]]):
        model = quantize(f, P, batches, progress=False)
        for x in (X, X[:, :4], X[:1, :3]):
            assert decibels(f(P, x), model.apply(model.params, x)) > 24


def by_distances(p, x):
    """Scores of each row and each distance, as in the attention of Shaw et al. and of Transformer-XL."""
    places, y = jnp.arange(x.shape[1]), x @ p["w"][0]
    return jnp.einsum("bid,ijd->bij", y, p["positions"][places[:, None] - places[None] + 4])


def by_all_distances(p, x):
    places, scores = jnp.arange(x.shape[1]), (x @ p["w"][0]) @ p["positions"].T
    return jnp.take_along_axis(scores, (places[:, None] - places[None] + 4)[None], 2)


@pytest.mark.rare
def test_matrices_that_depend_on_a_length_have_a_remedy():
    x = X[:, :4]
    model = quantize(by_distances, P, [x], progress=False)
    with pytest.raises(PtqError, match=r"or multiply by the matrix of the longest input and slice the result \(if"):
        model.apply(model.params, x[:, :3])
    model = quantize(by_all_distances, P, [x], progress=False)
    for each in (x, x[:, :3]):
        assert decibels(model.apply(model.params, each), by_distances(P, each)) > 30


def mixed(p, x):
    return jnp.einsum("ntd,ts->nsd", x @ p["w"][0], p["mix"][: x.shape[1], : x.shape[1]])


def mixed_by_all(p, x):
    padded = jnp.pad(x @ p["w"][0], ((0, 0), (0, 4 - x.shape[1]), (0, 0)))
    return jnp.einsum("ntd,ts->nsd", padded, p["mix"])[:, : x.shape[1]]


@pytest.mark.rare
def test_a_sum_over_a_length_has_the_remedy_of_zeros():
    x, params = X[:, :4], P | {"mix": np.random.default_rng(0).standard_normal((4, 4), np.float32)}
    model = quantize(mixed, params, [x], progress=False)
    with pytest.raises(PtqError, match="if the product sums over the length, first pad the other operand with zeros"):
        model.apply(model.params, x[:, :3])
    model = quantize(mixed_by_all, params, [x], progress=False)
    for each in (x, x[:, :3]):
        assert decibels(model.apply(model.params, each), mixed(params, each)) > 30


@pytest.mark.rare
def test_a_mask_around_a_scan_has_the_bits_of_one_in_its_body():
    outer, inner = (quantize(f, P, [X], progress=False) for f in (causal, causal_in_body))
    for x in (X, X[:, :4], X[:1, :3]):
        assert_same_bits(outer.apply(outer.params, x), inner.apply(inner.params, x))


@pytest.mark.rare
@pytest.mark.parametrize("f", [causal, by_relative_positions, by_rows, over_steps, by_length])
def test_files_and_exports_of_such_scans(f, tmp_path):
    model = quantize(f, P, [X], progress=False)
    dml.ptq.save(tmp_path / "model.npz", model)
    again = dml.ptq.load(tmp_path / "model.npz", f, P)
    batch, length = jax.export.symbolic_shape("batch, length", constraints=["length <= 9"])
    exported = jax.export.export(jax.jit(model.apply))(
        model.params, jax.ShapeDtypeStruct((batch, length, 8), np.float32)
    )
    dml.onnx.save(model, tmp_path / "model.onnx", shapes=None)
    network = dml.onnx.load(tmp_path / "model.onnx")
    assert_same_bits(jax.tree.leaves(network.apply(network.params, X))[0], model.apply(model.params, X))
    for x in (X, X[:, :4]):
        assert_same_bits(again.apply(again.params, x), model.apply(model.params, x))
        with dml.use_kernels("xla"):  # as in the export: XLA's floats depend on where its programs call kernels
            assert_same_bits(exported.call(model.params, x), model.apply(model.params, x))


# Refused -------------------------------------------------------------------------------------------------------------


def by_divided_weights(p, x):
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, p["w"] / x.shape[1])[0]


def by_divided_shared_weights(p, x):
    shared = p["q"][0] / x.shape[1]
    return lax.scan(lambda x, w: (jnp.tanh(x @ w @ shared), None), x, p["w"])[0]


def by_folded_sum(p, x):
    total = jnp.arange(x.shape[1], dtype=jnp.float32).sum()
    return lax.scan(lambda x, w: (x @ w * total, None), x, p["w"])[0]


def by_folded_sum_in_body(p, x):
    return lax.scan(lambda x, w: (x @ w * jnp.arange(x.shape[1], dtype=jnp.float32).sum(), None), x, p["w"])[0]


def by_layers_of_sizes(p, x):
    scales = jnp.broadcast_to(p["positions"][:1], (x.shape[1], 8)).sum(0).reshape(2, 4)
    return lax.scan(lambda x, each: (jnp.tanh(x @ each[0]) * each[1].sum(), None), x, (p["w"], scales))[0]


def by_repeated_rows_of_layers(p, x):
    rows = jnp.tile(p["positions"][:2, None], (1, x.shape[1], 1))
    return lax.scan(lambda x, each: (jnp.tanh(x @ each[0]) + each[1].sum(0)[None, None], None), x, (p["w"], rows))[0]


def by_swapped_shared_weights(p, x):
    q, r = p["q"][0], p["q"][1]
    a, b = (q, r) if x.shape[1] > 4 else (r, q)
    return lax.scan(lambda x, w: (jnp.tanh(jnp.tanh(x @ w @ a) @ b), None), x, p["w"])[0]


def by_rows_of_long_inputs(p, x):
    rows = p["positions"][None, : x.shape[1]]
    more = (lambda x: x + rows) if x.shape[1] > 4 else (lambda x: x)
    return lax.scan(lambda x, w: (jnp.tanh(jnp.sin(more(x)) @ w), None), x, p["w"])[0]


def by_layers_of_short_inputs(p, x):
    def layers(x, w):
        return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]

    return layers(layers(x, p["w"]), p["q"]) if x.shape[1] <= 4 else layers(x, p["w"])


def by_permuted_weights(p, x):
    length = x.shape[1]
    w = p["q"][0].reshape(-1)[:48].reshape(length, 12 // length, 4).transpose(1, 0, 2).reshape(6, 8)
    return x @ w.T


def by_numbers(p, x):
    return x @ p["w"][0] * jnp.arange(x.shape[1], dtype=jnp.float32).sum()


def by_number_of_ones(p, x):
    return x @ p["w"][0] / jnp.ones(x.shape[1]).sum()


def by_product_of_ones(p, x):
    return x @ p["w"][0] * (jnp.ones((1, x.shape[1])) @ jnp.ones((x.shape[1], 8)))[None]


def by_sum_of_params(p, x):
    return x @ p["w"][0] + p["positions"][: x.shape[1]].sum(0)[None, None]


REFUSED = {
    by_divided_weights: "the scan 'scan_1' has layers, weights or scales that depend on the sizes",
    by_divided_shared_weights: "the scan 'scan_1' has layers, weights or scales that depend on the sizes",
    by_folded_sum: "the scan 'scan_1' has layers, weights or scales that depend on the sizes",
    by_folded_sum_in_body: "the equation of 'mul_1' has literals or arrays that depend on the sizes",
    by_layers_of_sizes: "the scan 'scan_1' has layers, weights or scales that depend on the sizes",
    by_repeated_rows_of_layers: "the scan 'scan_1' has layers, weights or scales that depend on the sizes",
    by_swapped_shared_weights: "layer 'q' reads values from other equations than in calibration",
    by_rows_of_long_inputs: "it lacks the scan 'scan_1', or this scan reads other values than in calibration",
    by_layers_of_short_inputs: "it has a new scan with convolutions or matrix products",
    by_permuted_weights: "the equation of 'dot_general_1' has literals or arrays that depend on the sizes",
    by_numbers: "the equation of 'mul_1' has literals or arrays that depend on the sizes",
    by_number_of_ones: "the equation of 'div_1' has literals or arrays that depend on the sizes",
    by_product_of_ones: "the equation of 'mul_1' has literals or arrays that depend on the sizes",
    by_sum_of_params: "the equation of 'add_1' has literals or arrays that depend on the sizes",
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("f", REFUSED)
def test_integers_computed_from_sizes_are_refused(f):
    model = quantize(f, P, [X], progress=False)
    assert decibels(f(P, X), model.apply(model.params, X)) > 30
    assert decibels(f(P, X[:1]), model.apply(model.params, X[:1])) > 30
    with pytest.raises(PtqError, match=REFUSED[f]):
        model.apply(model.params, X[:, :4])
    with pytest.raises(PtqError, match=f"batch 1: .*{REFUSED[f]}"):
        quantize(f, P, [X, X[:, :4]], progress=False)


def test_another_number_of_layers_is_refused():
    def by_repeated_layers(p, x):
        return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, jnp.tile(p["w"], (x.shape[1], 1, 1)))[0]

    model = quantize(by_repeated_layers, P, [X], progress=False)
    with pytest.raises(PtqError, match=r"the scan 'scan_1' has 8 layers, but had 12"):
        model.apply(model.params, X[:, :4])


FOLDED = {
    "product of broadcast values": lambda p, x: jnp.full(x.shape, 2.0) * p["positions"][None, :1],
    "iota along another axis": lambda p, x: 1 + lax.broadcasted_iota(jnp.float32, x.shape, 2),
    "sum along another axis": lambda p, x: jnp.broadcast_to(p["positions"][:1], x.shape[1:]).sum(1)[None, :, None],
    "transposed broadcast": lambda p, x: jnp.broadcast_to(p["positions"][0], x.shape[1:]).T[None].swapaxes(1, 2),
    "matrix product": lambda p, x: (jnp.broadcast_to(p["positions"][:1], x.shape[1:]) @ p["q"][1])[None],
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", FOLDED)
def test_sizes_that_change_no_elements_are_accepted(name):
    def f(p, x):
        return x @ p["w"][0] * FOLDED[name](p, x)

    model = quantize(f, P, [X], progress=False)
    assert not any("positions" in name for name in model.params)  # folded into the weights
    for x in (X, X[:, :4], X[:1, :3]):
        assert decibels(f(P, x), model.apply(model.params, x)) > 30


@pytest.mark.rare
def test_files_of_the_format_before_hold_the_values_around_scans(tmp_path):
    """Their bits stay. At other sizes, values that are constants of the body must be the same."""

    def f(p, x):
        rows = p["positions"][: 2 * (len(x) // 3 + 1)]
        return lax.scan(lambda x, w: (jnp.tanh(x @ w) + rows[:1, None] + rows.mean() / 9, None), x, p["w"])[0]

    model = quantize(f, P, [X], progress=False)
    dml.ptq.save(tmp_path / "model.npz", model)
    as_constants_of_body(tmp_path / "model.npz", "params/positions", P["positions"][:4])
    old = dml.ptq.load(tmp_path / "model.npz", f, P)
    for x in (X, X[:, :4]):
        assert_same_bits(old.apply(old.params, x), model.apply(model.params, x))
    assert decibels(f(P, X[:2]), model.apply(model.params, X[:2])) > 24
    with pytest.raises(PtqError, match="the scan 'scan_1' has layers, weights or scales that depend on the sizes"):
        old.apply(old.params, X[:2])


@pytest.mark.rare
def test_masks_in_files_of_the_format_before_have_the_size_of_the_input(tmp_path):
    model = quantize(causal, P, [X], progress=False)
    dml.ptq.save(tmp_path / "model.npz", model)
    as_constants_of_body(tmp_path / "model.npz", "params/mask", jnp.tril(jnp.ones((6, 6), bool)))
    old = dml.ptq.load(tmp_path / "model.npz", causal, P)
    for x in (X, X[:, :4]):
        assert_same_bits(old.apply(old.params, x), model.apply(model.params, x))


def as_constants_of_body(path, name, value):
    """Rewrites a file with one scan of two layers: the only value around the scan that its body reads, `value`, becomes
    a stacked constant called `name`.
    """
    with np.load(path) as arrays:
        stored = dict(arrays)
    text = json.loads(bytes(stored.pop("model.json"))) | {"format": "jaxdml.ptq 5"}
    (node,) = (node for node in text["nodes"] if "body" in node[4])
    body, inputs = node[4]["body"], node[2]
    before, outer = body[1].pop(), inputs.pop(len(body[1]))
    for each in body[0]:
        each[2] = [name if read == before else read for read in each[2]]
    body[3].append(name)
    inputs.append(f"scan_1/{name}")
    text["nodes"] = [each for each in text["nodes"] if outer not in each[3]]
    stored[str(len(text["constants"]))] = np.stack([value, value])
    text["constants"].append([inputs[-1], str(value.dtype)])
    np.savez(path, **stored | {"model.json": np.frombuffer(json.dumps(text).encode(), np.uint8)})


def test_computed_and_captured_arrays_stay_weights():
    captured = np.asarray(P["q"][0])

    def layers(p, x):
        scale, identity = 1 / jnp.sqrt(8.0), jnp.eye(8)
        return lax.scan(lambda x, w: (jnp.tanh(x @ (w * scale + identity) @ captured @ p["q"][1]), None), x, p["w"])[0]

    model = quantize(layers, P, [X], progress=False)
    assert sum("weight:quantized" in name for name in model.params) == 3
    assert not any(np.shape(value) == P["q"].shape for value in jax.tree.leaves(model.params))  # no floats
    assert decibels(layers(P, X), model.apply(model.params, X)) > 30
