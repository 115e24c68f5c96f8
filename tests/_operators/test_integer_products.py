"""Products of integers: sums that exceed int32, floats that are rounded once, and all values of small types."""

import jax
import numpy as np
import pytest

import jaxdml as dml
from helpers.cases import BYTES
from helpers.marks import rarely_on_xla
from helpers.modes import assert_same
from jaxdml import reference
from jaxdml.reference import operators

pytestmark = rarely_on_xla


@pytest.mark.parametrize("a_dtype", BYTES)
@pytest.mark.parametrize("k", [33_025, 33_026, 70_000])
def test_products_of_bytes_are_modulo_2_to_the_32(a_dtype, k):
    """Every product is 255 * 255: int32 holds 33,025 of them."""
    limits = np.iinfo(a_dtype)
    a, b = np.full((2, k), limits.max, a_dtype), np.full((k, 3), 255, np.uint8)
    sums = np.full((2, 3), (k * 255 * 255 + 2**31) % 2**32 - 2**31, np.int32)
    zero_points = np.asarray(limits.min, a_dtype), np.uint8(0)
    assert_same(k, dml.matrix_multiply_integer(a, zero_points[0], b, zero_points[1]), sums)
    got = dml.matrix_multiply_integer_to_float(a, 1.0, zero_points[0], b, 1.0, zero_points[1])
    assert_same(k, got, sums.astype(np.float32))


@pytest.mark.rare
@pytest.mark.parametrize("k", [16_385, 1, 16_384, 140_000])
def test_products_of_words_are_whole(k):
    """All products are equal and as large as possible, of either sign: sums of up to 82 bits, rounded once."""
    ends = {np.int16: (-(2**15), 2**15 - 1), np.uint32: (0, 2**32 - 1), np.int32: (-(2**31), 2**31 - 1)}
    for a_dtype, b_dtype in ((np.int16, np.uint32), (np.int32, np.int32)):
        for a_end, b_end in np.ndindex(2, 2):
            values = [
                (dtype, ends[dtype][end], ends[dtype][1 - end]) for dtype, end in ((a_dtype, a_end), (b_dtype, b_end))
            ]
            (a, a_zero_point), (b, b_zero_point) = [(value, zero) for _, value, zero in values]
            exact = k * (a - a_zero_point) * (b - b_zero_point)
            arguments = (np.full((1, k), a, a_dtype), 1.0, a_dtype(a_zero_point), np.full((k, 1), b, b_dtype), 1.0)
            got = dml.matrix_multiply_integer_to_float(*arguments, b_dtype(b_zero_point))
            assert int(got[0, 0]) == int(operators._nearest(exact))
            assert abs(int(got[0, 0]) - exact) <= abs(exact) * 2.0**-24


def test_sums_next_to_ties():
    """One row of A holds the bits of a sum: ties between two float32 numbers, and one more and one less."""
    rng = np.random.default_rng(0)
    for shift in (1, 2, 7, 20, 37):
        kept = rng.integers(2**23, 2**24, 20).astype(object)
        for off in (-1, 0, 1):
            exact = [((int(value) << 1 | 1) << (shift - 1)) + off for value in kept]
            a = np.array([[value >> 31, value & (2**31 - 1)] for value in exact], np.int32)
            b = np.array([[2**31], [1]], np.uint32)
            got = dml.matrix_multiply_integer_to_float(a, 1.0, None, b, 1.0, None)[:, 0]
            assert [int(x) for x in np.asarray(got)] == [int(operators._nearest(value)) for value in exact]
            assert [int(np.float32(value)) for value in exact if value < 2**53] == [
                int(x) for x, value in zip(np.asarray(got), exact, strict=True) if value < 2**53
            ]


@pytest.mark.parametrize("dtype", BYTES)
def test_products_of_every_pair_of_bytes(dtype):
    """K is 1, so that each output is one product: all of a by all of b, minus zero points at either end."""
    limits, every = np.iinfo(dtype), np.arange(256)
    a, b = (every + limits.min).astype(dtype)[:, None], every.astype(np.uint8)[None, :]
    for zero_points in ((None, None), (dtype(limits.min), np.uint8(255)), (dtype(limits.max), np.uint8(0))):
        a_zero, b_zero = (0 if zero_point is None else int(zero_point) for zero_point in zero_points)
        expected = (a.astype(int) - a_zero) * (b.astype(int) - b_zero)
        got = dml.matrix_multiply_integer(a, zero_points[0], b, zero_points[1])
        assert_same("products", got, expected.astype(np.int32))
        got = dml.matrix_multiply_integer_to_float(a, 0.5, zero_points[0], b, 0.25, zero_points[1])
        assert_same("in floats", got, (expected * 0.125).astype(np.float32))


@pytest.mark.rare
def test_prepared_weights_go_into_every_product():
    rng = np.random.default_rng(1)
    for dtype in BYTES:
        a, b = rng.integers(0, 256, (5, 40), np.uint8), rng.integers(-90, 90, (40, 7)).astype(dtype)
        f, x = rng.integers(-90, 90, (6, 4, 3, 3)).astype(dtype), rng.integers(0, 256, (2, 8, 9, 9), np.uint8)
        prepared, prepared_filter = dml.prepare_matrix_multiply_b(b), dml.prepare_convolution_filter(f, group_count=2)
        for zero_point in (None, dtype(9)):
            whole = (a, np.uint8(3), b, zero_point)
            expected = reference.matrix_multiply_integer(*whole)
            assert_same("product", dml.matrix_multiply_integer(a, np.uint8(3), prepared, zero_point), expected)
            for words in (a, a.astype(np.int32)):
                arguments = (words, 0.1, words.dtype.type(3))
                right = reference.matrix_multiply_integer_to_float(*arguments, b, np.float32(0.2), zero_point)
                got = dml.matrix_multiply_integer_to_float(*arguments, prepared, np.float32(0.2), zero_point)
                assert_same("float", got, right)
            got = dml.convolution_integer(x, np.uint8(3), prepared_filter, zero_point, start_padding=1, group_count=2)
            right = reference.convolution_integer(x, np.uint8(3), f, zero_point, start_padding=1, group_count=2)
            assert_same("convolution", got, right)


def test_a_product_and_a_bias_are_rounded_one_by_one():
    """A fused multiply-add would round once: cases in which that gives another number."""
    rng = np.random.default_rng(2)
    a, b = rng.integers(0, 256, (64, 8), np.uint8), rng.integers(0, 256, (8, 64), np.uint8)
    scale = np.float32(0.1)
    exact = reference.matrix_multiply_integer(a, None, b, None).astype(np.float64) * np.float64(scale * scale)
    bias = -exact.astype(np.float32)
    arguments = (a, scale, None, b, scale, None, bias)
    expected = reference.matrix_multiply_integer_to_float(*arguments)
    fused = (exact + bias).astype(np.float32)
    assert (fused != expected).mean() > 0.5
    for function in (dml.matrix_multiply_integer_to_float, jax.jit(dml.matrix_multiply_integer_to_float)):
        assert_same("fused", function(*arguments), expected)
