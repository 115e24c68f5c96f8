"""Values whose types ONNX or onnxruntime does not support raise an error before a file is written."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax import lax

import jaxdml as dml
from _onnx.saved import run, saved
from helpers.marks import rest_rarely
from jaxdml.errors import ModelError
from jaxdml.onnx._write import types

W = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((6, 8)).astype(np.float32)
JAX_TYPES = ["bool", "float", "double", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
REFUSED = [
    (lambda y: jnp.argmax(y.astype(jnp.int16), -1), "the operator ArgMax of opset 17 does not take int16"),
    (lambda y: jnp.cumsum(y.astype(jnp.int16), -1), "the operator CumSum of opset 17 does not take int16"),
    (
        lambda y: y.astype(jnp.float8_e4m3fn).astype(jnp.float32), "the operator Cast of opset 17 does not take float8e"
    ),
    (
        lambda y: y.astype(jnp.int4).astype(jnp.float32), "the operator Cast of opset 17 does not take int4"
    ),
    (
        lambda y: lax.abs(lax.convert_element_type(y, np.complex64)), "the operator Abs of opset 17 does not take comp"
    ),
    (
        lambda y: lax.abs(lax.convert_element_type(y, np.complex64) - jnp.full(y.shape, 1j)),
        "the operator Sub of opset 17 does not take complex64",
    ),
    (lambda y: -jnp.abs(y).astype(jnp.uint8), "the operator Neg of opset 17 does not take uint8"),
]  # fmt: skip


def made(function):
    return dml.ptq.quantize(lambda w, x: function(x @ w), W, [X], progress=False)


def test_types_that_operators_lack_are_listed(tmp_path):
    model = made(lambda y: [function(y) for function, _ in REFUSED])
    with pytest.raises(ModelError) as caught:
        dml.onnx.save(model, tmp_path / "model.onnx")
    for _, reason in REFUSED:
        line = rf"(?m)^- layers? '.*' \(\w+\): {reason}.* in onnxruntime; compute in jnp.float32 or jnp.int32 there$"
        assert re.search(line, str(caught.value)), reason
    assert not list(tmp_path.iterdir())


@pytest.mark.rare
@pytest.mark.parametrize("opset", [19, 21])
def test_short_types_of_later_opsets_are_refused_too(opset, tmp_path):
    """onnxruntime rounds and saturates differently from JAX."""
    model = made(lambda y: y.astype(jnp.float8_e4m3fn).astype(jnp.float32) + y.astype(jnp.int4).astype(jnp.float32))
    with pytest.raises(ModelError, match=rf"(?s)of opset {opset} does not take float8e4m3fn .* does not take int4"):
        dml.onnx.save(model, tmp_path / "model.onnx", opset=opset)


@pytest.mark.rare
def test_a_type_that_onnx_lacks(tmp_path):
    with pytest.raises(ModelError, match=r"layer '\w+' \(convert_element_type\): ONNX has no type float8_e3m4; cut"):
        dml.onnx.save(made(lambda y: y.astype(jnp.float8_e3m4).astype(jnp.float32)), tmp_path / "model.onnx")


@pytest.mark.rare
def test_inputs_of_types_that_onnx_lacks(tmp_path):
    def noisy(w, x, key, half):
        return x @ w + jax.random.uniform(key, x.shape) + half.astype(jnp.float32)

    batch = X, jax.random.key(0), jnp.ones(X.shape, jnp.float8_e3m4)
    with pytest.raises(ModelError) as caught:
        dml.onnx.save(dml.ptq.quantize(noisy, W, [batch], progress=False), tmp_path / "model.onnx")
    remedy = "compute what depends on it outside of the function, and make the results inputs"
    pairs = {"key": "key<fry>", "half": "float8_e3m4"}
    assert caught.value.problems == tuple(f"input '{k}': ONNX has no type {v}; {remedy}" for k, v in pairs.items())


@pytest.mark.rare
@pytest.mark.parametrize("key", [jax.random.key, jax.random.PRNGKey])
def test_random_numbers_of_a_constant_key_are_constants(key, tmp_path):
    def noisy(y):
        first, second = jax.random.split(key(0))
        return y + jax.random.normal(first, y.shape) * jax.random.uniform(second, y.shape)

    model = made(noisy)
    with pytest.raises(ModelError, match=r"(?s)Write shapes=None .* the primitive random_bits has no counterpart"):
        dml.onnx.save(model, tmp_path / "model.onnx")
    saved(model, tmp_path / "model.onnx", weights="uint8", shapes=None)
    (received,) = run(tmp_path / "model.onnx", X).values()
    np.testing.assert_allclose(received, model.apply(model.params, X), rtol=1e-5, atol=1e-5)


@pytest.mark.rare
def test_keys_are_constants_of_loops(tmp_path):
    def body(carried, step):
        key, of_step = jax.random.split(carried[0])
        return (key, carried[1] + jax.random.normal(jax.random.fold_in(of_step, step), (1, 8))), None

    def apply(y):
        keys = jax.random.split(jax.random.key(0), (1, 2)).reshape(2)
        return lax.scan(body, (keys[0], y), jnp.arange(3))[0][1]

    model = made(apply)
    saved(model, tmp_path / "model.onnx", weights="uint8")
    (received,) = run(tmp_path / "model.onnx", X).values()
    np.testing.assert_allclose(received, model.apply(model.params, X), rtol=1e-5, atol=1e-5)


@pytest.mark.rare
def test_keys_that_depend_on_data(tmp_path):
    def noisy(y):
        chosen = jnp.where(y[0, 0] > 0, jax.random.key(0), jax.random.key(1))
        return y + jax.random.uniform(chosen, (1, 8))

    with pytest.raises(ModelError) as caught:
        dml.onnx.save(made(noisy), tmp_path / "model.onnx")
    reason = "layer 'select_n_1' (select_n): ONNX has no type key<fry>; cut the function there, and save the parts as"
    assert caught.value.problems[0].startswith(reason)


@pytest.mark.rare
def test_a_table_computes_in_any_type(tmp_path):
    model = made(lambda y: (-jnp.abs(y).astype(jnp.uint8)).astype(jnp.float32) @ W)
    with pytest.raises(ModelError, match=r"the operator Neg of opset 17 does not take uint8 .*; write tables='gather'"):
        dml.onnx.save(model, tmp_path / "model.onnx")
    saved(model, tmp_path / "model.onnx", tables="gather")


@pytest.mark.parametrize("bits", rest_rarely([(5, 23), (8, 10)], 1))
def test_floats_of_fewer_bits_are_refused(bits, tmp_path):
    text = f"it rounds to floats of {bits[0]} bits of exponent and {bits[1]} of mantissa; cut the function there"
    with pytest.raises(ModelError, match=text):
        dml.onnx.save(made(lambda y: lax.reduce_precision(y, *bits)), tmp_path / "model.onnx")


def test_the_provider_lacks_these_types():
    """The list is that of the kernels of onnxruntime 1.32, which some of its builds can list."""
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    if not hasattr(state, "get_all_opkernel_def"):
        pytest.skip("this build of onnxruntime does not name its kernels")
    kernels = dict[str, list]()
    for each in state.get_all_opkernel_def():
        if (each.provider, each.domain) == ("CPUExecutionProvider", ""):
            kernels.setdefault(each.op_name, []).append(each)
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(types.__file__).parent.glob("*.py"))
    found = dict[str, str]()
    for kind in {*re.findall(r'"([A-Z]\w+)"', sources)} & kernels.keys():
        if not onnx.defs.has(kind, max_inclusive_version=21):
            continue
        schema = onnx.defs.get_schema(kind, 21)
        own = [k for k in kernels[kind] if k.version_range[0] <= schema.since_version <= k.version_range[1]]
        for constraint in schema.type_constraints:
            word = constraint.type_param_str
            # A kernel that does not name a type parameter supports all types.
            has = {name for k in own for name in k.type_constraints.get(word, constraint.allowed_type_strs)}
            lacks = [name for name in JAX_TYPES if f"tensor({name})" in {*constraint.allowed_type_strs} - has]
            found |= {f"{kind}.{word}": " ".join(sorted(lacks))} if lacks else {}
    assert found == {word: " ".join(sorted(text.split())) for word, text in types.LACKS.items()}
