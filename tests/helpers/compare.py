"""Comparisons of arrays whose failures say how many elements differ and show the first three."""

import numpy as np


def assert_same_bits(actual, expected, case=""):
    """Compares types, shapes and bits. Any NaN equals any other NaN, because the processor chooses its bits."""
    __tracebackhide__ = True
    actual, expected = np.asarray(actual), np.asarray(expected)
    got, wanted = ((x.dtype, x.shape) for x in (actual, expected))
    if got != wanted:
        raise AssertionError(f"{in_words(*got)}, expected {in_words(*wanted)}{of(case)}")
    if actual.dtype.kind in "OSUM":  # objects, text and dates are not numbers, and have no bits to compare
        fail_where(actual != expected, actual, expected, case)
        return
    bits = f"u{actual.dtype.itemsize}"
    fail_where((actual.view(bits) != expected.view(bits)) & ~both_nan(actual, expected), actual, expected, case)


def assert_same_values(actual, expected, case=""):
    """Compares shapes and values, but not types; a scalar `expected` stands for an array of that value."""
    __tracebackhide__ = True
    actual, expected = np.asarray(actual), np.asarray(expected)
    if expected.ndim and actual.shape != expected.shape:
        raise AssertionError(f"shape {actual.shape}, expected {expected.shape}{of(case)}")
    expected = np.broadcast_to(expected, actual.shape)
    fail_where((actual != expected) & ~both_nan(actual, expected), actual, expected, case)


def both_nan(actual, expected):
    return (actual != actual) & (expected != expected)


def in_words(dtype, shape):
    return f"{dtype} of shape {shape}"


def of(case):
    return f", in {case}" if str(case) else ""


def fail_where(differs, actual, expected, case):
    __tracebackhide__ = True
    if not differs.any():
        return
    first = [
        f"{list(map(int, place))}: {actual[tuple(place)]!r}, expected {expected[tuple(place)]!r}"
        for place in np.argwhere(differs)[:3]
    ]
    count = f"{np.count_nonzero(differs)} of {differs.size} elements of {in_words(actual.dtype, actual.shape)} differ"
    raise AssertionError("\n  ".join([f"{count}{of(case)}; the first:", *first]))
