"""Models under JAX's transforms: jit, vmap, sharding, export, 64-bit types, each set of kernels: the same bits."""

import functools
from pathlib import Path

import jax
import numpy as np
import onnx
import pytest
from jax import export

import jaxdml as dml
import jaxdml.onnx
from _onnx.quantized_models import quantized, random_inputs
from _onnx.small_models import residual, reversed_weights
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely
from helpers.native_calls import needs_native
from helpers.on_devices import run_on_eight
from helpers.second_call import check_second_call_compiles_nothing

HERE = Path(__file__).parent
FORMS = ("qdq", "dynamic")
X = random_inputs(residual(), 8, seed=3)["x"]
of_each_form = pytest.mark.parametrize("form", rest_rarely(FORMS, 1))


@functools.cache
def loaded(form, numerics="directml", kernels=None):
    with dml.use_kernels(kernels or ("native" if dml.kernels().startswith("native") else "xla")):
        return jaxdml.onnx.load(quantized(residual(), form), numerics=numerics)


@functools.cache
def of_batch(form, numerics="directml"):
    """The outputs of the whole batch under jit."""
    model = loaded(form, numerics)
    return np.asarray(jax.jit(model.apply)(model.params, X)["y"])


@functools.cache
def of_each(form):
    """The outputs of single images under jit; in the dynamic form, each image has a range of its own."""
    model = loaded(form)
    return np.concatenate([np.asarray(jax.jit(model.apply)(model.params, image[None])["y"]) for image in X])


def check(received, expected):
    assert_same_bits(received["y"], expected)


@pytest.mark.rare
@of_each_form
@pytest.mark.parametrize("numerics", ["directml", "onnxruntime"])
def test_eager_and_jit(form, numerics):
    model, expected = loaded(form, numerics), of_batch(form, numerics)
    assert np.unique(expected).size > 10
    check(model.apply(model.params, X), expected)
    check(model.apply(model.params, x=X), expected)
    with jax.disable_jit():
        check(model.apply(model.params, X), expected)


@pytest.mark.rare
@of_each_form
def test_vmap_over_images(form):
    model = loaded(form)

    def of_one(image):
        return {name: value[0] for name, value in model.apply(model.params, image[None]).items()}

    check(jax.vmap(of_one)(X), of_each(form))
    check(jax.jit(jax.vmap(of_one))(X), of_each(form))
    assert (of_each(form) == of_batch(form)).all() == (form == "qdq")


@pytest.mark.rare
@pytest.mark.parametrize("form", FORMS)
def test_vmap_over_stacked_params(form):
    model, other = loaded(form), jaxdml.onnx.load(reversed_weights(quantized(residual(), form)))
    expected = np.stack([of_batch(form), np.asarray(other.apply(other.params, X)["y"])])
    assert (expected[0] != expected[1]).any()
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), model.params, other.params)
    check(jax.jit(jax.vmap(model.apply, (0, None)))(stacked, X), expected)
    check(jax.vmap(model.apply, (0, 0))(stacked, np.stack([X, X])), expected)


@pytest.mark.rare
@of_each_form
def test_64_bit_types_change_nothing(form):
    """The model is loaded with them and without, and called with them and without."""
    expected = of_batch(form)
    with jax.enable_x64(True):
        wide = jaxdml.onnx.load(quantized(residual(), form))
        for model in (wide, loaded(form)):
            check(jax.jit(model.apply)(model.params, X), expected)
    check(jax.jit(wide.apply)(wide.params, X), expected)


@needs_native
@pytest.mark.rare
@pytest.mark.parametrize("form", FORMS)
def test_kernels_give_the_same_bits(form):
    """Params that are prepared for native kernels and for XLA's, on each of the two."""
    for prepared_for in ("native", "xla"):
        model = loaded(form, kernels=prepared_for)
        for kernels in ("native", "xla"):
            with dml.use_kernels(kernels):
                check(jax.jit(model.apply)(model.params, X), of_batch(form))
                jax.clear_caches()


@pytest.mark.rare
@of_each_form
def test_export_of_any_batch_for_three_platforms(form):
    """Kernels are XLA's while the weights are prepared and the program is written."""
    with dml.use_kernels("xla"):
        model = jaxdml.onnx.load(quantized(residual(), form))
        (batch,) = export.symbolic_shape("batch")
        shape = jax.ShapeDtypeStruct((batch, *X.shape[1:]), X.dtype)
        exported = export.export(jax.jit(model.apply), platforms=("cpu", "cuda", "tpu"))(model.params, shape)
    read = export.deserialize(exported.serialize())
    check(read.call(model.params, X), of_batch(form))
    check(read.call(model.params, X[:1]), of_each(form)[:1])
    assert exported.out_avals[0].shape == (batch, 10)


@of_each_form
def test_second_call_neither_traces_nor_compiles(form, caplog):
    model = loaded(form)
    check_second_call_compiles_nothing(model, X, caplog)


@pytest.mark.rare
@pytest.mark.parametrize("form", FORMS)
def test_eight_devices(form, tmp_path):
    """In a process of its own: a batch that is sharded, and parts of it in shard_map."""
    onnx.save(quantized(residual(), form), tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", x=X, of_batch=of_batch(form), of_each=of_each(form))
    assert run_on_eight(HERE / "models_on_eight_devices.py", tmp_path).count("ok") == 5
