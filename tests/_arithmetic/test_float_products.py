"""Products of floats: the bits of the reference, exact sums of many terms, and rows whose weight is 0."""

import jax
import numpy as np
import pytest

from helpers.compare import assert_same_bits
from helpers.marks import rarely_on_xla, rest_rarely
from helpers.modes import UNOPTIMISED
from jaxdml._arithmetic.float_products import OF_ROWS, OF_VALUES, OF_WEIGHTS, product_of_rows, weighted_sums
from jaxdml.reference import attention as reference

RNG = np.random.default_rng(0)
F = np.float32
rows, sums = (jax.jit(f, compiler_options=UNOPTIMISED) for f in (product_of_rows, weighted_sums))


def floats(*shape):
    return RNG.normal(size=shape).astype(F)


@rarely_on_xla
def test_products_of_rows(kernels):
    """Rows of all magnitudes, with zeros, subnormals, infinities and NaN."""
    a, b = floats(3, 5, 70) * np.exp(floats(3, 5, 1) * 20), floats(3, 9, 70) * np.exp(floats(3, 9, 1) * 10)
    a[0, 0], a[0, 1, 3], a[0, 2, 2], a[1, 0], b[0, 0], b[1, 1] = 0, np.nan, -np.inf, 3e38, 1e-39, b[1, 1] * F(1e-30)
    assert_same_bits(rows(a, b), reference.product_of_rows(a, b))


@rarely_on_xla
def test_weighted_sums(kernels):
    weights, values = np.exp(floats(3, 5, 70) * 5), floats(3, 70, 12) * np.exp(floats(3, 70, 1) * 5)
    weights[:, :, ::7], weights[1, 2], weights[2, 2, 2], weights[0, :, 9] = 0, 0, np.nan, 1e-41
    values[:, 7], values[:, 9], values[1, 14, 1], values[2, 0], values[1, 1, 1] = np.nan, np.inf, -np.inf, 3e38, np.inf
    assert_same_bits(sums(weights, values), reference.weighted_sums(weights, values))


def test_rows_without_weight_add_nothing():
    """Rows of weight 0 may hold any values, in any place; a subnormal weight counts as 0."""
    weights, values = np.exp(floats(2, 3, 40)), floats(2, 40, 8)
    wanted = reference.weighted_sums(weights[:, :, :30], values[:, :30])
    weights[:, :, 30:35], weights[:, :, 35:] = 0, -1e-40
    values[:, 30:] = F([1e30, np.nan, np.inf, -np.inf, 0, 1, np.nan, 1e38, np.inf, 2])[:, None]
    assert_same_bits(sums(weights, values), wanted)
    assert_same_bits(sums(np.zeros_like(weights), values), np.zeros((2, 3, 8), F))


def integers(kind, count):
    """Rows of integers that rounding does not change: the largest, then those with the largest planes; both signs."""
    x = np.full(count, (kind.most >> 16) - 1 << 16 | 0x7F7F, F)
    x[0] = kind.most
    return np.stack([x, -x])[None]


@pytest.mark.rare
@pytest.mark.parametrize("more", rest_rarely((0, 1), 1))
def test_sums_of_a_whole_part_are_exact(more):
    """One more term begins another part."""
    a = integers(OF_ROWS, OF_ROWS.terms + more)
    assert_same_bits(rows(a, a), reference.product_of_rows(a, a))
    weights, columns = (integers(kind, OF_VALUES.terms + more)[0] for kind in (OF_WEIGHTS, OF_VALUES))
    values = np.stack([np.full_like(columns[0], OF_VALUES.most), *columns], -1)
    terms = weights.astype(np.int64)[:, None] * columns.astype(np.int64)
    right = sum(part.sum(-1).astype(F) for part in np.split(terms, [OF_VALUES.terms], -1))
    assert_same_bits(sums(weights, values)[:, 1:], right)


@pytest.mark.rare
def test_long_sums():
    """Sums of three parts, the last of which is incomplete."""
    a, b = np.exp(floats(1, 3, 70_000) * 3), floats(1, 70_000, 4)
    assert_same_bits(sums(a, b), reference.weighted_sums(a, b))
    assert_same_bits(rows(a, b.swapaxes(1, 2)), reference.product_of_rows(a, b.swapaxes(1, 2)))


@pytest.mark.rare
@pytest.mark.parametrize("has_outliers", [False, True])
def test_accuracy(has_outliers):
    """At least 130 dB against float64, and 120 dB for weighted sums of rows with outliers."""
    a, b, weights, values = floats(8, 128), floats(300, 128), np.exp(floats(8, 700) * 2), floats(700, 128)
    if has_outliers:
        a[:, :2] *= 60
        b[:, :2] *= 60
        values[:, :2] *= 60
        values[:3] *= 50
    for got, right, least in (
        (rows(a, b), a.astype(float) @ b.T.astype(float), 130),
        (sums(weights, values), weights.astype(float) @ values.astype(float), 120 if has_outliers else 130),
    ):
        assert 10 * np.log10(np.sum(right**2) / np.sum((np.asarray(got) - right) ** 2)) > least
