"""Integers that a function computes: which have one answer, and which the printed model names."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from jaxdml.ptq import quantize

RANDOM = np.random.default_rng(0)
PARTS = {name: RANDOM.standard_normal((4, 4), np.float32) for name in "vw"}
X = RANDOM.standard_normal((4, 4), np.float32)
IDS = np.array([3, 1, 1, 0], np.int32)


def steep(ids):
    """Integers that show the last bits of floats."""
    return (jnp.exp(ids.astype(jnp.float32)) * 1e6).astype(jnp.int32)


def sharded(f):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(f, mesh=mesh, in_specs=PartitionSpec("i"), out_specs=PartitionSpec("i"))


def random(ids, impl):
    return jax.random.bits(jax.random.key(ids[0], impl=impl), (4,))


def bits(ids):
    return lax.rng_bit_generator(ids.astype(jnp.uint32), (4,), algorithm=lax.RandomAlgorithm.RNG_DEFAULT)[1]


def called_back(ids):
    return jax.pure_callback(lambda ids: np.asarray(ids) + 1, jax.ShapeDtypeStruct((4,), jnp.int32), ids)


ZEROS = jnp.zeros(8, jnp.int32)
DIFFERENT = {
    "rng_uniform": lambda ids: lax.rng_uniform(jnp.int32(0), jnp.int32(9), (4,)) + ids,
    "rng_bit_generator": bits,
    "random_bits": lambda ids: random(ids, "rbg"),
    "pure_callback": called_back,
    "platform_index": lambda ids: lax.platform_dependent(ids, cpu=lambda i: i + 1, default=lambda i: i + 2),
    "sort": lambda ids: jnp.argsort(ids, stable=False),
    "scatter to equal indices": lambda ids: ZEROS.at[ids].set(ids),
    "scatter by a function": lambda ids: ZEROS.at[ids].apply(steep, unique_indices=True),
    "scatter to equal indices of floats": lambda ids: jnp.zeros((8, 4)).at[ids].set(X),
    "reduce": lambda ids: lax.reduce(ids, jnp.int32(0), lambda a, b: steep(a) + b, (0,)),
    "reduce_window": lambda ids: lax.reduce_window(ids, jnp.int32(0), lambda a, b: steep(a) + b, (2,), (1,), "VALID"),
    "shard_map": sharded(steep),
    "div": lambda ids: lax.div(ids, ids[::-1]),
    "div by 0": lambda ids: lax.div(ids, np.int32(0)),
    "rem": lambda ids: lax.rem(ids, ids[::-1]),
    "rem by -1": lambda ids: lax.rem(ids, np.int32(-1)),
    "scan": lambda ids: lax.scan(lambda carry, i: (carry, lax.rng_uniform(0, 9, ()) + i), 0, ids)[1],
    "while": lambda ids: lax.while_loop(lambda i: i[0] < 9, lambda i: lax.rng_uniform(1, 9, (4,)) + i, ids),
    "cond": lambda ids: lax.cond(ids[0] > 0, bits, lambda i: i.astype(jnp.uint32), ids),
}

if "is_stable" in inspect.signature(lax.top_k).parameters:  # not in the oldest supported jax
    DIFFERENT["top_k"] = lambda ids: lax.top_k(ids, 2, is_stable=False)[1]


def model_of(f, floats):
    return quantize(lambda p, ids, x: (x @ p["w"], f(ids)), PARTS, [(IDS, X)], floats=floats, progress=False)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", DIFFERENT)
def test_integers_that_may_differ_are_named(name):
    for floats, end in (("xla", 'floats="exact" has no rule for '), ("exact", ", for which there is no rule")):
        model = model_of(DIFFERENT[name], floats)
        line = str(model).splitlines()[-1]
        assert line.startswith("no single answer is promised: ")
        assert end in line
        assert name.split()[0] in {node.rpartition("_")[0] for node in model.by_xla}


@pytest.mark.rare
@pytest.mark.parametrize("name", ["shard_map", "reduce_window"])
def test_models_of_exact_floats_run_what_has_no_rule(name):
    for f in (DIFFERENT[name], sharded(lambda ids: ids + 1)):
        model = model_of(f, "exact")
        assert np.array_equal(jax.jit(model.apply)(model.params, IDS, X)[1], f(IDS))


SAME = {
    "a look-up": lambda ids: jnp.where(ids < 0, ids + 8, ids) % 8 + ids // 3,
    "sorts": lambda ids: (jnp.argsort(ids), lax.sort((ids, ids + 1), num_keys=2, is_stable=False), lax.top_k(ids, 2)),
    "scatters": lambda ids: (ZEROS.at[ids].add(ids), ZEROS.at[ids].max(ids), ZEROS.at[ids[0]].set(1)),
    "random numbers": lambda ids: random(ids, "threefry2x32"),
    "reductions": lambda ids: (jnp.cumsum(ids), jnp.max(ids), jnp.argmax(ids), jnp.any(ids > 1), jnp.sum(ids)),
    "zeros around": lambda ids: jnp.pad(ids, 1),
    "bits": lambda ids: (ids << 2 | ids >> 1) ^ lax.population_count(~ids),
}


@pytest.mark.parametrize("name", SAME)
def test_integers_that_are_the_same_everywhere_are_not_named(name):
    counts = str(model_of(lambda ids: ids, "xla")).splitlines()[-2:]
    for floats in ("xla", "exact"):
        model = model_of(SAME[name], floats)
        assert model.by_xla == ()
        assert str(model).splitlines()[-2:] == counts


def test_loops_of_integers_that_print_have_one_answer():
    def printed(carry, i):
        jax.debug.print("{}", i)
        return carry + i, carry * 2

    assert model_of(lambda ids: lax.scan(printed, 0, ids)[1], "exact").by_xla == ()


def test_products_of_integers_keep_their_reason():
    model = model_of(lambda ids: ids @ ids, "xla")
    assert "its inputs are not floats" in str(model)
    assert len(model.by_xla) == 1


def moved(x, p, ids):
    """Each way to move or select elements."""
    parts = x.T, x[None], jnp.squeeze(x[:1], 0), x.reshape(-1), x[::-1], x[1:3], *jnp.split(x, 2), jnp.tile(x, (2, 2))
    sliced = lax.dynamic_slice(x, (ids[0], 0), (1, 4)), lax.dynamic_update_slice(x, p[:1], (ids[0], 0)), x[ids]
    joined = jnp.concatenate([x, x]), jnp.concatenate([x, p]), jnp.roll(x, 1), jnp.stack([x, x])
    padded = lax.pad(x, p[0, 0], [(1, 1, 1)] * 2), jnp.broadcast_to(x, (3, 4, 4))
    return *parts, *sliced, *joined, *padded, jnp.where(ids > 1, x, p), lax.optimization_barrier(x)


def test_floats_that_are_moved_or_selected_have_one_answer():
    def apply(p, ids, x):
        of_params = [jnp.where(ids[0] > 1, y, y[::-1]) for y in moved(p["v"], p["v"], ids)]
        return x @ p["w"], moved(x, p["v"], ids), of_params, jnp.pad(x, 1)

    assert quantize(apply, PARTS, [(IDS, X)], progress=False).by_xla == ()
