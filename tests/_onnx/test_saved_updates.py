"""Files that update a cache, that round halves away from zero, and that compute sizes."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxdml as dml
from _onnx.saved import run, saved
from helpers.compare import assert_same_bits

WIDTH, ROOM, BATCH = 32, 16, 2
RNG = np.random.default_rng(0)
PARAMS = {name: RNG.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 6 for name in ("q", "k", "v", "o")}


def step(params, x, cache, position):
    """One token of a head, behind the tokens in the cache."""
    query, key, value = (x @ params[name] for name in ("q", "k", "v"))
    keys = lax.dynamic_update_slice(cache["k"], key[:, None], (0, position, 0))
    values = lax.dynamic_update_slice(cache["v"], value[:, None], (0, position, 0))
    scores = jnp.where(jnp.arange(ROOM)[None] <= position, jnp.einsum("bd,btd->bt", query, keys) / 6, -1e9)
    attended = jnp.einsum("bt,btd->bd", jax.nn.softmax(scores, -1), values)
    return x + attended @ params["o"], {"k": keys, "v": values}


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


def test_halves_away_from_zero(tmp_path):
    """x + 0.5 rounds the float below a half up, and large odd numbers, too."""
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
    np.testing.assert_array_equal(next(iter(run(tmp_path / "model.onnx", x).values())), expected)


def test_quotients_of_sizes_are_rounded_down(tmp_path):
    w, x = np.eye(3, dtype=np.float32), RNG.normal(size=(5, 3)).astype(np.float32)
    model = dml.ptq.quantize(lambda w, x: (x @ w)[: -(-x.shape[0] // 2)], w, [x], progress=False)
    saved(model, tmp_path / "model.onnx", weights="uint8")
    for batch in (1, 3, 4, 5):
        (received,) = run(tmp_path / "model.onnx", x[:batch]).values()
        assert_same_bits(received, model.apply(model.params, x[:batch]))
