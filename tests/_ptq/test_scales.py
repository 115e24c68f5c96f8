"""Scales that are chosen for channels, from statistics of their values and from weights."""

import numpy as np
import pytest

from jaxdml.ptq._choose.edges import ChannelReader, Edge
from jaxdml.ptq._choose.scales import ENOUGH, LEAST, scales_of
from jaxdml.ptq._grids.channels import Channels

RANDOM = np.random.default_rng(0)
COUNT = 32
SIZES = np.exp(RANDOM.uniform(0, np.log(100), COUNT)).astype(np.float32)
WEIGHTS = RANDOM.standard_normal((COUNT, 24), np.float32)


def seen(sizes, count=1000, largest=3.0):
    """The statistics of normally distributed values with these deviations."""
    squares, number = np.square(sizes) * count, np.float32(count * len(sizes))
    return Channels(low=-largest * sizes, high=largest * sizes, squares=squares, count=number)


def scales(sizes, weights=WEIGHTS, groups=None, channels=None, **options):
    channels = np.arange(len(sizes)) if channels is None else channels
    reader = ChannelReader("w", "x", -1 if groups is None else 1, groups, channels)
    edge = Edge(max(channels) + 1, (reader,), shape=(1, len(sizes)))
    return scales_of([edge], {"w": weights}, {"x": seen(sizes, **options)})[0]


def test_scales_follow_sizes_of_values_and_of_weights():
    found = scales(SIZES)
    raw = np.sqrt(SIZES / np.sqrt(np.square(WEIGHTS).sum(1)))
    np.testing.assert_allclose(found, raw / np.median(raw), rtol=1e-5)


def test_factors_between_values_and_weights_become_scales():
    """Nothing else changes: divided values and multiplied weights are the same."""
    factors = np.exp(RANDOM.normal(0, 1, COUNT)).astype(np.float32)
    one, other = scales(SIZES), scales(SIZES * factors, WEIGHTS / factors[:, None])
    ratio = SIZES / one / (SIZES * factors / other)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)


def test_groups_are_those_of_a_convolution():
    filters = RANDOM.standard_normal((16, COUNT // 4, 3, 3)).astype(np.float32)
    dense = np.zeros((COUNT, 16 * 9), np.float32)
    for output in range(16):
        rows = np.arange(COUNT // 4) + output // 4 * (COUNT // 4)
        dense[rows, output * 9 : output * 9 + 9] = filters[output].reshape(COUNT // 4, 9)
    raw = np.sqrt(SIZES / np.sqrt(np.square(dense).sum(1)))
    np.testing.assert_allclose(scales(SIZES, filters, groups=4), raw / np.median(raw), rtol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        (np.ones(COUNT, np.float32), {}),  # nothing to gain
        (SIZES, {"count": ENOUGH - 1}),  # too few values
        (SIZES, {"weights": 0 * WEIGHTS}),
        (0 * SIZES, {}),
    ],
)
def test_where_channels_are_not_scaled(sizes, options):
    assert scales(SIZES, count=ENOUGH) is not None
    assert scales(sizes, **options) is None


def test_values_of_all_places_of_a_channel_count():
    """A flattened image has several places of each channel, of which each batch has a row."""
    sizes, weights, channels = np.repeat(SIZES, 4), np.repeat(WEIGHTS, 4, 0), np.repeat(np.arange(COUNT), 4)
    assert scales(sizes, weights, channels=channels, count=ENOUGH // 4) is not None
    assert scales(sizes, weights, channels=channels, count=ENOUGH // 4 - 1) is None


def test_channels_that_hardly_had_values_are_not_raised():
    """The next batch may have larger ones."""
    sizes = SIZES.copy()
    sizes[0], sizes[1] = 1e-6, 0
    found = scales(sizes)
    smallest = np.sqrt(LEAST * np.median(sizes[sizes > 0]) / np.sqrt(np.square(WEIGHTS[0]).sum()))
    raw = np.sqrt(sizes[2] / np.sqrt(np.square(WEIGHTS[2]).sum()))
    assert found[0] / found[2] == pytest.approx(smallest / raw, rel=1e-4)
    assert found[1] == 1


def test_the_largest_value_counts_where_it_tells_much_more():
    """Such as one large value among many small ones, which the mean square hides."""
    spread = np.where(np.arange(COUNT) % 8 == 0, 300.0, 3.0).astype(np.float32)
    ones = np.ones(COUNT, np.float32)
    plain = scales(ones)
    assert plain is None
    assert scales(ones, largest=spread)[0] > 5
