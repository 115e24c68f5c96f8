"""Windows that contain only padding: against counting, for every small case."""

import itertools
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxdml._directml import window_checks
from jaxdml._directml.messages import RuleError
from jaxdml._directml.window_checks import check_windows_see_input

OPTIONS = ("window_size", "strides", "dilations", "start_padding", "end_padding")


def pooling(size, *options):
    each = {name: (option,) for name, option in zip(OPTIONS, options, strict=True)}
    return SimpleNamespace(operator="pooling", input_tensor=SimpleNamespace(sizes=(1, 1, size)), **each)


def blind_windows(size, window, stride, dilation, start, end):
    """The indices of the windows that contain no element of the input."""
    count = (size + start + end - (1 + (window - 1) * dilation)) // stride + 1
    first = (place * stride - start for place in range(count))
    return [place for place, at in enumerate(first) if not any(0 <= at + i * dilation < size for i in range(window))]


def test_windows_of_padding_alone_are_found_exactly():
    refused = stepped_over = right = 0
    for case in itertools.product(range(1, 5), range(1, 4), range(1, 4), range(1, 7), range(5), range(5)):
        size, window, _, dilation, start, end = case
        if 1 + (window - 1) * dilation > size + start + end:
            continue
        blind = blind_windows(*case)
        if not blind:
            check_windows_see_input(pooling(*case))
            right += 1
            continue
        with pytest.raises(RuleError) as error:
            check_windows_see_input(pooling(*case))
        place = int(str(error.value).split("window at index ")[1].split()[0])
        assert place in blind, case
        is_stepped_over = window > 1 and dilation > size
        assert (error.value.tensor == "Dilations") == is_stepped_over, case
        if not is_stepped_over:
            assert (error.value.tensor == "StartPadding") == (place * case[2] < start), case
        refused, stepped_over = refused + 1, stepped_over + is_stepped_over
    assert min(right, refused - stepped_over, stepped_over) > 300


def test_windows_that_step_over_the_input_are_counted():
    """Strides and dilations are large, so that the sums of quotients take several steps of Euclid's algorithm."""
    random = np.random.default_rng(0)
    for _ in range(1000):
        size, beyond, stride, start, count = (int(random.integers(1, most)) for most in (30, 70, 90, 40, 80))
        dilation = size + beyond
        expected = sum((place * stride - start) % dilation >= size for place in range(count))
        assert window_checks._misses(count, size, stride, dilation, start) == expected


def test_of_a_symbolic_size_the_first_window_is_looked_at():
    (size,) = jax.export.symbolic_shape("h")
    check_windows_see_input(pooling(size, 3, 2, 1, 2, 9))
    check_windows_see_input(pooling(size, 3, 7, 3, 0, 0))  # a window of 7 elements, in steps of 7
    with pytest.raises(RuleError, match="the window at index 0 of the output covers only padding"):
        check_windows_see_input(pooling(size, 3, 2, 1, 3, 0))
