"""Attention has the bits of the reference in every mode, and a row's bits depend only on what the row sees."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from _exact import attention_battery as battery
from _exact.attention_battery import INPUTS, assert_all_same, everything, floats
from helpers.compare import assert_same_bits
from helpers.marks import rarely_on_xla, rest_rarely
from helpers.modes import UNOPTIMISED
from jaxdml._exact.attention import attention
from jaxdml.reference import attention as reference

HERE = Path(__file__).parent


def eager():
    with jax.disable_jit():
        return everything(*INPUTS)


def batches_of_one():
    jitted, own = jax.jit(everything), [*INPUTS[:4]]
    parts = [jitted(*(x[i : i + 1] for x in own), *INPUTS[4:]) for i in range(len(own[0]))]
    return jax.tree.map(lambda *each: np.concatenate(each), *parts)


def mapped():
    """Each sequence separately, under vmap."""

    def one(*own):
        return {name: x[0] for name, x in everything(*(x[None] for x in own), *INPUTS[4:]).items()}

    return jax.jit(jax.vmap(one))(*INPUTS[:4])


def with_x64():
    with jax.enable_x64(True):
        return jax.jit(everything)(*INPUTS)


def exported():
    saved = jax.export.export(jax.jit(everything))(*INPUTS).serialize()
    return jax.jit(jax.export.deserialize(saved).call)(*INPUTS)


MODES = {
    "jit": lambda: jax.jit(everything)(*INPUTS),
    "batches of one": batches_of_one,
    "constants": lambda: jax.jit(lambda: everything(*INPUTS))(),
    "eager": eager,
    "vmap": mapped,
    "x64": with_x64,
    "exported": exported,
}


@rarely_on_xla
def test_bits_of_the_reference(kernels):
    wanted = {f"all {name}": battery.EXPECTED[f"all {name}"] for name in battery.FIELDS}
    found = jax.jit(partial(everything, kinds=["all"]), compiler_options=UNOPTIMISED)(*INPUTS)
    assert_all_same(found, wanted)


@pytest.mark.rare
@pytest.mark.parametrize("mode", MODES)
def test_bits_in_each_mode(mode):
    assert_all_same(MODES[mode]())


PROCESSORS = (
    ("--xla_cpu_max_isa=SSE4_2", "xla"), ("--xla_cpu_max_isa=AVX2", "avx2"),
    ("--xla_backend_optimization_level=0", "xla"),
)  # fmt: skip


@pytest.mark.rare
@pytest.mark.parametrize(("flag", "kernels_of_process"), PROCESSORS)
def test_other_processors(flag, kernels_of_process):
    path = os.pathsep.join([str(HERE.parents[1]), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": path, "XLA_FLAGS": flag}
    environment["JAXDML_KERNELS"] = kernels_of_process
    command = [sys.executable, HERE / "attention_on_this_processor.py"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert run.stdout == "ok\n", run.stderr


# What a row does not see ---------------------------------------------------------------------------------------------

CAUSAL = np.tril(np.ones((12, 12), bool))
compute = jax.jit(partial(attention, "output", 0.25, 0.0), compiler_options=UNOPTIMISED)


@pytest.mark.parametrize("end", rest_rarely((5, 1, 12), 1))
def test_a_token_alone_and_in_its_prompt(end):
    """Prefill against decode, with a cache that grows, and with one whose unused room holds arbitrary values."""
    query, key, value = floats(2, 4, 12, 16) * 3, floats(2, 2, 12, 16), floats(2, 2, 12, 16)
    prompt = compute(query, key, value, CAUSAL)
    room = floats(2, 2, 5, 16) * 1e6
    room[:, :, 1], room[:, :, 3] = np.nan, np.inf
    last = query[:1, :, end - 1 : end]
    grown = compute(last, key[:1, :, :end], value[:1, :, :end], np.ones((1, end), bool))
    assert_same_bits(grown, prompt[:1, :, end - 1 : end])
    cache = [np.concatenate([x[:1, :, :end], room[:1]], 2) for x in (key, value)]
    with_room = compute(last, *cache, np.arange(end + 5)[None] < end)
    assert_same_bits(with_room, prompt[:1, :, end - 1 : end])


@pytest.mark.rare
def test_a_cache_whose_room_is_beyond_a_part():
    """Sums are split at 2**15 keys; parts that no query sees change nothing."""
    count = 2**15
    query, key, value = floats(1, 1, 1, 8), floats(1, 1, count + 9, 8), floats(1, 1, count + 9, 8)
    for end in (count - 3, count, count + 5):
        short = compute(query, key[:, :, :end], value[:, :, :end], np.ones((1, end), bool))
        long = compute(query, key, value, np.arange(count + 9)[None] < end)
        assert_same_bits(short, long)
        assert_same_bits(short, reference.attention(query, key[:, :, :end], value[:, :, :end], scale=0.25)["output"])


# Accuracy ------------------------------------------------------------------------------------------------------------


def decibels(got, right):
    return 10 * np.log10(np.sum(right**2) / np.sum((got - right) ** 2))


@pytest.mark.rare
@pytest.mark.parametrize("has_outliers", [False, True])
def test_accuracy(has_outliers):
    """At least 130 dB against float64, and 120 with channels and tokens that are much larger."""
    query, key, value = floats(1, 4, 40, 64), floats(1, 2, 40, 64), floats(1, 2, 40, 64)
    if has_outliers:
        key[..., :2] *= 30
        query[..., 7] *= 30
        value[..., 3] *= 60
        value[:, :, 0] *= 50
    causal = np.tril(np.ones((40, 40), bool))
    got = np.asarray(jax.jit(partial(attention, "output", 0.125, 0.0))(query, key, value, causal), np.float64)
    scores = np.einsum("bgnsh,bgth->bgnst", query.reshape(1, 2, 2, 40, 64).astype(float), key.astype(float)) / 8
    powers = np.exp(np.where(causal, scores - scores.max(-1, keepdims=True), -np.inf))
    right = np.einsum("bgnst,bgtv->bgnsv", powers / powers.sum(-1, keepdims=True), value.astype(float))
    assert decibels(got, right.reshape(got.shape)) > (120 if has_outliers else 130)


# Derivatives ---------------------------------------------------------------------------------------------------------


@pytest.mark.rare
def test_derivatives_are_those_of_float_attention():
    query, key, value, bias, sink = (
        floats(1, 4, 5, 8),
        floats(1, 2, 6, 8),
        floats(1, 2, 6, 8),
        floats(1, 1, 5, 6),
        floats(4),
    )
    given, seen = (query, key, value, bias, sink), floats(1, 1, 5, 6) > -1

    def plain(query, key, value, bias, sink):
        keys, values = (jnp.repeat(x, 2, 1) for x in (key, value))
        scores = 2 * jnp.tanh(jnp.einsum("bnsh,bnth->bnst", query, keys) * 0.3 / 2) + jnp.broadcast_to(
            bias, (1, 4, 5, 6)
        )
        powers = jnp.where(jnp.broadcast_to(seen, scores.shape), jnp.exp(scores), 0)
        total = powers.sum(-1, keepdims=True) + jnp.broadcast_to(jnp.exp(sink)[None, :, None, None], (1, 4, 5, 1))
        return jnp.einsum("bnst,bntv->bnsv", powers / total, values)

    def own(query, key, value, bias, sink):
        return attention("output", 0.3, 2.0, query, key, value, seen, bias, sink)

    direction = floats(1, 4, 5, 8)
    gradients = (jax.jit(jax.grad(lambda *given, f=f: (f(*given) * direction).sum(), range(5)))(*given)
                 for f in (plain, own))  # fmt: skip
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
