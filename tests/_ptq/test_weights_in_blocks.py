"""quantize_weights by blocks: the formula, the least squared error, and wrong calls."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits
from jaxdml.errors import PtqError
from jaxdml.ptq import quantize_weights

RNG = np.random.default_rng(0)
W = RNG.normal(size=(9, 100)).astype(np.float32)
W[2], W[3, :32] = 0, 0
W[4, :32], W[5, 32:64] = 2.0**-126, np.ldexp(W[5, 32:64], -126)  # scales at the smallest, and subnormal numbers
STEPS, TINY = {"int4": 7, "int8": 127}, np.float32(2.0**-126)
SHARES = [1 - step / 32 for step in range(16)]


def scale_of(largest, share):
    return max(np.float32(largest) * np.float32(share), TINY)


def flushed(x):
    return x if abs(x) >= TINY else np.float32(0)


def expected_of(block, steps, scale):
    return np.clip(np.rint(block / scale), -steps, steps)


def expected(w, size, dtype, method):
    """One block after the other."""
    steps, (rows, depth) = STEPS[dtype], w.shape
    integers, scales = np.zeros(w.shape, np.int8), np.ones((rows, -(-depth // size)), np.float32)
    for row in range(rows):
        for place, first in enumerate(range(0, depth, size)):
            block = w[row, first : first + size]
            block = np.where(np.abs(block) < TINY, np.float32(0), block)
            largest = np.float32(np.abs(block).max()) / np.float32(steps)
            largest = max(largest, TINY) if block.any() else np.float32(1)
            tried = [largest] if method == "minmax" else [scale_of(largest, share) for share in SHARES]

            def error(scale, block=block):
                total = np.float32(0)
                for x, q in zip(block, expected_of(block, steps, scale), strict=True):
                    off = flushed(x - flushed(np.float32(q) * scale))
                    total = flushed(total + flushed(off * off))
                return total

            scale = min(tried, key=error)
            integers[row, first : first + size] = expected_of(block, steps, scale)
            scales[row, place] = scale
    return integers.astype(dtype), scales


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", ["minmax", "mse"])
@pytest.mark.parametrize("dtype", STEPS)
def test_weights_are_as_defined_in_every_form(dtype, method):
    right = expected(W, 32, dtype, method)
    options = {"dtype": dtype, "block_size": 32, "method": method}
    for w, axis in ((W, 0), (W.T, 1), (W, -2), (W.T, -1), (jnp.asarray(W), 0), (jnp.asarray(W.T), 1)):
        got = quantize_weights(w, axis, **options)
        for one, other in zip(got, right, strict=True):
            assert isinstance(one, np.ndarray) == isinstance(w, np.ndarray)
            assert_same_bits(one, other)
    for one, other in zip(jax.jit(lambda w: quantize_weights(w, 0, **options))(W), right, strict=True):
        assert_same_bits(one, other)


def test_mse_has_less_error():
    def error(method):
        b, scale = quantize_weights(W, 0, "int4", block_size=16, method=method)
        padded = np.pad(b.astype(np.int8), ((0, 0), (0, 12)))
        return ((np.asarray(dml.dequantize(padded, scale))[:, :100] - W) ** 2).sum()

    assert error("mse") < 0.95 * error("minmax")


def test_many_rows_are_computed_in_parts():
    w = RNG.normal(size=(600, 300)).astype(np.float32)
    whole = quantize_weights(w, 0, "int4", block_size=64)
    for first in (0, 599):
        part = quantize_weights(w[first : first + 1], 0, "int4", block_size=64)
        for one, other in zip(part, whole, strict=True):
            assert_same_bits(one, other[first : first + 1])


def test_the_results_are_arguments_of_the_product():
    kernel = RNG.normal(size=(96, 8)).astype(np.float32)
    a = RNG.normal(size=(4, 96)).astype(np.float32)
    b, scale = quantize_weights(kernel, 1, jnp.int8, block_size=32)
    np.testing.assert_allclose(dml.matrix_multiply_blocks(a, b, scale), a @ kernel, atol=0.2)


def test_wrong_calls():
    for changes, text in (
        ({"block_size": 48}, "block_size is 48, expected None, 16, 32, 64, 128 or 256"),
        ({"block_size": 32.0}, "block_size is 32.0, expected None"),
        ({"axis": None}, "expected a matrix and the axis of its output channels: 1 for weights"),
        ({"w": W[None]}, "w has shape (1, 9, 100) and axis is 0"),
        ({"dtype": "int16"}, "dtype is int16, expected int4 or int8"),
        ({"dtype": "uint4"}, "dtype is uint4, expected int4 or int8"),
        ({"method": "max"}, "method is 'max', expected 'minmax' or 'mse'"),
        ({"block_size": None, "dtype": "int8", "method": "mse"}, "which is for blocks: give a block_size, such as 32"),
        ({"block_size": None}, "dtype is int4, expected int8 or int16; write block_size=32 for int4"),
        ({"axis": 2}, "axis is 2, expected an axis of w"),
    ):
        with pytest.raises(PtqError) as caught:
            quantize_weights(**{"w": W, "axis": 0, "dtype": "int4", "block_size": 32, **changes})
        assert text in str(caught.value)
    for kind in (np.asarray, jnp.asarray):
        wrong = W.copy()
        wrong[4, 50] = np.nan
        with pytest.raises(PtqError, match="w holds NaN or infinity in channel 4: training has diverged"):
            quantize_weights(kind(wrong), 0, "int4", block_size=32)


@pytest.mark.parametrize(("shape", "scales"), [((4, 0), (4, 0)), ((0, 4), (0, 1)), ((0, 0), (0, 0))])
def test_no_weights(shape, scales):
    for w in (np.zeros(shape, np.float32), jnp.zeros(shape)):
        integers, found = dml.ptq.quantize_weights(w, axis=0, dtype=jnp.int4, block_size=32)
        assert (integers.shape, found.shape) == (shape, scales)
