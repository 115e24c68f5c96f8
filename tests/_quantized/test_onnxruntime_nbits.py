"""MatMulNBits in floats, which computed weights need: within 1e-5 of the sum of the magnitudes.

The oracles are onnxruntime and a product in float64.
"""

import numpy as np
import pytest

from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely
from helpers.one_node import run
from jaxdml._quantized.onnxruntime.nbits import matmul_nbits

F = np.float32
ROWS = 40


def unpacked(packed, bits, count):
    """Elements of few bits, the lowest first, of rows of bytes."""
    each = np.unpackbits(packed, axis=1, bitorder="little").reshape(len(packed), -1, bits)
    return (each * 2 ** np.arange(bits)).sum(-1)[:, :count]


def dequantized(b, scales, zero_points, g_idx, size, bits, block_size):
    """The weights [N, K] in float64."""
    blocks, rows = -(-size // block_size), ROWS
    block = np.arange(size) // block_size if g_idx is None else g_idx
    if zero_points is None:
        zero_points = np.full((rows, blocks), 2 ** (bits - 1))
    elif zero_points.dtype == np.uint8:
        zero_points = unpacked(zero_points.reshape(rows, -1), bits, blocks)
    elements = unpacked(b.reshape(rows, -1), bits, size) - zero_points.reshape(rows, blocks)[:, block]
    return elements * scales.reshape(rows, blocks).astype(np.float64)[:, block]


def weights(rng, size, block_size, bits, zero_points, has_order):
    blocks, rows = -(-size // block_size), ROWS
    b = rng.integers(0, 256, (rows, blocks, block_size * bits // 8), dtype=np.uint8)
    scales = rng.uniform(0.01, 0.1, rows * blocks).astype(F)
    points = {
        None: None,
        "uint8": rng.integers(0, 256, rows * -(-blocks * bits // 8), dtype=np.uint8),
        "float32": rng.uniform(0, 2**bits, rows * blocks).astype(F),
    }[zero_points]
    return b, scales, points, rng.integers(0, blocks, size).astype(np.int32) if has_order else None


# K, block_size, bits, type of zero points, whether there is g_idx, whether there is a bias.
CASES = [
    (100, 16, 4, "uint8", False, True), (96, 64, 4, "float32", True, False), (128, 32, 4, None, True, True),
    (128, 32, 2, None, False, False), (200, 128, 2, "uint8", False, True), (100, 16, 2, "float32", False, False),
    (96, 64, 8, "uint8", False, True), (200, 128, 8, None, False, False), (128, 32, 4, None, False, False),
    (200, 128, 4, "float32", False, True), (96, 64, 4, "uint8", False, False), (1100, 512, 4, "uint8", False, True),
    (600, 1024, 8, None, False, False),
]  # fmt: skip


def arguments(rng, size, block_size, bits, zero_points, has_order, has_bias):
    of_b = weights(rng, size, block_size, bits, zero_points, has_order)
    return rng.normal(size=(2, 5, size)).astype(F), *of_b, rng.normal(size=ROWS).astype(F) if has_bias else None


def onnxruntimes(given, **attributes):
    return run("MatMulNBits", given, ["float32"], domain="com.microsoft", **attributes)[0]


def distance(got, other, a, w):
    """The greatest difference, in sums of the magnitudes of the products."""
    return np.max(np.abs(np.asarray(got, np.float64) - other) / (np.abs(a).astype(np.float64) @ np.abs(w).T))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", rest_rarely(CASES, 3), ids=str)
def test_products(case):
    size, block_size, bits, *_ = case
    given = arguments(np.random.default_rng(0), *case)
    a, *of_b, bias = given
    attributes = {"K": size, "N": ROWS, "bits": bits, "block_size": block_size}
    w = dequantized(*of_b, size, bits, block_size)
    got = matmul_nbits(*given, **attributes)
    assert (got.shape, got.dtype) == ((2, 5, ROWS), F)
    assert distance(got, a.astype(np.float64) @ w.T + (0 if bias is None else bias), a, w) < 1e-6
    assert distance(got, onnxruntimes(given, **attributes), a, w) < 1e-5


@pytest.mark.rare
def test_bytes_as_zero_points_beside_an_order():
    """onnxruntime 1.32 ignores them, and uses 8 for each; here they count."""
    attributes = {"K": 128, "N": ROWS, "bits": 4, "block_size": 32}
    a, b, scales, zero_points, g_idx, _ = given = arguments(np.random.default_rng(1), 128, 32, 4, "uint8", True, False)
    w = dequantized(b, scales, zero_points, g_idx, 128, 4, 32)
    assert distance(matmul_nbits(*given, **attributes), a.astype(np.float64) @ w.T, a, w) < 1e-6
    without = dequantized(b, scales, None, g_idx, 128, 4, 32)
    assert distance(onnxruntimes(given, **attributes), a.astype(np.float64) @ without.T, a, without) < 1e-6


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ((96, 32, 8, "float32", False, False), "8-bit weights with floating-point zero points"),
        ((96, 32, 2, "float32", True, False), "not supported for 2-bit quantization with floating-point zero points"),
        ((1024, 512, 4, None, True, False), "g_idx does not support block_size > 256"),
        ((1024, 512, 2, None, False, False), "2-bit MatMulNBits block_size must not exceed 256"),
    ],
)
def test_what_onnxruntime_refuses(case, words):
    size, block_size, bits, *_ = case
    a, *of_b, _ = given = arguments(np.random.default_rng(4), *case)
    attributes = {"K": size, "N": ROWS, "bits": bits, "block_size": block_size}
    w = dequantized(*of_b, size, bits, block_size)
    assert distance(matmul_nbits(*given, **attributes), a.astype(np.float64) @ w.T, a, w) < 1e-6
    with pytest.raises(Exception, match=words):
        onnxruntimes(given, **attributes)


def test_two_bits_beside_an_order():
    """Each element has the scale of its block; onnxruntime 1.32 computes other numbers in every run."""
    attributes = {"K": 128, "N": ROWS, "bits": 2, "block_size": 32}
    a, *of_b, _ = given = arguments(np.random.default_rng(5), 128, 32, 2, None, True, False)
    w = dequantized(*of_b, 128, 2, 32)
    assert distance(matmul_nbits(*given, **attributes), a.astype(np.float64) @ w.T, a, w) < 1e-6


def test_floats_of_16_bits():
    """a, scales and bias of float16 are widened, and the result is rounded to float16."""
    attributes = {"K": 100, "N": ROWS, "bits": 4, "block_size": 16}
    a, b, scales, zero_points, g_idx, bias = arguments(np.random.default_rng(3), *CASES[0])
    halves = a.astype(np.float16), b, scales.astype(np.float16), zero_points, g_idx, bias.astype(np.float16)
    wide = tuple(x.astype(F) if x is not None and x.dtype == np.float16 else x for x in halves)
    got = matmul_nbits(*halves, **attributes)
    assert_same_bits(got, np.asarray(matmul_nbits(*wide, **attributes)).astype(np.float16))
