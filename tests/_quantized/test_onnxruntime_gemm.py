"""QGemm's bias: its bits with each shape that broadcasts, and where a native kernel adds it."""

import jax
import numpy as np
import pytest

from helpers.compare import assert_same_bits
from helpers.native_calls import A, B, native_calls, needs_native
from jaxdml._quantized.onnxruntime.gemm import qgemm

ROWS, COLUMNS = A.shape[0], B.shape[1]
SCALES = np.random.default_rng(2).uniform(0.05, 0.2, COLUMNS).astype(np.float32)
OF_COLUMNS = {"one": (1,), "number": (), "columns": (COLUMNS,), "a row": (1, COLUMNS)}
OF_ROWS = {"rows": (ROWS, 1), "every element": (ROWS, COLUMNS)}
SHAPES = OF_COLUMNS | OF_ROWS


def bias_of(name):
    """With at least four numbers, the fourth makes sums wrap around."""
    bias = np.random.default_rng(3).integers(-(2**17), 2**17, SHAPES[name]).astype(np.int32)
    return np.where(np.arange(bias.size).reshape(bias.shape) == 3, np.int32(2**31 - 1), bias)


def multiplied(bias, a=A):
    return qgemm(a, np.float32(0.1), np.uint8(3), B, SCALES, None, bias, np.float32(20), np.uint8(128))


def expected(bias):
    """Each float operation rounds once."""
    sums = (A.astype(np.int64) - 3) @ B.astype(np.int64) + bias
    multiplier = np.float32(0.1) * SCALES / np.float32(20)
    return np.clip(np.rint(sums.astype(np.int32).astype(np.float32) * multiplier) + 128, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_of_a_bias(name):
    bias = bias_of(name)
    want = expected(bias)
    assert len(np.unique(want)) > 40
    for got in (multiplied(bias), jax.jit(multiplied)(bias)):
        assert_same_bits(got, want)


@pytest.mark.parametrize("of_a", [0, None])
def test_vmap_over_biases(of_a):
    """Products of one matrix b are merged only if they have one bias, too."""
    biases = np.stack([bias_of("columns"), -bias_of("columns")])
    a = A if of_a is None else np.stack([A, A])
    assert_same_bits(jax.vmap(multiplied, (0, of_a))(biases, a), np.stack([expected(bias) for bias in biases]))


def test_a_bias_of_another_type_is_converted():
    bias = np.arange(COLUMNS, dtype=np.int8)
    assert_same_bits(multiplied(bias), expected(bias.astype(np.int32)))


@needs_native
@pytest.mark.parametrize("name", SHAPES)
def test_the_kernel_that_multiplies_adds_the_bias_of_columns(name):
    """So no int32 sums leave the kernel."""
    program = jax.jit(multiplied).lower(bias_of(name)).compile().as_text()
    assert native_calls(multiplied, bias_of(name)) == ["matmul"]
    assert (f"s32[{ROWS},{COLUMNS}]" in program) == (name in OF_ROWS)
