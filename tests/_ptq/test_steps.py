"""The steps of a loop: XLA's kernels for one small row, native kernels for the rest, with the same bits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.native_calls import needs_native
from jaxdml.ptq import quantize

NATIVE = 'custom_call_target="jaxdml_cpu_'


def normal(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def over_steps(p, x):
    step = lambda h, x: (jnp.maximum(x @ p["input"] + h @ p["state"], 0), None)  # noqa: E731
    return lax.scan(step, jnp.zeros((x.shape[0], p["state"].shape[0])), x.swapaxes(0, 1))[0]


def over_layers(p, x):
    return lax.scan(lambda x, w: (jnp.maximum(x @ w, 0), None), x[:, 0], p["layers"])[0]


@functools.cache
def model_of(apply, units):
    shapes = {"input": (8, units), "state": (units, units), "layers": (3, 8, 8)}
    params = {name: normal(*shape) / shape[-2] ** 0.5 for name, shape in shapes.items()}
    return quantize(apply, params, [normal(16, 5, 8)], progress=False)


def body_of(model, x):
    """The compiled program without its entry computation: the code of loops."""
    hlo = jax.jit(lambda *given: model.apply(*given)).lower(model.params, x).compile().as_text()
    return hlo[: hlo.index("\nENTRY")]


@needs_native
@pytest.mark.parametrize(
    ("apply", "units", "rows", "is_native"),
    [
        (over_steps, 8, 1, False),
        pytest.param(over_steps, 8, 2, True, id="two rows", marks=pytest.mark.rare),
        pytest.param(over_steps, 129, 1, True, id="a large matrix", marks=pytest.mark.rare),
        pytest.param(over_layers, 8, 1, True, id="layers", marks=pytest.mark.rare),
    ],
)
def test_steps_of_one_small_row_call_no_native_kernel(apply, units, rows, is_native):
    body = body_of(model_of(apply, units), normal(rows, 5, 8))
    assert (NATIVE in body) == is_native
    assert is_native or " dot(" in body


@pytest.mark.parametrize("apply", [over_steps, pytest.param(over_layers, marks=pytest.mark.rare)])
def test_a_row_has_the_bits_that_it_has_among_others_and_on_all_kernels(apply):
    model, x = model_of(apply, 8), normal(3, 5, 8)
    together = np.asarray(model.apply(model.params, x))
    alone = np.concatenate([model.apply(model.params, row[None]) for row in x])
    assert_same_bits(alone, together)
    with dml.use_kernels("xla"):
        assert_same_bits(np.asarray(model.apply(model.params, x)), together)


@pytest.mark.rare
def test_a_row_may_have_a_symbolic_size():
    def gated(p, x):
        step = lambda i, x: jnp.tanh(x @ p["layers"][0]) * jax.nn.sigmoid(x[..., 0])[..., None]  # noqa: E731
        return lax.fori_loop(0, 3, step, x)

    model = quantize(gated, {"layers": normal(3, 8, 8)}, [normal(1, 5, 8)], progress=False)
    (length,) = export.symbolic_shape("length")
    struct = jax.ShapeDtypeStruct((1, length, 8), np.float32)
    assert jax.eval_shape(model.apply, model.params, struct).shape == (1, length, 8)


def test_numbers_that_all_steps_share_are_constants():
    """XLA computes with them once, when it compiles the loop. Numbers of layers are parameters, stacked."""
    found = {apply: {(leaf.dtype.name, leaf.size) for leaf in model_of(apply, 8).params.values()
                     if isinstance(leaf, jax.Array)} for apply in (over_steps, over_layers)}  # fmt: skip
    assert found == {
        over_steps: {("float32", 8)},
        over_layers: {("float32", 24), ("float32", 3), ("uint8", 3), ("int8", 3)},
    }
