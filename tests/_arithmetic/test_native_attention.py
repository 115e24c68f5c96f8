"""The native kernel of attention: where it runs, and its bits against those of XLA's form and of the reference."""

from functools import partial

import jax
import numpy as np
import pytest

import jaxdml as dml
from _arithmetic.attention_calls import Random, expected
from helpers.compare import assert_same_bits
from helpers.modes import UNOPTIMISED
from helpers.native_calls import native_calls, needs_native
from jaxdml._arithmetic.native_attention import MOST_DEPTH
from jaxdml._exact.attention import attention

F = np.float32
RNG = np.random.default_rng(0)
pytestmark = needs_native


def floats(*shape):
    return RNG.normal(size=shape).astype(F)


@pytest.mark.parametrize("mapped", ["query", "key, seen, sink"])
def test_vmap_is_folded_into_one_call(mapped):
    shapes = {"query": (1, 4, 3, 9), "key": (1, 2, 11, 9), "value": (1, 2, 11, 5), "seen": (3, 1), "bias": (1, 11)}
    given = {name: floats(*shape) for name, shape in (shapes | {"sink": (4,)}).items()}
    stacked = {name: np.stack([x, 2 * x, -x]) if name in mapped else x for name, x in given.items()}
    stacked["seen"] = stacked["seen"] > -1
    axes = [0 if name in mapped else None for name in stacked]
    function = jax.vmap(partial(attention, "output", 0.3, 1.5), axes)
    assert native_calls(function, *stacked.values()) == ["attention"]
    one_by_one = [[x[i] if name in mapped else x for name, x in stacked.items()] for i in range(3)]
    wanted = np.stack([expected("output", 0.3, 1.5, *one) for one in one_by_one])
    assert_same_bits(jax.jit(function)(*stacked.values()), wanted)


@pytest.mark.parametrize("depth", [MOST_DEPTH, pytest.param(MOST_DEPTH + 1, marks=pytest.mark.rare)])
def test_keys_longer_than_one_sum_run_on_xla(depth):
    """The largest possible integers, whose products all have the same sign."""
    query, key, value = np.full((1, 1, 2, depth), 0x7EFC000, F), np.full((1, 1, 3, depth), -1, F), floats(1, 1, 3, 4)
    query[..., 0], key[..., 0], key[0, 0, 1, 1::3] = 127 << 20, 1, 0.37
    function = partial(attention, "scores", 1.0, 0.0)
    assert native_calls(function, query, key, value) == ["attention"] * (depth <= MOST_DEPTH)
    assert_same_bits(jax.jit(function)(query, key, value), expected("scores", 1.0, 0.0, query, key, value))


def test_keys_of_no_elements():
    """The kernel rejects such keys."""
    query, key, value = floats(1, 2, 3, 0), floats(1, 1, 4, 0), floats(1, 1, 4, 5)
    found = jax.jit(partial(attention, "scores", 1.0, 0.0), compiler_options=UNOPTIMISED)(query, key, value)
    assert_same_bits(found, np.zeros((1, 2, 3, 4), F))


@pytest.mark.rare
def test_a_batch_of_any_size():
    """A symbolic size is not compared with 0, because the answer is unknown."""
    sizes = jax.export.symbolic_shape("batch - 1")
    shapes = [jax.ShapeDtypeStruct((*sizes, *shape), F) for shape in ((2, 3, 8), (1, 5, 8), (1, 5, 4))]
    function = jax.jit(partial(attention, "output", 0.3, 0.0), compiler_options=UNOPTIMISED)
    saved = jax.export.export(function)(*shapes)
    given = floats(2, 2, 3, 8), floats(2, 1, 5, 8), floats(2, 1, 5, 4)
    assert_same_bits(jax.jit(saved.call)(*given), expected("output", 0.3, 0.0, *given))


# Random shapes -------------------------------------------------------------------------------------------------------


@pytest.mark.rare
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(4))
def test_random_shapes(seed):
    """The kernel and XLA's form, both against the reference."""
    random = Random(seed)
    for number in range(40):
        statics, arrays = random.call()
        wanted = expected(*statics, *arrays)
        found = {"native": jax.jit(partial(attention, *statics))(*arrays)}
        if number % 8 == 0:
            with dml.use_kernels("xla"):
                found["xla"] = jax.jit(partial(attention, *statics), compiler_options=UNOPTIMISED)(*arrays)
        for kernels, got in found.items():
            assert_same_bits(got, wanted, f"{kernels} {number} {statics}")
