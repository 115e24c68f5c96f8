"""Histograms against counting and NumPy on the raw data: counts, percentiles, least squares."""

import functools

import jax
import numpy as np
import pytest

from helpers.compare import assert_same_bits, assert_same_values
from jaxdml.ptq._grids.observers import LeastSquares, Percentile

RNG = np.random.default_rng(15)
BATCHES = (RNG.normal(0, 1, (6, 40, 5)) * np.exp2(RNG.integers(-12, 12, (6, 1, 1)))).astype(np.float32)
update = jax.jit(lambda observer, x: observer.update(x))  # one program for each observer and shape


def after(observer, batches):
    for x in batches:
        observer = update(observer, x)
    return observer


def expected_counts(values, exponent, bins):
    """From the definition of a bin, in float64."""
    steps = np.ceil(np.abs(values.astype(np.float64)) * bins / 2.0**exponent)
    index = np.where(values > 0, bins + steps, bins - steps).astype(int)
    return np.bincount(index.reshape(-1), minlength=2 * bins + 1)


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1), [3, 5, 0, 1, 4, 2]], ids=str)
def test_counts_are_those_of_all_data_at_once_whatever_the_order(order):
    """Batches that differ by 2**24 in size, so that the range grows in some orders and not in others."""
    observer = after(LeastSquares(bins=256), BATCHES[order])
    assert 2.0 ** (int(observer.exponent) - 1) < np.abs(BATCHES).max() <= 2.0 ** int(observer.exponent)
    assert_same_values(observer.counts, expected_counts(BATCHES, int(observer.exponent), 256))
    assert (observer.low, observer.high) == (BATCHES.min(), BATCHES.max())


def test_the_range_of_a_histogram_is_as_small_as_the_data_allow():
    for largest, exponent in ((1.0, 0), (-1.0, 0), (1 + 2**-23, 1), (6, 3), (2.0**-90, -90), (3e38, 128), (0, -100)):
        observer = update(LeastSquares(bins=64), np.float32([largest, 0, largest / 2]))
        assert observer.exponent == exponent
        assert_same_values(observer.counts, expected_counts(np.float32([largest, 0, largest / 2]), exponent, 64))
    for tiny in (2.0**-120, 2.0**-126, -(2.0**-126)):
        batches = np.full((2, 3), [[tiny], [0.3e38]], np.float32)
        for order in (batches, batches[::-1]):
            counts = after(LeastSquares(bins=64), order).counts
            assert counts[64 + int(np.sign(tiny))] == 3, "a number that is not 0 is not in the bin of zeros"


def test_bins_need_be_no_power_of_two():
    observer = after(Percentile(bins=37), BATCHES)
    assert_same_bits(observer.counts, after(Percentile(bins=37), BATCHES[::-1]).counts)
    assert observer.counts.sum() == BATCHES.size


def test_more_ones_are_counted_than_a_float32_counts_one_by_one():
    observer = update(Percentile(bins=2), np.ones(2**24 + 64, np.int8))
    assert observer.counts.tolist() == [0, 0, 0, 0, 2**24 + 64]


N = 20_000
NORMAL = RNG.normal(0, 1, N)
DATA = {
    "normal": NORMAL,
    "relu": np.maximum(NORMAL, 0),
    "gelu": NORMAL * (1 + np.tanh(0.8 * (NORMAL + 0.045 * NORMAL**3))),
    "one large": np.r_[NORMAL, 60],
    "one large on each side": np.r_[NORMAL, -300, 20],
    "relu, one large": np.r_[np.maximum(NORMAL, 0), 100],
    "heavy tails": RNG.standard_t(2.5, N),
    "skewed": RNG.lognormal(0, 1.5, N),
    "negative": -RNG.lognormal(0, 1, N),
    "far from 0": RNG.normal(10, 0.1, N),
    "two places": np.r_[NORMAL * 0.05, RNG.normal(20, 0.1, N // 50)],
    "whole numbers": RNG.integers(-3, 9, N),
    "one value": np.full(N, 5.3),
    "zeros": np.zeros(N),
    "four values": np.asarray([-1, 2, 3.5, -6]),
}
DATA = {name: x.astype(np.float32) for name, x in DATA.items()}


@functools.cache
def seen(name):
    return after(LeastSquares(), [DATA[name]])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("percentile", [99.99, 99.0, 75.0, 100])
def test_percentile_is_that_of_numpy_within_a_bin(percentile):
    for name, x in DATA.items():
        observer = Percentile(percentile=percentile, **vars(seen(name)))
        low, high = observer.range(np.uint8)
        width = 2.0 ** int(observer.exponent) / 2048
        expected = np.percentile(x.astype(np.float64), [100 - percentile, percentile])
        np.testing.assert_allclose([low, high], expected, rtol=0, atol=width, err_msg=name)
        assert x.min() <= low <= high <= x.max(), name
        if percentile == 100:
            assert (low, high) == (x.min(), x.max()), name


def errors(x, lows, highs, dtype):
    """Mean squared errors of x on the grids of many ranges, from the definition."""
    limits, x = np.iinfo(dtype), x[:, np.newaxis].astype(np.float64)
    lows, highs = np.minimum(lows, np.float64(0)), np.maximum(highs, np.float64(0))
    scales = (highs - lows) / (limits.max - limits.min)
    zero_points = np.clip(np.rint(limits.min - lows / scales), limits.min, limits.max)
    quantized = np.clip(np.rint(x / scales) + zero_points, limits.min, limits.max)
    return (((quantized - zero_points) * scales - x) ** 2).mean(0)


FRACTIONS = np.r_[np.linspace(0.1, 1, 46), 2.0 ** -np.arange(4, 10, 0.25)]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [name for name in DATA if name != "zeros"])
def test_least_squares_is_close_to_the_best_of_all_ranges(name):
    x = DATA[name][-5000:]
    low, high = after(LeastSquares(), [x]).range("uint8")
    assert x.min() <= low <= high <= x.max()
    lows, highs = (np.unique(end * FRACTIONS) for end in (min(x.min(), 0), max(x.max(), 0)))
    ranges = [one.reshape(-1) for one in np.meshgrid(lows, highs)]
    best = min(errors(x, *part, "uint8").min() for part in np.array_split(np.stack(ranges), 40, axis=1))
    received = errors(x, low, high, "uint8")
    assert received <= 1.02 * best + 1e-12 * x.var()


def test_least_squares_clips_what_is_rare():
    """Clipping the few largest of a million values costs less than wider steps for all of them."""
    x = RNG.normal(0, 1, 1_000_000).astype(np.float32)
    low, high = after(LeastSquares(), [x]).range("int8")
    received, widest = (errors(x, low, high, "int8") for low, high in ((low, high), (x.min(), x.max())))
    assert received < 0.9 * widest


def test_least_squares_of_16_bits_is_no_worse_than_the_widest():
    """Steps are then far narrower than bins."""
    for name in ("normal", "relu", "gelu", "heavy tails"):
        x = DATA[name]
        received, widest = (errors(x, *ends, "uint16") for ends in (seen(name).range("uint16"), (x.min(), x.max())))
        assert received <= 1.02 * widest, name


def test_least_squares_of_zeros():
    assert tuple(seen("zeros").range(np.uint8)) == (0, 0)
