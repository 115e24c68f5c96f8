"""Refusals with messages of their own: arguments that look right, files of other functions, pickles."""

import hashlib
import json
import pickle
import re
import zipfile
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits
from jaxdml.ptq import PtqError, Rule, load, quantize, save

X, W = np.ones((4, 16), np.float32), np.eye(16, dtype=np.float32)


def apply(params, x):
    return jnp.max(x[:, :4], 1) + jnp.sum(x @ params["w"], 1)


def another(params, x):
    """The same equations, except for a size."""
    return jnp.max(x[:, :2], 1) + jnp.sum(x @ params["w"], 1)


def convolved(params, x):
    return jax.lax.conv_general_dilated(x, params["filter"], (1, 1), "SAME")


MODEL = quantize(apply, {"w": W}, [X], progress=False)
IMAGE, FILTER = np.ones((1, 3, 4, 4), np.float32), {"filter": np.ones((2, 3, 3, 3), np.float32)}
CASES = {
    "text": (lambda: quantize(apply, {"w": W}, "batches"), "batches is of type str"),
    "one dict": (lambda: quantize(apply, {"w": W}, {"x": X}), "batches is of type dict"),
    "no rules": (lambda: quantize(apply, {"w": W}, [X], rules=None), "rules is None, expected a sequence"),
    "text for rules": (lambda: quantize(apply, {"w": W}, [X], rules="w"), "rules is 'w', expected a sequence"),
    "dynamic convolution": (
        lambda: quantize(convolved, FILTER, [IMAGE], rules=[Rule("filter", products="dynamic")]),
        "matches no product, and convolutions cannot be dynamic",
    ),
    "unknown observer": (lambda: Rule("w", observer="largest"), "observer is 'largest'"),
    "traced params": (lambda: jax.jit(lambda w: quantize(apply, {"w": w}, [X]))(W), "call it outside of jax.jit"),
    "mapped params": (
        lambda: jax.vmap(lambda w: quantize(apply, {"w": w}, [X]))(W[None]),
        "call it outside of jax.jit",
    ),
    "mapped sqnr": (lambda: jax.vmap(lambda x: MODEL.sqnr({"w": W}, x))(X[None]), "call it outside of jax.jit"),
    "traced sqnr": (
        lambda: jax.jit(MODEL.sqnr)({"w": W}, X),
        "sqnr computes with the values of params and inputs: call it outside of jax.jit and other transformations",
    ),
    "a key": (lambda: quantize(apply, {"w": W, "key": jax.random.key(0)}, [X]), "params.* is a random key"),
}


@pytest.mark.parametrize("name", CASES)
def test_refused(name):
    call, text = CASES[name]
    with pytest.raises(PtqError, match=text):
        call()


def test_a_file_of_a_function_with_another_size(tmp_path):
    path = tmp_path / "model.npz"
    save(path, quantize(apply, {"w": W}, [X], progress=False))
    load(path, apply)
    text = (
        "it computes values of other shapes or types than those in PATH; they first differ before layer 'w':\n"
        "  calibrated  slice: float32[4,4]\n"
        "  now         slice: float32[4,2]\n"
        "Pass the function that was quantized, or quantize this one"
    )
    with pytest.raises(PtqError, match=re.escape(text.replace("PATH", str(path)))):
        load(path, another)


def test_a_file_of_a_function_with_another_size_of_a_constant(tmp_path):
    def of(size):
        return lambda params, x: x @ params["w"] + jnp.sum(jax.lax.full((size, 3), 0.5))

    save(tmp_path / "model.npz", quantize(of(2), {"w": W}, [X], progress=False))
    text = "first in one that does not depend on inputs:\n  calibrated  broadcast_in_dim: float32[2,3]\n  now         "
    with pytest.raises(PtqError, match=re.escape(text)):
        load(tmp_path / "model.npz", of(4))


@pytest.mark.parametrize("digest", ["", "0123456789abcdef"])
def test_files_of_earlier_formats_have_a_digest_of_shapes(digest, tmp_path):
    path = tmp_path / "model.npz"
    model = quantize(apply, {"w": W}, [X], progress=False)
    save(path, model)
    with np.load(path) as arrays:
        stored = dict(arrays)
    text = json.loads(bytes(stored["model.json"]))
    digest = digest or hashlib.sha256(" ".join(text["shapes"].values()).encode()).hexdigest()[:16]
    text |= {"format": "jaxdml.ptq 6", "shapes": digest}
    np.savez(path, **stored | {"model.json": np.frombuffer(json.dumps(text).encode(), np.uint8)})
    if digest == "0123456789abcdef":
        with pytest.raises(PtqError, match=r"it computes values of other shapes or types than those in .*npz\nPass"):
            load(path, apply)
    else:
        assert load(path, apply).fingerprint == model.fingerprint


def test_a_file_that_unfolds_to_more_than_it_is(tmp_path):
    model = quantize(apply, {"w": W}, [X], progress=False)
    save(tmp_path / "model.npz", model)
    with zipfile.ZipFile(tmp_path / "model.npz") as plain, zipfile.ZipFile(
        tmp_path / "packed.npz", "w", zipfile.ZIP_DEFLATED
    ) as packed:  # fmt: skip
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    with pytest.raises(PtqError, match="or it is damaged"):
        load(tmp_path / "packed.npz", apply)


def test_a_long_table_takes_little_of_a_file(tmp_path):
    model = quantize(lambda p, x: jax.nn.gelu(x @ p["w"]) @ p["w"], {"w": W}, [X], progress=False)
    assert any(value.shape == (2**16,) for value in model.graph.constants.values())
    save(tmp_path / "model.npz", model)
    assert (tmp_path / "model.npz").stat().st_size < 2**15
    read = load(tmp_path / "model.npz", lambda p, x: jax.nn.gelu(x @ p["w"]) @ p["w"])
    assert_same_bits(read.apply(read.params, X), model.apply(model.params, X))


def test_models_are_no_pickles():
    model = quantize(apply, {"w": W}, [X], progress=False)
    with pytest.raises(PtqError, match=r"jaxdml\.ptq\.save\(path, model\)"):
        pickle.dumps(model)


class Pair(NamedTuple):
    """One input of two arrays."""

    x: jax.Array
    y: jax.Array


@pytest.mark.rare
def test_a_named_tuple_is_one_input_and_a_python_number_keeps_its_weak_type():
    model = quantize(lambda p, pair: pair.x @ p["w"] + pair.y, {"w": W}, [Pair(X, X)], progress=False)
    assert model.apply(model.params, Pair(X, X)).shape == (4, 16)
    narrow = {"w": W.astype(jnp.bfloat16)}
    with jax.numpy_dtype_promotion("standard"):
        model = quantize(lambda p, x, s: (x @ p["w"]) * s, narrow, [(X.astype(jnp.bfloat16), 0.5)], progress=False)
        received = model.apply(model.params, X.astype(jnp.bfloat16), 0.5)
        assert received.dtype == jnp.bfloat16
        with jax.disable_jit():  # the number is no array then
            assert_same_bits(model.apply(model.params, X.astype(jnp.bfloat16), 0.5), received)
            assert model.sqnr(narrow, X.astype(jnp.bfloat16), 0.5).total > 30
            quantize(model.traced.apply, narrow, [(X.astype(jnp.bfloat16), 0.5)], progress=False)
    assert dml.ptq.Model is type(model)
