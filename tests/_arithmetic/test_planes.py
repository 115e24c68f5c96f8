"""Integers in planes of int8: their planes add up to them, and the planes' sums are combined in one order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.compare import assert_same_bits
from helpers.modes import UNOPTIMISED
from jaxdml._arithmetic import planes


@pytest.mark.parametrize(("count", "largest"), [(1, 127), (2, 16_319), (3, 2_088_895)])
def test_planes_add_up(count, largest):
    assert planes.largest(count) == largest
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.integers(-largest, largest, 1000, endpoint=True), [-largest, largest, 0, 63, 64, -64, -65]])
    x = np.clip(x, -largest, largest)
    split = [np.asarray(plane) for plane in planes.split(jnp.asarray(x, jnp.int32), count)]
    assert len(split) == count
    assert all(plane.dtype == np.int8 for plane in split)
    assert all(plane.min() >= -64 and plane.max() <= 63 for plane in split[1:])
    assert (sum(plane.astype(np.int64) * 128**place for place, plane in enumerate(reversed(split))) == x).all()
    combined = planes.combined([jnp.asarray(plane, jnp.int32) for plane in split])
    assert (np.asarray(combined) == x).all()


def test_sums_are_combined_as_floats():
    """Sums that exceed int32 when multiplied by 128, rounded after each plane."""
    sums = [np.int32(2**30 + 1), np.int32(-(2**30) - 77), np.int32(12_345_679)]
    expected = np.float32(sums[0])
    for each in sums[1:]:
        expected = np.float32(np.float64(expected) * 128 + np.float64(np.float32(each)))
    assert np.asarray(planes.combined([jnp.asarray(each) for each in sums])) == expected


def test_planes_of_eight_bits():
    largest = 127 * 2**20 + 16
    x = np.concatenate(
        [np.random.default_rng(0).integers(-largest, largest, 1000), [-largest, largest, 127, 128, -129]]
    )
    split = [np.asarray(plane) for plane in planes.split(jnp.asarray(x, jnp.int32), 4, 8)]
    assert all(plane.dtype == np.int8 for plane in split)
    assert (sum(plane.astype(np.int64) * 256**place for place, plane in enumerate(reversed(split))) == x).all()


def test_sums_are_combined_exactly_and_rounded_once():
    """Sums of all magnitudes, ties and their neighbors, of both signs; each is split at random."""
    rng, ties = np.random.default_rng(0), np.array([2**24 + 1, 2**24 + 3, 2**25 + 2, 2**23 + 1, 1])[:, None]
    near = (ties << np.arange(37)) + np.array([-1, 0, 1])[:, None, None]
    wanted = np.concatenate([near.ravel(), rng.integers(0, 2**62, 2000) >> rng.integers(0, 62, 2000), [0, 2**62]])
    wanted = np.concatenate([wanted, -wanted])
    for count in (5, 6):
        rest, sums = wanted, []
        for _ in range(count - 1):  # the last planes have random sums, the first one has the rest
            some = rng.integers(-(2**31) + 256, 2**31, len(wanted))
            sums.insert(0, some - (some - rest) % 256)
            rest = (rest - sums[0]) // 256
        sums.insert(0, rest)
        combined = jax.jit(planes.exactly_combined, compiler_options=UNOPTIMISED)(
            [jnp.asarray(each, jnp.int32) for each in sums]
        )
        assert_same_bits(combined, wanted.astype(np.float32))
