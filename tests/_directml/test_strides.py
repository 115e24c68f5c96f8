"""Strides that make two elements share an address, against counting."""

import numpy as np

from helpers.descs import case
from jaxdml._directml.strides import is_nested, is_packed, may_overlap


def test_overlaps_are_found_exactly():
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(5000):
        rank = int(rng.integers(1, 5))
        sizes = tuple(int(size) for size in rng.integers(1, 6, rank))
        strides = tuple(int(stride) for stride in rng.integers(0, rng.choice([3, 12, 40, 200]), rank))
        places = sum(stride * index for stride, index in zip(strides, np.indices(sizes), strict=True))
        overlap = len(np.unique(places)) < places.size
        assert may_overlap(sizes, strides) == overlap, (sizes, strides)
        seen.add((overlap, is_nested(sizes, strides)))
    assert seen == {(True, False), (False, False), (False, True)}


def test_overlaps_of_large_views_are_decided_at_once():
    """Where a decision would take too long, the answer is yes, so that no write can collide."""
    any_strides = tuple(int(stride) for stride in np.random.default_rng(0).integers(2**30, 2**32, 8))
    for sizes, strides, overlap in (
        ((2**16, 2**16 - 1), (2**31 - 1, 2**31), False),
        ((2**16, 2**16), (2**31 - 1, 2**31), False),
        ((2**16, 2**16), (2**16 - 1, 2**16), False),
        ((2**16, 2**16 + 1), (2**16, 2**16 - 1), True),
        ((2**31, 2, 3), (2**32 - 1, 3, 2), True),  # across 2**62 addresses: too far to decide
        ((16,) * 8, any_strides, True),
        ((1,) * 100 + (3, 2), (0,) * 100 + (2, 3), False),
    ):
        with case(sizes, strides):
            assert may_overlap(sizes, strides) == overlap


def test_only_strides_that_are_taken_decide_whether_a_tensor_is_packed():
    """The stride of a dimension of size 1 is never taken; that of a dimension of size 2 is taken once."""
    assert is_packed((2, 1, 3), None)
    assert is_packed((2, 1, 3), (3, 3, 1))
    assert is_packed((2, 1, 3), (3, 99, 1))
    assert not is_packed((2, 1, 3), (4, 3, 1))
    assert not is_packed((3, 2), (2, 0))
