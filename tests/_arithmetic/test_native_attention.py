"""The native kernel of attention: where it runs, and its bits against those of XLA's form and of the reference."""

from functools import partial

import jax
import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.modes import UNOPTIMISED
from helpers.native_calls import native_calls, needs_native
from jaxdml._arithmetic.native_attention import MOST_DEPTH, RESULTS
from jaxdml._exact.attention import attention
from jaxdml.reference import attention as reference

F = np.float32
RNG = np.random.default_rng(0)
pytestmark = needs_native


def floats(*shape):
    return RNG.normal(size=shape).astype(F)


def expected(which, scale, softcap, query, key, value, *more):
    options = dict(zip(("seen", "bias", "sink"), more, strict=False))
    return reference.attention(query, key, value, scale=scale, softcap=softcap, **options)[which]


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

STRANGE = np.array([np.nan, np.inf, -np.inf, 1e-39, 3e38, -0.0, 1e-30], F)


class Random:
    """Random calls: sizes, masks, caches with free space, windows, special values, float16 values."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def extent(self, most):
        return int(self.rng.integers(1, most)) if self.rng.random() < 0.8 else 1

    def floats(self, *shape, strange=0.0):
        x = (self.rng.normal(size=shape) * 2.0 ** self.rng.choice([0, 0, 0, 1, 3, -6, 10])).astype(F)
        flat = x.reshape(-1)
        if self.rng.random() < 0.2:
            x[..., self.rng.integers(shape[-1])] *= 100
        for each in STRANGE:
            if self.rng.random() < strange:
                flat[self.rng.integers(x.size, size=2)] = each
        return x.astype(np.float16).astype(F) if self.rng.random() < 0.2 else x

    def seen(self, batch, heads, rows, keys):
        i, j, kind = np.arange(rows)[:, None], np.arange(keys)[None], self.rng.integers(5)
        is_past = j <= i + max(keys - rows, 0)
        if kind == 0:
            return is_past
        if kind == 1:  # a window
            return is_past & (j > i + max(keys - rows, 0) - self.extent(20))
        if kind == 2:  # a cache with free space
            return j < self.rng.integers(0, keys + 1, (batch, 1, 1, 1))
        if kind == 3:
            return self.rng.random((batch, 1, rows, keys)) < self.rng.choice([0.1, 0.6, 0.95])
        return self.rng.random((1, heads, 1, 1)) < 0.7

    def call(self):
        batch, groups, rows, size, wide = (self.extent(most) for most in (4, 4, 31, 71, 71))
        heads, keys = groups * self.extent(5), self.extent(self.rng.choice([40, 90, 700]))
        strange = self.rng.choice([0, 0, 0.1, 0.4])
        shapes = (batch, heads, rows, size), (batch, groups, keys, size), (batch, groups, keys, wide)
        arrays = [self.floats(*shape, strange=strange) for shape in shapes]
        seen = self.seen(batch, heads, rows, keys) if self.rng.random() < 0.8 else None
        of_bias = (batch, 1, rows, keys), (heads, 1, 1), (1, 1, 1, keys)
        bias = self.floats(*of_bias[self.rng.integers(3)], strange=strange / 4) if self.rng.random() < 0.4 else None
        sink = self.floats(heads, strange=strange / 4) if self.rng.random() < 0.3 else None
        which = RESULTS[0] if self.rng.random() < 0.6 else RESULTS[self.rng.integers(5)]
        softcap = float(self.rng.choice([0, 0, 1.5, 30]))
        return (which, float(F(self.rng.choice([0.3, size**-0.5, 1, 2e-3, 50]))), softcap), (*arrays, seen, bias, sink)


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
