"""Whole networks with exact floats, quantized both ways: in every mode, the bits are those of the jitted call."""

import jax
import numpy as np
import pytest

import jaxdml as dml
from _ptq.quantized import ONE_ANSWER, network, quantized
from helpers.compare import assert_same_bits
from helpers.marks import HAS_NATIVE
from helpers.native_calls import native_calls


def eager(f, *inputs):
    with jax.disable_jit():
        return f(*inputs)


def mapped(f, *inputs):
    def of_one(*row):
        return jax.tree.map(lambda y: y[0], f(*(x[None] for x in row)))

    return jax.jit(jax.vmap(of_one))(*inputs)


def batches_of_one(f, *inputs):
    jitted = jax.jit(f)
    parts = [jitted(*(x[i : i + 1] for x in inputs)) for i in range(len(inputs[0]))]
    return jax.tree.map(lambda *each: np.concatenate(each), *parts)


def exported(f, *inputs):
    return jax.export.deserialize(jax.export.export(jax.jit(f))(*inputs).serialize()).call(*inputs)


def with_x64(f, *inputs):
    with jax.enable_x64(True):
        return jax.jit(f)(*inputs)


def on_xlas_kernels(f, *inputs):
    with dml.use_kernels("xla"):
        return jax.jit(lambda *inputs: f(*inputs))(*inputs)


MODES = {
    "eager": eager,
    "vmap": mapped,
    "batches of one": batches_of_one,
    "constants": lambda f, *inputs: jax.jit(lambda: f(*inputs))(),
    "exported": exported,
    "x64": with_x64,
    "XLA's kernels": on_xlas_kernels,
}


WITH_DEFAULT_INTEGERS = ("tied embeddings",)  # jnp.arange makes int64 under x64, so that the function differs


@pytest.mark.rare
@pytest.mark.parametrize("products", ["static", pytest.param("dynamic", marks=pytest.mark.oldest)])
@pytest.mark.parametrize("name", ONE_ANSWER)
def test_a_network_has_one_answer_in_every_mode(name, products):
    model = quantized(name, products=products, floats="exact")
    assert not model.by_xla
    inputs = network(name).make_inputs(3)

    def apply(*inputs):
        return model.apply(model.params, *inputs)

    if name == "attention in one call" and HAS_NATIVE:
        assert "chained" in native_calls(apply, *inputs)
    expected = jax.jit(apply)(*inputs)
    assert all(np.isfinite(y).all() for y in jax.tree.leaves(expected))
    for word, mode in MODES.items():
        if word == "x64" and name in WITH_DEFAULT_INTEGERS:
            with pytest.raises(dml.ptq.PtqError, match="If jax_enable_x64 had another value in quantize"):
                mode(apply, *inputs)
            continue
        got = mode(apply, *inputs)
        for y, right in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            assert_same_bits(y, right, word)
