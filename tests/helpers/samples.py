"""Which cases of tests with many cases run in `make test`, and how the rare tests are divided into parts."""

import collections
import random

import pytest


def mark_the_rest_of_samples(items):
    """Marks as rare the cases of sampled tests that `make test` leaves out."""
    sampled = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("rare"):
            sampled[item.nodeid.split("[")[0], item.callspec.params.get("kernels")].append(item)
    for (name, _), cases in sampled.items():
        count = cases[0].get_closest_marker("sampled").args[0]
        kept = random.Random(name).sample(cases, min(count, len(cases)))  # the same in every process
        for case in cases:
            if case not in kept:
                case.add_marker(pytest.mark.rare)


def outside_of_part(items, number, parts):
    """The rare tests of other parts. Rare tests are dealt to the parts in turn; all others belong to each part."""
    rare = [item for item in items if item.get_closest_marker("rare")]
    return {item for place, item in enumerate(rare) if place % parts != number}
