"""A comparison detects every difference, and its failure is short however large the arrays are."""

import ml_dtypes
import numpy as np
import pytest

from helpers.compare import assert_same_bits, assert_same_values

X = np.arange(12, dtype=np.int8).reshape(3, 4)


def failure(compare, actual, expected, *case):
    with pytest.raises(AssertionError) as error:
        compare(actual, expected, *case)
    return str(error.value)


def test_a_failure_says_how_many_elements_differ_and_shows_three():
    other = X.copy()
    other[1:] += 1
    for compare in (assert_same_bits, assert_same_values):
        assert failure(compare, X, other, "a case").splitlines() == [
            "8 of 12 elements of int8 of shape (3, 4) differ, in a case; the first:",
            "  [1, 0]: np.int8(4), expected np.int8(5)",
            "  [1, 1]: np.int8(5), expected np.int8(6)",
            "  [1, 2]: np.int8(6), expected np.int8(7)",
        ]
    large = np.zeros((1000, 1000), np.float32)
    assert len(failure(assert_same_bits, large, large + 1)) < 300


@pytest.mark.parametrize(
    ("actual", "expected", "differ_in_value"),
    [
        (X, X.astype(np.int16), False),
        (X, X.reshape(4, 3), True),
        (np.float32([0.0]), np.float32([-0.0]), False),
        (np.float32([1, np.nan]), np.float32([1, 2]), True),
        (np.float32([1e-45]), np.float32([0]), True),
        (X.astype(ml_dtypes.int4), -X.astype(ml_dtypes.int4), True),
        (np.asarray(3, ml_dtypes.bfloat16), np.asarray(4, ml_dtypes.bfloat16), True),
        (np.asarray(["a"]), np.asarray(["b"]), True),
        (X > 3, X > 4, True),
    ],
)
def test_a_difference_is_seen(actual, expected, differ_in_value):
    failure(assert_same_bits, actual, expected)
    if differ_in_value:
        failure(assert_same_values, actual, expected)
    else:
        assert_same_values(actual, expected)


def test_what_is_the_same():
    other_nan = np.uint32([0x7FC00001]).view(np.float32)
    assert_same_bits(np.float32([np.nan]), other_nan)
    for x in (X, X.astype(ml_dtypes.int4), np.asarray(3, ml_dtypes.bfloat16), np.asarray(["a"]), X[:, ::2], X[:0]):
        assert_same_bits(x, x.copy())
    assert_same_values(X[0, :1], 0)
    assert_same_values(X.astype(np.float32), X.tolist())
