"""Which cases of tests with many cases run: in `make test`, and in each part of the rare cases."""

import collections
import random

import pytest

FEW = 3  # cases of a test; where a test has no more rare cases, all are in each part


def mark_the_rest_of_samples(items):
    """Of tests that are marked as sampled, the cases that `make test` leaves out become rare."""
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
    """The rare cases that belong to other parts; what is not rare belongs to all parts."""
    rare = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("rare"):
            rare[item.nodeid.split("[")[0]].append(item)
    many = [cases for cases in rare.values() if len(cases) > FEW]
    return [case for cases in many for place, case in enumerate(cases) if place % parts != number]
