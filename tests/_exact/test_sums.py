"""Sums: how exact they are, that order changes nothing, and what infinities and NaN give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely
from jaxdml._exact import sums
from jaxdml.errors import ExactError
from jaxdml.reference import floats

RNG = np.random.default_rng(0)
sum_of = jax.jit(dml.exact(lambda x: jnp.sum(x, -1)))


def in_order(x):
    """The float32 sum, one addition after another."""
    return np.cumsum(x, -1, dtype=np.float32)[..., -1]


COUNTS = [2, 3, 5, 16, 63, 128, 129, 1000, 4096, 2**15, 2**16, 100_000, 2**18, 2**19 + 1, 2**20]


@pytest.mark.parametrize("count", rest_rarely(COUNTS, 10))
def test_no_sum_errs_more_than_one_in_order(count):
    """The largest errors over many rows of zero-mean data, and the bound that docs/exact_sums.md gives."""
    x = RNG.standard_normal((max(2**12 // count, 8), count)).astype(np.float32)
    right, got = x.astype(np.float64).sum(-1), np.asarray(sum_of(x))
    assert_same_bits(got, floats.reduce_sum(x), count)
    error, other = (np.abs(each - right).max() for each in (got, in_order(x)))
    assert error <= max(other, 2.0**-25 * np.abs(right).max())
    assert (np.abs(got - right) <= bound(x, right)).all()


def bound(x, right):
    """The largest error that docs/exact_sums.md allows."""
    count = x.shape[-1]
    k, e = min(22, 29 - int(np.log2(count))), np.frexp(np.abs(x).max(-1))[1]
    return count * 2.0 ** (e - 2 * k - 1) + 0.75 * np.spacing(np.abs(right).astype(np.float32))


@pytest.mark.parametrize("count", rest_rarely(COUNTS[1:], 7))
def test_means_err_as_sums_do_and_round_once_more(count):
    x = RNG.standard_normal((max(2**12 // count, 8), count)).astype(np.float32)
    total = x.astype(np.float64).sum(-1)
    got = np.asarray(jax.jit(dml.exact(lambda x: jnp.mean(x, -1)))(x))
    assert_same_bits(got, floats.div(floats.reduce_sum(x), np.float32(count)))
    rounding = 0.5 * np.spacing(np.abs(got))
    assert (np.abs(got - total / count) <= bound(x, total) / count + rounding).all()


def test_the_parts_of_a_sum_may_round_one_after_another():
    """The lower part rounds, then the sum of the parts: together by up to 0.75 ulp."""
    large, difference, small = RNG.uniform(1, 2, (3, 50_000))
    x = np.float32([large, difference * 2.0**-13 - large, small * 2.0**-24]).T
    right, got = x.astype(np.float64).sum(-1), np.asarray(sum_of(x))
    error = np.abs(got - right)
    assert (error <= bound(x, right)).all()
    assert (error > 0.6 * np.spacing(np.abs(right).astype(np.float32))).any()
    assert_same_bits(got, floats.reduce_sum(x))


def test_small_addends_count():
    """One integer would lose them: each is less than half a step of the largest."""
    x = np.full(4096, 2.0**-24, np.float32)
    x[0] = 1
    assert_same_bits(sum_of(x), np.float32(1 + 4095 * 2.0**-24))


def test_the_order_of_addends_changes_nothing():
    x = (RNG.standard_normal(3000) * np.exp(5 * RNG.standard_normal(3000))).astype(np.float32)
    assert {np.asarray(sum_of(RNG.permutation(x))).tobytes() for _ in range(5)} == {floats.reduce_sum(x).tobytes()}


inf, nan, huge = np.inf, np.nan, 3.4e38


@pytest.mark.parametrize(("row", "expected"), [
    ((1, inf, -2), inf), ((1, -inf, -huge), -inf), ((inf, -inf, 1), nan), ((nan, inf, 1), nan),
    ((-inf, -inf, huge), -inf),
    ((inf, inf, -huge), inf), ((nan, 1, 2), nan), ((huge, huge, 0), inf), ((-huge, -huge, 0), -inf),
    ((huge, huge, -huge), huge),
    ((0, -0.0, 0), 0), ((-0.0, -0.0, -0.0), 0), ((1e-45, 1e-45, 1e-45), 0), ((2e-38, -1.9e-38, 0), 0),
    ((1.7632416e-38, 1.7632416e-38, 0), 3.5264831e-38), ((1.1754944e-38, 0, 0), 1.1754944e-38),
    ((-1.1754944e-38, 0, 0), -1.1754944e-38),
])  # fmt: skip
def test_special_rows(row, expected):
    x = np.float32(row)
    with np.errstate(all="ignore"):
        assert_same_bits(sum_of(x), np.float32(expected))
        assert_same_bits(sum_of(x), floats.reduce_sum(x))


def test_sums_of_nothing_and_of_one():
    assert_same_bits(jax.jit(dml.exact(lambda x: x.sum(-1)))(np.zeros((3, 0), np.float32)), np.zeros(3, np.float32))
    assert_same_bits(
        jax.jit(dml.exact(lambda x: x.sum(-1)))(np.full((2, 1), -1.5, np.float32)), np.full(2, -1.5, np.float32)
    )


def test_running_sums_of_nothing():
    nothing = np.zeros((3, 0), np.float32)
    assert_same_bits(jax.jit(dml.exact(lambda x: jnp.cumsum(x, 1)))(nothing), nothing)


def test_several_axes_and_any_axis():
    x = RNG.standard_normal((4, 5, 6)).astype(np.float32)
    moved = np.moveaxis(x, 1, -1).reshape(4, 6, 5)
    assert_same_bits(jax.jit(dml.exact(lambda x: x.sum(1)))(x), floats.reduce_sum(moved))
    assert_same_bits(
        jax.jit(dml.exact(lambda x: x.sum((0, 2))))(x), floats.reduce_sum(np.moveaxis(x, 1, 0).reshape(5, 24))
    )


def test_running_sums_from_behind():
    x = RNG.standard_normal((3, 50)).astype(np.float32)
    got = jax.jit(dml.exact(lambda x: lax.cumsum(x, axis=1, reverse=True)))(x)
    assert_same_bits(got, floats.cumsum(x[:, ::-1])[:, ::-1])


def test_sums_of_windows_add_one_after_another():
    x = RNG.standard_normal((2, 9, 8)).astype(np.float32)
    options = ((1, 3, 2), (1, 2, 1), ((0, 0), (1, 1), (0, 1)))
    got = jax.jit(dml.exact(lambda x: lax.reduce_window(x, 0.0, lax.add, *options)))(x)
    padded = np.pad(x, options[2])
    rows = floats.add(floats.add(padded[:, 0:9:2], padded[:, 1:10:2]), padded[:, 2:11:2])
    assert_same_bits(got, floats.add(rows[:, :, :-1], rows[:, :, 1:]))


def test_windows_with_gaps():
    x = RNG.standard_normal((1, 7)).astype(np.float32)
    options = {"base_dilation": (1, 2), "window_dilation": (1, 3)}
    got = jax.jit(dml.exact(lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2), (1, 1), "VALID", **options)))(x)
    wide = np.zeros((1, 13), np.float32)
    wide[:, ::2] = x
    assert_same_bits(got, floats.add(wide[:, :-3], wide[:, 3:]))


def test_sums_of_half_precision_round_once_more():
    x = RNG.standard_normal((4, 300)).astype(np.float16)
    assert_same_bits(
        jax.jit(dml.exact(lambda x: x.sum(-1)))(x), floats.reduce_sum(x.astype(np.float32)).astype(np.float16)
    )


@pytest.mark.parametrize("function", [jnp.sum, jnp.cumsum])
def test_too_many_addends_are_an_error(function):
    words = r"a sum of more than 67,108,864 addends: sum parts, then the sums of the parts"
    with pytest.raises(ExactError, match=words):
        jax.eval_shape(dml.exact(function), jax.ShapeDtypeStruct((2**26 + 1,), jnp.float32))


@pytest.mark.parametrize("function", rest_rarely([lambda x: x[:, 1:].sum(1), lambda x: jnp.cumsum(x, 1)], 1))
def test_symbolic_sizes(function):
    exact = jax.jit(dml.exact(function))
    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape("m, n"), jnp.float32)
    exported = jax.export.export(exact)(shape)
    for size in (1, 2, 129, 257):  # the sum of a slice of size 1 has no addends
        x = RNG.standard_normal((2, size)).astype(np.float32)
        assert_same_bits(exported.call(x), exact(x))
    for special in (np.inf, -np.inf, np.nan):
        x[0, 3] = special
        assert_same_bits(exported.call(x), exact(x))
    integers = jax.export.export(exact)(shape.update(dtype=jnp.int32))
    assert_same_bits(integers.call(np.ones((8, 3), np.int32)), exact(np.ones((8, 3), np.int32)))


def test_the_count_of_two_symbolic_sizes_does_not_wrap():
    """The product of the sizes may be a small number modulo 2**32."""
    b = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b"), jnp.int8)
    exported = jax.export.export(jax.jit(lambda x: sums.known_count(x.shape * 2)))(b)
    for size, count in ((1, 1), (8192, 2**26), (9000, 81_000_000), (65536, 2**31 - 1), (65537, 2**31 - 1)):
        assert exported.call(np.zeros(size, np.int8)) == count


@pytest.mark.rare
@pytest.mark.parametrize("function", [jnp.sum, jnp.cumsum])
def test_too_many_addends_of_a_symbolic_size_give_nan(function):
    (n,) = jax.export.symbolic_shape("n")
    exported = jax.export.export(jax.jit(dml.exact(function)))(jax.ShapeDtypeStruct((n,), jnp.float32))
    assert exported.call(jnp.ones(2**26)).max() == 2**26
    assert np.isnan(exported.call(jnp.ones(2**26 + 1))).all()


@pytest.mark.rare
def test_windows_without_padding_over_an_open_size():
    """It may be smaller than the window, which then fits nowhere."""
    summed = dml.exact(lambda x: lax.reduce_window(x, 0.0, lax.add, (3,), (2,), "VALID"))
    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n"), np.float32)
    exported = jax.export.export(jax.jit(summed))(shape)
    for size in (1, 3, 8):
        x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
        assert_same_bits(exported.call(x), summed(x))
