"""Maxima, minima, sorting and indices: -0 < +0, NaN wins, and sorting is stable."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from helpers.compare import assert_same_bits
from jaxdml.reference import floats

ROWS = np.float32([
    [3, -1, 3, 2, -5], [0, -0.0, 0, -0.0, -0.0], [-0.0, 0, -1, 0, -2], [1, np.nan, 7, -np.nan, 2],
    [np.inf, -np.inf, 1, np.inf, 0],
    [-np.nan, -np.inf, -1, -2, -3], [-1, -0.0, -3, -0.0, -4], [1, 0, 3, -0.0, 4],
])  # fmt: skip


def largest(row):
    """By NumPy; -0 < +0, and NaN wins."""
    if np.isnan(row).any():
        return np.nan
    best = row.max()
    return best if best else (0.0 if not np.signbit(row[row == 0]).all() else -0.0)


LARGEST = np.float32([largest(row) for row in ROWS])
SMALLEST = np.float32([-largest(-row) for row in ROWS])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_largest_and_smallest(dtype):
    x = jnp.asarray(ROWS, dtype)

    def both(x):
        return jnp.max(x, -1), jnp.min(x, -1), lax.cummax(x, 1)[:, -1], lax.cummin(x, 1, reverse=True)[:, 0]

    for got, right in zip(jax.jit(dml.exact(both))(x), (LARGEST, SMALLEST) * 2, strict=True):
        assert_same_bits(got, right.astype(got.dtype))


def test_windows():
    x = jnp.asarray(ROWS)

    def both(x):
        options = ((1, 5), (1, 1), ((0, 0), (1, 1)))
        return (
            lax.reduce_window(x, -np.float32(np.inf), lax.max, *options),
            lax.reduce_window(x, np.float32(np.inf), lax.min, *options),
        )

    for got, right in zip(jax.jit(dml.exact(both))(x), (LARGEST, SMALLEST), strict=True):
        assert_same_bits(got[:, 1], right)


def test_a_window_of_padding_alone():
    got = dml.exact(lambda x: lax.reduce_window(x, -np.inf, lax.max, (1,), (1,), ((1, 0),)))(np.float32([3]))
    assert_same_bits(got, np.float32([-np.inf, 3]))


def test_windows_of_one_element_select():
    x = np.random.default_rng(0).standard_normal((1, 8, 9, 10), np.float32)
    x[0, 0, 0, :3] = np.nan, 1e-40, -np.inf
    for name, join in (("max", lax.max), ("min", lax.min)):
        end = np.float32(-np.inf if name == "max" else np.inf)

        def f(x, end=end, join=join):
            return lax.reduce_window(x, end, join, (1, 1, 1, 1), (1, 1, 2, 3), "VALID")

        assert "reduce-window" not in jax.jit(dml.exact(f)).lower(x).compile().as_text()
        wanted = floats.flushed(x)[:, :, ::2, ::3]
        assert_same_bits(jax.jit(dml.exact(f))(x), wanted)


def test_pairs_and_clamp():
    x, y = map(np.ravel, np.meshgrid(ROWS[2:6], ROWS[1]))
    larger, smaller, clamped = jax.jit(dml.exact(lambda x, y: (lax.max(x, y), lax.min(x, y), lax.clamp(y, x, y))))(x, y)
    pairs = np.stack([x, y], -1)
    assert_same_bits(larger, np.float32([largest(pair) for pair in pairs]))
    assert_same_bits(smaller, np.float32([-largest(-pair) for pair in pairs]))
    assert_same_bits(clamped, np.where(np.isnan(x), np.float32(np.nan), y))


def test_floats_are_compared_as_integers():
    """No document says which zero XLA's float maximum returns."""

    def every(x):
        return lax.max(x, x[::-1]), lax.min(x, x[::-1]), jnp.max(x, 0), jnp.min(x, 0), lax.clamp(x, x, x), lax.cummax(x)

    text = jax.jit(dml.exact(every)).lower(ROWS).as_text()
    found = re.findall(r"stablehlo\.(?:maximum|minimum|clamp) .*", text)
    assert found
    assert not [line for line in found if "f32" in line]


def test_places():
    got = jax.jit(dml.exact(lambda x: (jnp.argmax(x, -1), jnp.argmin(x, -1))))(ROWS)
    assert_same_bits(got[0], np.int32([0, 0, 0, 1, 0, 0, 1, 4]))
    assert_same_bits(got[1], np.int32([4, 0, 4, 1, 1, 0, 4, 1]))


def test_sorting_is_stable_and_puts_nan_last():
    def both(x):
        index = lax.broadcasted_iota(jnp.int32, x.shape, 1)
        return lax.sort((x, index), num_keys=1, is_stable=False)

    rows = np.tile(ROWS, 40)  # XLA sorts few values stably in any case
    _, places = jax.jit(dml.exact(both))(rows)
    right = [sorted(range(200), key=lambda i: (np.isnan(row[i]), 0 if np.isnan(row[i]) else row[i])) for row in rows]
    assert_same_bits(places, np.int32(right))


def test_the_top():
    values, places = jax.jit(dml.exact(lambda x: lax.top_k(x, 3)))(ROWS)

    def order(row):
        keys = [(-np.isnan(x).astype(int), 0 if np.isnan(x) else -x, np.signbit(x) if x == 0 else 0) for x in row]
        return sorted(range(5), key=lambda i: keys[i])[:3]

    right = np.int32([order(row) for row in ROWS])
    assert_same_bits(places, right)
    assert_same_bits(values, np.take_along_axis(ROWS, right, 1))


def test_the_next_number_in_float32():
    """Next to a zero, or to a subnormal number, is the smallest normal number."""
    rng, near_zero = np.random.default_rng(0), (np.arange(-9, 9) + 2**23).astype(np.int32).view(np.float32)
    special = np.float32([0, 1e-45, 1, 3.4028235e38, np.inf, np.nan])
    numbers = np.concatenate([near_zero, special, rng.integers(0, 2**31, 40, np.int32).view(np.float32)])
    x, y = map(np.ravel, np.meshgrid(*[np.concatenate([numbers, -numbers])] * 2))
    got = jax.jit(dml.exact(jnp.nextafter))(x, y)
    assert_same_bits(got, floats.nextafter(x, y))
    one_way = dml.exact(jnp.nextafter)(np.float32([0, -0.0, 1e-45, 2.0**-126, -(2.0**-126), 0]), np.float32(-0.0))
    assert_same_bits(one_way, np.float32([-0.0, -0.0, -0.0, 0, -0.0, -0.0]))
    other_way = dml.exact(jnp.nextafter)(np.float32([0, -0.0, -1e-45, -np.inf]), 1)
    assert_same_bits(other_way, np.float32([2.0**-126] * 3 + [-3.4028235e38]))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("to", [0, -0.0, np.inf, -np.inf, 1, -1, np.nan])
def test_the_next_number_in_16_bits(dtype, to):
    """float16 keeps its subnormal numbers."""
    x = np.arange(2**16, dtype=np.uint16).view(dtype)
    least = np.finfo(np.float32).smallest_normal if dtype == jnp.bfloat16 else np.float16(0)
    y = np.full_like(x, to)
    with np.errstate(all="ignore"):
        x = np.where(np.abs(x) < least, np.copysign(np.zeros_like(x), x), x)
        right = np.nextafter(x, y)
        left_zero = (x == 0) & (np.abs(right) > 0)
        right = np.where(np.abs(right) < least, np.copysign(left_zero * least, right).astype(dtype), right)
    got = jax.jit(dml.exact(lambda x, y: jnp.nextafter(x, y)))(x, y[:1])
    assert_same_bits(got, right)
