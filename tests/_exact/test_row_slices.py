"""Programs on rows that read slices of columns, or have several results."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.native_calls import native_calls, needs_native
from jaxdml.reference import floats

pytestmark = needs_native
RNG = np.random.default_rng(3)


def array(*shape):
    return (RNG.standard_normal(shape) * 3).astype(np.float32)


def gates(x, h, c):
    """The gates of an LSTM, and its next states."""
    i, f, g, o = (a + b for a, b in zip(jnp.split(x, 4, -1), jnp.split(h, 4, -1), strict=True))
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return c, jax.nn.sigmoid(o) * jnp.tanh(c)


def gated(x):
    up, gate = jnp.split(x, 2, -1)
    return up * jax.nn.silu(gate)


def biased(x, bias):
    return gated(x + bias)


def softmax_of_columns(x):
    return jax.nn.softmax(x[..., 5:38], -1)


def overlapping(x):
    return jnp.exp(x[:, :40]) * jnp.tanh(x[:, 3:43]) + x[:, 7:47]


def across(x):
    """Slices along the other axis of a transposed array, as vmap makes them of gates with a bias."""
    columns = x.T
    return jnp.tanh((columns[:30] + columns[30:60, :1]).T) + x[:, 60:90]


CASES = {
    "gates": (gates, array(9, 132), array(9, 132), array(9, 33)),
    "gates of one row": (gates, array(1, 256), array(1, 256), array(1, 64)),
    "gates of long rows": (gates, array(2, 4 * 2100), array(2, 4 * 2100), array(2, 2100)),
    "a gated perceptron": (gated, array(3, 5, 98)),
    "a bias before the parts": (biased, array(4, 6, 96), array(4, 6, 96)),
    "a bias of each row": (biased, array(4, 6, 96), array(4, 6, 1)),
    "a bias of one row": (biased, array(24, 96), array(1, 96)),
    "reduced columns": (softmax_of_columns, array(7, 3, 50)),
    "overlapping columns": (overlapping, array(9, 50)),
    "a mask": (lambda x, mask: jnp.where(mask[:, 3:60], x[:, 4:61], 0) * 2, array(20, 64), array(20, 64) > 0),
}


def assert_bits_of_xla(f, *arguments):
    got = jax.jit(f)(*arguments)
    with dml.use_kernels("xla"):
        wanted = jax.jit(lambda *given: f(*given))(*arguments)
    jax.tree.map(assert_same_bits, got, wanted)


@pytest.mark.parametrize("name", CASES)
def test_one_program_reads_slices_without_copies(name):
    function, *arguments = CASES[name]
    f = dml.exact(function)
    assert native_calls(f, *arguments) == ["rows"]
    copied = re.findall(r"f32\[([\d,]+)\]\S* slice\(", jax.jit(f).lower(*arguments).compile().as_text())
    assert not copied
    assert_bits_of_xla(f, *arguments)


def test_gates_have_the_bits_of_the_reference_in_every_mode():
    x, h, c = array(3, 8, 132), array(3, 8, 132), array(3, 8, 33)
    parts = [floats.add(a, b) for a, b in zip(np.split(x, 4, -1), np.split(h, 4, -1), strict=True)]
    i, f, o = (floats.logistic(parts[place]) for place in (0, 1, 3))
    wanted_c = floats.add(f * c, i * floats.tanh(parts[2]))
    wanted = wanted_c, o * floats.tanh(wanted_c)
    exact = dml.exact(gates)
    stacked = tuple(np.moveaxis(each, 0, 1) for each in (x, h, c))
    for got in (
        jax.jit(exact)(x, h, c),
        jax.vmap(exact)(x, h, c),
        tuple(jnp.moveaxis(each, 1, 0) for each in jax.jit(jax.vmap(exact, 1, 1))(*stacked)),
        lax.scan(lambda _, each: (0, exact(*each)), 0, (x, h, c))[1],
    ):
        jax.tree.map(assert_same_bits, tuple(map(np.asarray, got)), wanted)


def of_overlapping_parts(x):
    y = jnp.tanh(x)
    return jnp.exp(y[:, :40]) * jnp.exp(y[:, 3:43])


def of_sorted_parts(x):
    up, gate = jnp.split(jnp.tanh(x), 2, -1)
    return jnp.sort(up), jnp.sort(gate)


def of_parts_and_all(x):
    y = jnp.tanh(x)
    return jnp.exp(y[:, :40]), jnp.sort(y)


@pytest.mark.parametrize(
    ("f", "count"), [(of_overlapping_parts, 2), (of_sorted_parts, 1), (of_parts_and_all, 2)], ids=lambda x: str(x)[:30]
)
def test_a_function_is_computed_once_unless_only_its_parts_are_read(f, count):
    x = array(9, 80)
    assert native_calls(dml.exact(f), x) == ["rows"] * count
    assert_bits_of_xla(dml.exact(f), x)


# Several results -----------------------------------------------------------------------------------------------------


def test_a_result_that_is_read_elsewhere_is_one_of_the_program():
    def f(x):
        y = jnp.exp(x)
        z = jnp.tanh(y) * 2
        return y, z, jnp.sort(z)

    x = array(20, 40)
    assert native_calls(dml.exact(f), x) == ["rows"]
    assert_bits_of_xla(dml.exact(f), x)


def test_a_program_does_not_compute_what_it_needs_from_elsewhere():
    """The sorted values are an operand of the last product, so the program of the product cannot compute them first."""

    def f(x):
        y = jnp.exp(x)
        return jnp.sort(y) * jnp.tanh(y)

    x = array(20, 40)
    assert native_calls(dml.exact(f), x) == ["rows", "rows"]
    assert_bits_of_xla(dml.exact(f), x)


def test_equations_that_the_kernel_cannot_run_read_a_result_of_a_program():
    """The kernel has no instruction that repeats the sum of a row before its maximum is taken."""

    def f(x):
        y = x[:, :20] + 1
        total = jnp.sum(jnp.minimum(y, 3), -1, keepdims=True)
        z = y / (1 + jnp.abs(y))
        return jnp.max(jnp.broadcast_to(total, y.shape), -1, keepdims=True), z

    x = array(20, 40)
    assert native_calls(dml.exact(f), x) == ["rows"]
    assert_bits_of_xla(dml.exact(f), x)


def test_a_narrow_and_a_wide_result():
    def f(x):
        mean = jnp.mean(x, -1, keepdims=True)
        return mean, jnp.exp(x - mean)

    x = array(20, 40)
    assert native_calls(dml.exact(f), x) == ["rows"]
    assert_bits_of_xla(dml.exact(f), x)


def test_repeated_values_and_truth_values_are_no_results():
    """The kernel writes neither a row for several rows, nor truth values."""

    def f(x, row):
        repeated, mask = jnp.broadcast_to(row, x.shape), x > 0
        return repeated, mask, jnp.where(mask, jnp.exp(x) * repeated, 0)

    arguments = array(20, 40), array(1, 40)
    assert native_calls(dml.exact(f), *arguments) == ["rows"]
    assert_bits_of_xla(dml.exact(f), *arguments)


def test_the_number_of_results_is_limited():
    """A slot holds each result until the program ends, and there are 64 slots."""

    def f(x):
        results = [x]
        for _ in range(70):
            results.append(jnp.tanh(results[-1]))
        return results

    x = array(20, 40)
    assert 8 <= len(native_calls(dml.exact(f), x)) <= 10
    assert_bits_of_xla(dml.exact(f), x)


def test_transposes_that_undo_each_other_are_removed():
    x = array(40, 90)
    f = dml.exact(across)
    assert native_calls(f, x) == ["rows"]
    assert " transpose(" not in jax.jit(f).lower(x).compile().as_text()
    assert_bits_of_xla(f, x)


def test_a_function_of_a_transposed_array_stays_in_the_program_that_reads_it():
    f = dml.exact(lambda x: jax.nn.softmax(x.T * 2, -1))
    assert native_calls(f, array(40, 30)) == ["rows"]
    assert_bits_of_xla(f, array(40, 30))


def test_few_elements_run_natively_if_many_functions_read_them():
    def f(x, count):
        for _ in range(count):
            x = jnp.tanh(x)
        return x

    x = array(1, 64)
    assert native_calls(lambda x: dml.exact(lambda x: f(x, 3))(x), x) == []
    assert native_calls(lambda x: dml.exact(lambda x: f(x, 4))(x), x) == ["rows"]


@pytest.mark.rare
def test_a_long_chain_before_a_split():
    def f(x):
        for place in range(1200):
            x = x + jnp.float32(place)
        a, b = jnp.split(x, 2, -1)
        return jnp.tanh(a) * b

    assert jax.eval_shape(dml.exact(f), np.ones((4, 8), np.float32)).shape == (4, 4)
