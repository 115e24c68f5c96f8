"""Dynamic quantization: ranges by hand, and NaN in several places."""

import functools

import jax
import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.marks import rarely_on_xla
from helpers.modes import assert_same
from jaxdml import reference

pytestmark = rarely_on_xla


@functools.cache
def jitted_function(function, *statics):
    return jax.jit(function, static_argnames=statics)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("values", "scale", "zero_points"),
    [
        ([0, 0, 0], 1, (0, -128)),
        ([-0.0], 1, (0, -128)),
        ([510], 2, (0, -128)),
        ([-510], 2, (255, 127)),
        ([[-510]], 2, (255, 127)),
        ([-100, 155], 1, (100, -28)),
        ([1e-38, -1e-39], 1, (0, -128)),  # the range is flushed, or its scale
        ([np.nan, 1], np.nan, (0, -128)),
        ([1, -np.nan, np.inf], np.nan, (0, -128)),
        ([np.inf, -3], np.inf, (0, -128)),
        ([3e38, -3e38], np.inf, (0, -128)),
    ],
)
def test_ranges_by_hand(values, scale, zero_points):
    x = np.float32(values)
    for dtype, zero_point in zip((np.uint8, np.int8), zero_points, strict=True):
        for function in (dml.dynamic_quantize_linear, jitted_function(dml.dynamic_quantize_linear, "output_dtype")):
            got = function(x, output_dtype=dtype)
            assert got._fields == ("output", "output_scale", "output_zero_point")
            assert_same_bits(got.output_scale, np.full((1,) * x.ndim, scale, np.float32))
            assert_same_bits(got.output_zero_point, np.full((1,) * x.ndim, zero_point, dtype))
            assert_same(values, tuple(got), reference.dynamic_quantize_linear(x, output_dtype=dtype))


def test_where_the_nan_lies_does_not_matter():
    for size, place in ((7, 6), (100, 0), (70_001, 70_000), (200_000, 65_536)):
        x = np.linspace(-1, 1, size, dtype=np.float32)
        x[place] = np.nan
        got = dml.dynamic_quantize_linear(x)
        assert np.isnan(got.output_scale).all()
        assert not np.asarray(got.output).any()
        assert got.output_zero_point[0] == 0
