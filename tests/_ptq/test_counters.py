"""Loops that slice arrays by a counter become scans over the slices, which quantization reads as layers or steps."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.extend.core import Literal

import jaxdml as dml
from _ptq.quantized import decibels, in_floats
from helpers.compare import assert_same_bits
from jaxdml.ptq import quantize
from jaxdml.ptq._trace.counters import over_slices

RNG = np.random.default_rng(0)
W, B = RNG.normal(size=(4, 32, 32)).astype(np.float32) / 6, RNG.normal(size=(3, 4, 32)).astype(np.float32)
X = RNG.normal(size=(5, 32)).astype(np.float32)


def layer(h, w, b=0.0):
    return jnp.tanh(h @ w + jnp.broadcast_to(b, h.shape))


# Models --------------------------------------------------------------------------------------------------------------


def scanned(params, x):
    w, b = params
    return lax.scan(lambda h, each: (layer(h, *each), None), x, (w, b))[0]


def by_fori_loop(params, x):
    w, b = params
    return lax.fori_loop(0, 4, lambda i, h: layer(h, w[i], b[i]), x)


def by_numbers(params, x):
    w, b = params
    at = lambda w, i: lax.dynamic_index_in_dim(w, i, keepdims=False)  # noqa: E731
    return lax.scan(lambda h, i: (layer(h, at(w, i), at(b, i)), None), x, jnp.arange(4))[0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [{}, {"weights": jnp.int4, "block_size": 32}], ids=["int8", "int4"])
@pytest.mark.parametrize("apply", [by_fori_loop, by_numbers])
def test_a_model_is_that_of_a_scan_over_the_weights(apply, options):
    params = W, B[1]
    expected, model = (quantize(each, params, [X], progress=False, **options) for each in (scanned, apply))
    assert_same_bits(model.apply(model.params, X), expected.apply(expected.params, X))
    assert re.sub(r"input_\d", "input", str(model)) == re.sub(r"input_\d", "input", str(expected))


def over_time(w, x):
    return lax.fori_loop(0, x.shape[1], lambda t, h: jnp.tanh((h + x[:, t]) @ w[0]), jnp.zeros((x.shape[0], 32)))


@pytest.mark.rare
def test_loops_over_data_stay_as_they_are():
    """They keep sums of floats in floats, and run at all lengths and batches."""
    model = quantize(over_time, W, [RNG.normal(size=(8, 6, 32)).astype(np.float32)], progress=False)
    assert "dynamic_slice" in str(model)
    for shape in ((1, 1, 32), (2, 3, 32)):
        x = RNG.normal(size=shape).astype(np.float32)
        assert decibels(model.apply(model.params, x), in_floats(over_time, W, x)) > 25


# Loops in floats: the scan over slices computes what the loop computes -----------------------------------------------


def rewritten(function, *arguments):
    """The results of the scan that ends a function, of the scan that replaces it, and the shapes of its sequences."""
    jaxpr = jax.make_jaxpr(function)(*arguments)
    given = dict(zip(jaxpr.jaxpr.invars, arguments, strict=True))
    *before, scan = jaxpr.jaxpr.eqns
    iotas = {eqn.outvars[0]: np.arange(*eqn.params["shape"]) for eqn in before if eqn.primitive.name == "iota"}
    known = [np.asarray(atom.val) if isinstance(atom, Literal) else iotas.get(atom) for atom in scan.invars]
    inputs = [given[atom] if value is None else value for atom, value in zip(scan.invars, known, strict=True)]
    weights = jaxpr.jaxpr.invars[:-1]
    are_read = [var in jaxpr.jaxpr.outvars for var in scan.outvars]
    made = over_slices(scan, known, [any(atom is each for each in weights) for atom in scan.invars], are_read)
    if made is None:
        return None
    (inner,) = [each for each in jax.make_jaxpr(made)(*inputs).eqns if each.primitive.name == "scan"]
    values = scan.primitive.bind(*inputs, **scan.primitive.get_bind_params(dict(scan.params)))
    sequences = [atom.aval.shape for atom, var in zip(inner.invars, inner.params["jaxpr"].jaxpr.invars, strict=True)
                 if atom.aval.ndim != var.aval.ndim]  # fmt: skip
    pairs = zip(are_read, values, made(*inputs), strict=True)
    _, expected, received = zip(*(each for each in pairs if each[0]), strict=True)
    return expected, received, sequences


def loop(step, first=0, last=4):
    return lambda w, x: lax.fori_loop(first, last, lambda i, h: step(w, i, h), x)


def numbered(step, numbers, **options):
    return lambda w, x: lax.scan(lambda h, i: (step(w, i, h), h), x, numbers(), **options)


def carried(step, start, by, **options):
    """A loop that carries a counter, and stacks it; nothing reads its last value."""

    def step_of(state, w):
        i, h = state
        return (i + (by(h) if callable(by) else by), step(w, i, h)), i

    def looped(w, x):
        first = start() if callable(start) else jnp.asarray(start)
        (_, h), stacked = lax.scan(lambda state, _: step_of(state, w), (first, x), length=4, **options)
        return h, stacked

    return looped


def indexed(w, i, h):
    return layer(h, w[i])


def stepping(new):
    """A loop of two steps that carries two integers, and slices by the first."""

    def step_of(w):
        return lambda state, _: ((*new(*state[:2]), layer(state[2], w[state[0]])), None)

    return lambda w, x: lax.scan(step_of(w), (jnp.int32(1), jnp.int32(0), x), length=2)[0][2]


def of_results(step):
    """A scan over numbers that stacks results of their own."""
    return lambda w, x: lax.scan(lambda h, i: (layer(h, w[i]), step(w, i, h)), x, jnp.arange(4))


@jax.jit
def row_of(w, i):
    return w[i]


WEIGHTS, TABLE, NUMBERS = (4, 32, 32), (4, 3, 32), (4,)
SLICED = {
    "fori_loop": (loop(indexed), W, [WEIGHTS]),
    "some of the layers": (loop(indexed, 1, 3), W, [(2, 32, 32)]),
    "along the second axis": (loop(lambda w, i, h: h + w[:, i].sum(0, keepdims=True)), B, [TABLE]),
    "a slice of two equations": (loop(lambda w, i, h: layer(h, w[i]) + w[i][:1]), W, [WEIGHTS]),
    "a counter that is read": (loop(lambda w, i, h: layer(h, w[i]) * i), W, [NUMBERS, WEIGHTS]),
    "an iota": (numbered(indexed, lambda: jnp.arange(4)), W, [WEIGHTS]),
    "an iota, from the last to the first": (numbered(indexed, lambda: jnp.arange(4), reverse=True), W, [WEIGHTS]),
    "results of steps": (of_results(lambda w, i, h: jnp.sin(h) + w[i][:1]), W, [WEIGHTS]),
    "numbers as results": (of_results(lambda w, i, h: i * i), W, [NUMBERS, WEIGHTS]),
    "an iota in the body": (loop(lambda w, i, h: layer(h, w[i], jnp.arange(32.0)[None])), W, [WEIGHTS]),
    "a call that slices": (loop(lambda w, i, h: layer(h, row_of(w, i)) + row_of(w, i)[:1]), W, [WEIGHTS]),
    "a counter in floats": (loop(lambda w, i, h: layer(h, w[i]) + (i * np.float32(3e38)) * 2), W, [NUMBERS, WEIGHTS]),
    "a table of three": (loop(lambda w, i, h: layer(h, w[lax.select_n(i, *map(jnp.int32, range(3)))]), 0, 3), W,
                         [(3, 32, 32)]),
    "a negative counter": (carried(lambda w, i, h: layer(h, w[i]), -4, 1), W, [NUMBERS, WEIGHTS]),
    "a counter with an offset": (carried(lambda w, i, h: layer(h, w[i - 2]), 2, 1), W, [NUMBERS, WEIGHTS]),
    "twice a counter": (carried(lambda w, i, h: layer(h, w[2 * i - 3 - i]), 3, 1), W, [NUMBERS, WEIGHTS]),
    "a scan in reverse": (carried(lambda w, i, h: layer(h, w[i]), 3, -1, reverse=True), W, [NUMBERS, WEIGHTS]),
}  # fmt: skip
AS_THEY_ARE = {
    "out of range": (loop(indexed, 0, 6), W),
    "before the first": (loop(indexed, -6, 0), W),
    "in another order": (loop(lambda w, i, h: layer(h, w[3 - i])), W),
    "every second": (loop(lambda w, i, h: layer(h, w[2 * i]), 0, 2), W),
    "of other sizes": (loop(lambda w, i, h: layer(h, w[i]) + w[i, :1]), W),
    "two places": (loop(lambda w, i, h: layer(h, w[i]) + w[i - 1, :1], 1, 4), W),
    "the whole array": (loop(lambda w, i, h: layer(h, w[i]) + w.sum()), W),
    "two rows at a time": (loop(lambda w, i, h: layer(h, lax.dynamic_slice(w, (i, 0, 0), (2, 32, 32))[0]), 0, 3), W),
    "the whole array as a result": (of_results(lambda w, i, h: w), W),
    "the same row several times": (loop(lambda w, i, h: layer(h, w[jnp.full(5, i)].mean(0))), W),
    "a float counter": (carried(lambda w, i, h: layer(h, w[i.astype(int)]), np.float32(0), 1.5), W),
    "several counters in an array": (carried(lambda w, i, h: layer(h, w[i[0]]), lambda: jnp.arange(3), 1), W),
    "a counter that is multiplied": (stepping(lambda i, j: (i * 1, j)), W),
    "a counter that takes turns with another": (stepping(lambda i, j: (j + 1, i)), W),
    "a counter that is returned": (lambda w, x: lax.scan(
        lambda state, _: ((state[0] + 1, indexed(w, *state)), None), (jnp.int32(0), x), length=4)[0], W),
    "data": (lambda w, x: lax.fori_loop(0, 4, lambda i, h: jnp.tanh(h @ w[0] + x[i][None]), x), W),
    "an update": (loop(lambda w, i, h: layer(h, lax.dynamic_update_slice(w, h[None, :1], (i, 0, 0))[0])), W),
    "by two counters": (loop(lambda w, i, h: h + w[i, i][None]), W),
    "a part of a row": (loop(lambda w, i, h: h + lax.dynamic_slice(w, (i, 0, 0), (1, 1, 32))[0]), W),
    "no steps": (loop(indexed, 0, 0), W),
    "a counter that data change": (carried(indexed, np.int32(0), lambda h: h[0, 0].astype(np.int32)), W),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", SLICED)
def test_results_of_loops_over_slices(name):
    function, w, sequences = SLICED[name]
    expected, received, found = rewritten(function, w, X)
    for one, other in zip(expected, received, strict=True):
        assert_same_bits(other, one)
    assert sorted(found) == sorted(sequences)


def test_an_index_that_all_steps_share():
    """The index of an axis of size 1; it is not sliced itself."""

    def row(w, i, j):
        return lax.dynamic_slice(w, (i, j, 0, 0), (1, 1, 32, 32), allow_negative_indices=False)[0, 0]

    def function(w, j, x):
        return lax.fori_loop(0, 4, lambda i, h: layer(h, row(w, i, j)), x)

    expected, received, found = rewritten(function, W[:, None], np.int32(0), X)
    assert_same_bits(received[0], expected[0])
    assert found == [(4, 1, 32, 32)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_other_loops_stay_as_they_are(name):
    function, w = AS_THEY_ARE[name]
    assert rewritten(function, w, X) is None


def test_a_number_that_all_steps_share_is_no_counter():
    """Although the loop carries a value that is this number plus a constant."""

    def function(w, x):
        j = jnp.int32(3)
        step = lambda state, i: ((layer(state[0], w[i] * j.astype(np.float32)), j + 1), None)  # noqa: E731
        return lax.scan(step, (x, j), jnp.arange(4))[0][0]

    expected, received, _ = rewritten(function, W, X)
    for one, other in zip(expected, received, strict=True):
        assert_same_bits(other, one)


def test_names_of_scopes_stay():
    def step(w, i, h):
        with jax.named_scope("mixed"):
            return jnp.tanh(h @ (h.T @ h)) + layer(h, w[i])

    assert "mixed" in str(quantize(loop(step), W, [X / 4], progress=False))


def by_states(w, x):
    """A state for each row of x, beside weights."""
    states = jnp.broadcast_to(w[:, :1], (4, x.shape[0], 32))
    return lax.fori_loop(0, 4, lambda i, h: layer(h + states[i], w[i]), x[:, 0])


def by_positions(w, x):
    """A table as long as x, beside weights."""
    table = jnp.broadcast_to(w[0, :1], (x.shape[1], 32))
    return lax.fori_loop(0, 2, lambda t, h: layer(h, w[t]) + table[t][None], x[:, 0])


def with_prints(w, x):
    """A scan over time, whose body has an equation without results."""

    def step(h, x):
        jax.debug.print("{}", h[0, 0])
        return jnp.tanh((h + x) @ w[0]), None

    return lax.scan(step, jnp.zeros_like(x[:, 0]), x.swapaxes(0, 1))[0]


@pytest.mark.rare
@pytest.mark.parametrize(
    ("apply", "sizes"), [(by_states, "8, 6, 32"), (by_positions, "8, length, 32"), (with_prints, "batch, length, 32")]
)
def test_sizes_of_inputs_may_change(apply, sizes):
    model = quantize(apply, W, [RNG.normal(size=(8, 6, 32)).astype(np.float32)], progress=False)
    for shape in ((1, 6, 32), (2, 3, 32)):
        x = RNG.normal(size=shape).astype(np.float32)
        assert decibels(model.apply(model.params, x), in_floats(apply, W, x)) > 20
    struct = jax.ShapeDtypeStruct(export.symbolic_shape(sizes), np.float32)
    assert jax.eval_shape(model.apply, model.params, struct).shape == (struct.shape[0], 32)


@pytest.mark.rare
def test_grids_of_the_function_stay():
    """A call of fake_quantize is one equation, before and after."""
    rounded = lambda w: dml.fake_quantize(w, np.float32(0.01), np.int8(0))  # noqa: E731
    model, expected = (
        quantize(apply, W, [X], progress=False)
        for apply in (loop(lambda w, i, h: layer(h, rounded(w[i]))), over(lambda w, h: layer(h, rounded(w))))
    )
    assert_same_bits(model.apply(model.params, X), expected.apply(expected.params, X))


def over(step):
    return lambda w, x: lax.scan(lambda h, each: (step(each, h), None), x, w)[0]
