"""What of a list of parameters each run takes, and what is left to `make test-all`."""

import pytest


def rest_rarely(values, count):
    """The values as parameters; those behind the first `count` are marked as rare."""
    values = list(values)
    return values[:count] + [pytest.param(value, marks=pytest.mark.rare) for value in values[count:]]
