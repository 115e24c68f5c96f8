"""Files that update a cache, that round halves away from zero, and that compute sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from _onnx.saved import run, saved
from _onnx.test_saved_for_directml import not_registered
from helpers.compare import assert_same_bits
from jaxdml.errors import ModelError

WIDTH, ROOM, BATCH = 32, 16, 2
RNG = np.random.default_rng(0)
PARAMS = {name: RNG.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 6 for name in ("q", "k", "v", "o")}


def step(params, x, cache, position):
    """One token of a head, after the tokens in the cache."""
    query, key, value = (x @ params[name] for name in ("q", "k", "v"))
    keys = lax.dynamic_update_slice(cache["k"], key[:, None], (0, position, 0))
    values = lax.dynamic_update_slice(cache["v"], value[:, None], (0, position, 0))
    scores = jnp.where(jnp.arange(ROOM)[None] <= position, jnp.einsum("bd,btd->bt", query, keys) / 6, -1e9)
    attended = jnp.einsum("bt,btd->bd", jax.nn.softmax(scores, -1), values)
    return x + attended @ params["o"], {"k": keys, "v": values}


@pytest.mark.rare
def test_a_cache_is_updated_in_the_file(tmp_path):
    cache = {name: RNG.normal(size=(BATCH, ROOM, WIDTH)).astype(np.float32) for name in ("k", "v")}
    x = RNG.normal(size=(BATCH, WIDTH)).astype(np.float32)
    model = dml.ptq.quantize(step, PARAMS, [(x, cache, np.int32(place)) for place in range(4)], progress=False)
    path = tmp_path / "step.onnx"
    saved(model, path, weights="uint8", shapes=None)
    loaded = dml.onnx.load(path)
    for place in (2, ROOM - 1, ROOM + 5):  # the last is clamped
        expected = jax.tree.leaves(model.apply(model.params, x, cache, np.int32(place)))
        arguments = x, cache["k"], cache["v"], np.int32(place)
        ours, theirs = loaded.apply(loaded.params, *arguments), run(path, *arguments)
        for right, own, other in zip(expected, ours.values(), theirs.values(), strict=True):
            assert_same_bits(own, right)
            np.testing.assert_allclose(other, right, atol=1e-5)


def parts(w, x, i):
    """Parts at places that depend on data, of parameters and of a result of a layer."""
    y = x @ w
    return {
        "row": w[i], "of parameters": lax.dynamic_slice(w, (i, 0), (1, 8)),
        "index": lax.dynamic_index_in_dim(y, i, 1), "several": lax.dynamic_slice_in_dim(y, i, 3, 1),
        "both axes": lax.dynamic_slice(y, (i + 1, i), (2, 3)), "beside a number": lax.dynamic_slice(y, (2, i), (3, 4)),
        "updated": lax.dynamic_update_slice(y, -y[:2, :3], (i, i + 1)),
        "updated beside a number": lax.dynamic_update_slice(y, -y[:2, :3], (i, 1)),
    }  # fmt: skip


@pytest.mark.rare
def test_parts_at_places_that_depend_on_data(tmp_path):
    """They have known sizes in the file, without which the file could not be loaded. Places outside are clamped."""
    w, x = RNG.normal(size=(8, 8)).astype(np.float32), RNG.normal(size=(6, 8)).astype(np.float32)
    model, path = dml.ptq.quantize(parts, w, [(x, np.int32(2))], progress=False), tmp_path / "model.onnx"
    assert not_registered(saved(model, path, weights="uint8", shapes=None)) == []
    loaded = dml.onnx.load(path)
    for i in np.int32([0, 2, 7, 99, -1, -3, -99, 2**31 - 1, -(2**31)]):
        expected = model.apply(model.params, x, i)
        for results in (run(path, x, i), loaded.apply(loaded.params, x, i)):
            for name, result in expected.items():
                assert_same_bits(results[name], result, f"{name} at {i}")


def test_halves_away_from_zero(tmp_path):
    """x + 0.5 would also round up the float below a half, and large odd numbers."""
    w = np.eye(3, dtype=np.float32)
    x = np.float32([[0.49999997, 0.5, -0.49999997], [2**23 + 1, -(2**24) + 1, 8388607.5], [-2.5, 1.5, 0]])
    x = np.concatenate([x, [[np.inf, -np.inf, np.nan]]]).astype(np.float32)
    model = dml.ptq.quantize(
        lambda w, x: (lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), jnp.clip(x, -9, 9) @ w),
        w,
        [x[:3]],
        progress=False,
    )
    saved(model, tmp_path / "model.onnx", weights="uint8")
    expected, _ = model.apply(model.params, x)
    assert_same_bits(next(iter(run(tmp_path / "model.onnx", x).values())), expected)


def test_quotients_of_sizes_are_rounded_down(tmp_path):
    w, x = np.eye(3, dtype=np.float32), RNG.normal(size=(5, 3)).astype(np.float32)
    model = dml.ptq.quantize(lambda w, x: (x @ w)[: -(-x.shape[0] // 2)], w, [x], progress=False)
    saved(model, tmp_path / "model.onnx", weights="uint8")
    for batch in (1, 3, 4, 5):
        (received,) = run(tmp_path / "model.onnx", x[:batch]).values()
        assert_same_bits(received, model.apply(model.params, x[:batch]))


SEGMENTS = np.int32([0, 1, 1, 2, 0, 3, 3, 3, 4, 4])


def of_segments(name):
    return lambda w, x, segments: getattr(jax.ops, f"segment_{name}")(x @ w, segments, 5)


def subtracted(w, x, segments):
    return (x @ w).at[segments].subtract(x)


def largest_part(w, x, segments):
    return (x @ w).at[1:3, 2:4].max(np.float32(0.5))


def smallest_row(w, x, segments):
    return (x @ w).at[4].min(x[0])


COMBINED = {name: of_segments(name) for name in ("sum", "prod", "max", "min")}
COMBINED |= {f.__name__: f for f in (subtracted, largest_part, smallest_row)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", COMBINED)
def test_updates_that_are_combined(name, tmp_path):
    """Indices outside of the array are dropped."""
    w, x = RNG.normal(size=(8, 8)).astype(np.float32) / 3, RNG.normal(size=(10, 8)).astype(np.float32)
    model = dml.ptq.quantize(COMBINED[name], w, [(x, SEGMENTS)], progress=False)
    path = tmp_path / "model.onnx"
    saved(model, path, weights="uint8", shapes=None, opset=18)
    loaded = dml.onnx.load(path)
    for segments in (SEGMENTS, np.where(SEGMENTS == 2, 99, SEGMENTS)):
        expected = model.apply(model.params, x, segments)
        (received,) = run(path, x, segments).values()
        np.testing.assert_allclose(received, expected, rtol=1e-5)
        assert_same_bits(next(iter(loaded.apply(loaded.params, x, segments).values())), expected)


def test_opset_17_has_no_maximum(tmp_path):
    w, x = np.eye(8, dtype=np.float32), RNG.normal(size=(10, 8)).astype(np.float32)
    model = dml.ptq.quantize(COMBINED["max"], w, [(x, SEGMENTS)], progress=False)
    with pytest.raises(ModelError, match=r"opset 17 has no reduction 'max' of ScatterND; write opset=18"):
        dml.onnx.save(model, tmp_path / "model.onnx", shapes=None)


def test_dynamic_products_by_matrices_of_a_loop(tmp_path):
    """The loop is unrolled, which turns the matrices into constants."""
    w, x = RNG.normal(size=(3, 16, 16)).astype(np.float32) / 4, RNG.normal(size=(5, 16)).astype(np.float32)

    def apply(w, x):
        return lax.fori_loop(0, 3, lambda i, h: jax.nn.relu(h @ w[i]), x)

    model = dml.ptq.quantize(apply, w, [x], products="dynamic", progress=False)
    saved(model, tmp_path / "model.onnx", weights="uint8")
    (received,) = run(tmp_path / "model.onnx", x).values()
    np.testing.assert_allclose(received, model.apply(model.params, x), rtol=1e-5)


@pytest.mark.parametrize("numerics", ["directml", "onnxruntime"])
def test_products_of_integers_by_a_stack_of_matrices(numerics, tmp_path):
    params = [RNG.normal(size=size).astype(np.float32) / 4 for size in ((3, 16, 32), (3, 32, 8))]
    x = RNG.normal(size=(3, 5, 16)).astype(np.float32)

    def apply(params, x):
        return jax.nn.relu(x @ params[0]) @ params[1]

    model = dml.ptq.quantize(apply, params, [x], numerics=numerics, progress=False)
    saved(model, tmp_path / "model.onnx", "qoperator", weights="uint8", shapes=None)
    (received,) = run(tmp_path / "model.onnx", x).values()
    assert_same_bits(received, model.apply(model.params, x))


def rows(y, i):
    return y[i]


def columns(y, i):
    return y[:, i]


def crossed(y, i):
    return y[i[:, None], i[None]]


def pairs(y, i):
    return y[i, i[::-1]]


OWN = {
    "rows": jax.vmap(rows), "columns": jax.vmap(columns, out_axes=1), "crossed": jax.vmap(crossed),
    "pairs": jax.vmap(pairs), "rows of columns": jax.vmap(jax.vmap(rows, (0, None))),
    "take_along_axis": lambda y, i: jnp.take_along_axis(y, i[..., None, None], 1),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", OWN)
def test_each_item_is_gathered_at_places_of_its_own(name, tmp_path):
    def apply(w, x, i):
        return OWN[name]((x @ w).reshape(-1, 4, 4, 2), i)

    w, x = RNG.normal(size=(32, 32)).astype(np.float32), RNG.normal(size=(5, 32)).astype(np.float32)
    i, path = RNG.integers(0, 4, (5, 2)).astype(np.int32), tmp_path / "model.onnx"
    model = dml.ptq.quantize(apply, w, [(x, i)], progress=False)
    saved(model, path, weights="uint8")
    loaded = dml.onnx.load(path)
    for some in (slice(5), slice(2)):
        expected = model.apply(model.params, x[some], i[some])
        for results in (run(path, x[some], i[some]), loaded.apply(loaded.params, x[some], i[some])):
            assert_same_bits(*results.values(), expected)
