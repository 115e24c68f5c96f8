"""Quantization and dequantization by blocks: all values of small types, and cases by hand; against the oracle."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from _operators.integer_and_block_cases import FOUR_BITS, NARROW
from helpers.marks import rarely_on_xla
from helpers.modes import assert_same
from jaxdml import reference

pytestmark = rarely_on_xla

SCALES = (1.0, 0.25, 0.1, 1 / 3, 3.7e-3, -0.5, 300.0, 1e-39, 0.0, -0.0, np.inf, -np.inf, np.nan)


@functools.cache
def jitted_function(function, *statics):
    return jax.jit(function, static_argnames=statics)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_dequantize_every_value(dtype):
    """Every value with every zero point of its type, by every scale of a list, one value per block."""
    limits = jnp.iinfo(dtype)
    every = np.arange(limits.min, limits.max + 1).astype(dtype)
    x, zero_points = np.broadcast_to(every, (len(every),) * 2), every[:, None]
    for scale in (np.float32(SCALES), np.float32(SCALES).astype(np.float16)):
        for one in scale:
            arguments = (x, np.broadcast_to(one, (1, 1)), zero_points)
            assert_same(one, dml.dequantize(*arguments), reference.dequantize(*arguments))
            for zero_point in (None, every[0], every[-1]):
                zero_point = None if zero_point is None else np.asarray(zero_point)
                got = jitted_function(dml.dequantize)(every, np.asarray(one), zero_point)
                assert_same(one, got, reference.dequantize(every, np.asarray(one), zero_point))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_quantize_ties_and_ends(dtype):
    """Every tie, values next to it, and values far out of range, with every zero point of its type."""
    limits = jnp.iinfo(dtype)
    every = np.arange(limits.min, limits.max + 1).astype(dtype)
    steps = np.float32(np.arange(2 * limits.min - 3, 2 * limits.max + 4) / 2)
    x = np.concatenate([steps, np.nextafter(steps, np.float32(np.inf)), np.nextafter(steps, np.float32(-np.inf)),
                        np.float32([np.nan, np.inf, -np.inf, 1e38, -1e38, 1e-40, -0.0])])  # fmt: skip
    for scale in SCALES:
        with np.errstate(all="ignore"):
            values = np.broadcast_to(x * np.float32(scale), (len(every), len(x)))
        arguments = (values, np.full((1, 1), scale, np.float32), every[:, None])
        expected = reference.quantize(*arguments)
        assert_same(scale, dml.quantize(*arguments), expected)
        assert_same(scale, jitted_function(dml.quantize)(*arguments), expected)
        arguments, options = (values[0], np.float32(scale)), {"output_dtype": dtype}
        got = jitted_function(dml.quantize, "output_dtype")(*arguments, **options)
        assert_same(scale, got, reference.quantize(*arguments, **options))


def test_parameters_of_different_blocks():
    """4 and 6 blocks of 12: each element has the scale and the zero point of its own block."""
    x = np.arange(24, dtype=np.uint8).reshape(2, 12)
    scale, zero_point = np.float32([[1, 2, 4, 8]]), np.uint8([[0, 1, 2, 3, 4, 5], [9, 8, 7, 6, 5, 4]])
    by_hand = (x.astype(np.float32) - np.repeat(zero_point, 2, 1)) * np.repeat(scale, 3, 1)
    assert_same("blocks", dml.dequantize(x, scale, zero_point), by_hand)
    assert_same("blocks", dml.quantize(by_hand, scale, zero_point), x)


def test_four_bits_are_types_of_jax():
    for dtype in FOUR_BITS:
        got = dml.quantize(np.float32([1, 2]), 1.0, output_dtype=dtype)
        assert got.dtype == dtype
        assert dml.dequantize(got, 1.0).tolist() == [1, 2]
