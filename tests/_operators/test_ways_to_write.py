"""Other ways to write an argument: Python and NumPy numbers, other shapes of one form, options as an integer."""

import fractions
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from _operators.calls import GOOD, call, s8, steps, u8
from helpers.compare import assert_same_bits
from helpers.descs import (
    ADD,
    CONVOLUTION,
    CONVOLUTION_INTEGER,
    DEQUANTIZE,
    DEQUANTIZE_BLOCKS,
    DYNAMIC_QUANTIZE,
    MATRIX_MULTIPLY,
    MATRIX_MULTIPLY_INTEGER,
    MATRIX_MULTIPLY_TO_FLOAT,
    POOLING,
    QUANTIZE,
    QUANTIZE_BLOCKS,
)
from helpers.marks import rarely_on_xla

pytestmark = rarely_on_xla

U8 = np.dtype(np.uint8)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("operator", "changes", "plainly"),
    [
        (DEQUANTIZE, {"scale": math.nan}, {"scale": np.asarray(math.nan, np.float32)}),
        (DEQUANTIZE, {"scale": math.inf}, {"scale": np.asarray(math.inf, np.float32)}),
        (DEQUANTIZE, {"scale": np.float64(-math.inf)}, {"scale": np.asarray(-math.inf, np.float32)}),
        (DEQUANTIZE, {"scale": np.float32(math.inf)}, {"scale": np.asarray(math.inf, np.float32)}),
        (DEQUANTIZE, {"scale": 3.4e38}, {"scale": np.asarray(3.4e38, np.float32)}),
        (DEQUANTIZE, {"scale": np.float64(0.1)}, {"scale": np.asarray(0.1, np.float32)}),
        (DEQUANTIZE, {"scale": 2}, {"scale": np.asarray(2, np.float32)}),
        (DEQUANTIZE, {"scale": np.int64(2)}, {"scale": np.asarray(2, np.float32)}),
        (DEQUANTIZE, {"scale": fractions.Fraction(1, 3)}, {"scale": np.asarray(1 / 3, np.float32)}),
        (DEQUANTIZE, {"scale": np.float16(0.1)}, {"scale": np.asarray(0.1, np.float16)}),
        (DEQUANTIZE, {"scale": steps(1, 1, 1, 3)}, {"scale": np.stack([steps(3), steps(3)])}),
        (DEQUANTIZE, {"zero_point": 255}, {"zero_point": np.asarray(255, np.uint8)}),
        (DEQUANTIZE, {"zero_point": np.int64(255)}, {"zero_point": np.asarray(255, np.uint8)}),
        (DEQUANTIZE, {"zero_point": np.int8(7)}, {"zero_point": np.asarray(7, np.uint8)}),
        (DEQUANTIZE, {"zero_point": None}, {"zero_point": 0}),
        (QUANTIZE, {"zero_point": np.int8(-128)}, {"zero_point": np.asarray(-128, np.int8)}),
        (QUANTIZE, {"zero_point": -128, "output_dtype": np.int8}, {"zero_point": np.asarray(-128, np.int8)}),
        (
            QUANTIZE,
            {"zero_point": -32768, "output_dtype": np.int16, "feature_level": dml.FeatureLevel.JAXDML},
            {"zero_point": np.asarray(-32768, np.int16), "feature_level": dml.FeatureLevel.JAXDML},
        ),
        (QUANTIZE, {"zero_point": 3}, {"output_dtype": np.uint8}),
        (QUANTIZE, {"output_dtype": "uint8"}, {}),
        (QUANTIZE, {"output_dtype": dml.DataType.UINT8}, {}),
        (QUANTIZE, {"output_dtype": U8}, {}),
        (ADD, {"a_zero_point": 3, "b_zero_point": 3, "output_zero_point": 3}, {}),
        (ADD, {"output_zero_point": 3, "output_dtype": jnp.int8}, {"output_zero_point": np.asarray(3, np.int8)}),
        (ADD, {"a_zero_point": None, "b_zero_point": None}, {"a_zero_point": 0, "b_zero_point": 0}),
        (ADD, {"output_zero_point": None}, {"output_zero_point": 0}),
        (ADD, {"b_zero_point": -128}, {"b_zero_point": np.full((1, 1, 1), -128, np.int8)}),
        (MATRIX_MULTIPLY, {"b_scale": steps(6)}, {"b_scale": steps(1, 1, 6)}),
        (MATRIX_MULTIPLY, {"a_scale": steps(4, 1)}, {"a_scale": steps(1, 4, 1)}),
        (MATRIX_MULTIPLY, {"output_zero_point": np.int64(3)}, {}),
        (MATRIX_MULTIPLY, {"a_zero_point": None, "b_zero_point": None}, {"a_zero_point": 0, "b_zero_point": 0}),
        (CONVOLUTION, {"filter_zero_point": None, "bias": None}, {"filter_zero_point": 0}),
        (CONVOLUTION, {"strides": 2}, {"strides": (2, 2)}),
        (CONVOLUTION, {"strides": [2, 1]}, {"strides": (2, 1)}),
        (CONVOLUTION, {"dilations": np.array([1, 2])}, {"dilations": (1, 2)}),
        (CONVOLUTION, {"start_padding": np.int64(2)}, {"start_padding": (2, 2)}),
        (CONVOLUTION, {"group_count": np.int64(1)}, {}),
        (CONVOLUTION, {"filter_scale": steps(6)}, {"filter_scale": steps(1, 6, 1, 1)}),
        (
            CONVOLUTION,
            {"bias": np.arange(6, dtype=np.int32).reshape(1, 1, 6, 1, 1)},
            {"bias": np.arange(6, dtype=np.int32)},
        ),
        (MATRIX_MULTIPLY_INTEGER, {"a_zero_point": 3, "b_zero_point": np.int64(3)}, {}),
        (MATRIX_MULTIPLY_INTEGER, {"b_zero_point": s8(1, 1, 6)}, {"b_zero_point": s8(6)}),
        (MATRIX_MULTIPLY_INTEGER, {"a_zero_point": u8(1, 1, 4, 1)}, {"a_zero_point": u8(4, 1)}),
        (MATRIX_MULTIPLY_INTEGER, {"a_zero_point": None, "b_zero_point": None}, {"a_zero_point": 0, "b_zero_point": 0}),
        (CONVOLUTION_INTEGER, {"filter_zero_point": s8(6)}, {"filter_zero_point": s8(1, 6, 1, 1)}),
        (
            CONVOLUTION_INTEGER,
            {"strides": [2, 1], "start_padding": np.int64(2)},
            {"strides": (2, 1), "start_padding": (2, 2)},
        ),
        (DYNAMIC_QUANTIZE, {"output_dtype": "uint8"}, {}),
        (DYNAMIC_QUANTIZE, {"output_dtype": dml.DataType.INT8}, {"output_dtype": jnp.int8}),
        (
            MATRIX_MULTIPLY_TO_FLOAT,
            {"a_scale": 0.5, "b_scale": np.float64(0.5), "bias": None},
            {"bias": np.zeros((1, 1, 1), np.float32)},
        ),
        (MATRIX_MULTIPLY_TO_FLOAT, {"bias": steps(6)}, {"bias": np.broadcast_to(steps(6), (2, 4, 6)).copy()}),
        (MATRIX_MULTIPLY_TO_FLOAT, {"bias": steps(4, 1)}, {"bias": steps(1, 1, 4, 1)}),
        # A number next to float16 arrays is a float16.
        (
            MATRIX_MULTIPLY_TO_FLOAT,
            {"a_scale": np.ones((), np.float16), "b_scale": 0.1, "bias": None},
            {"a_scale": np.ones((), np.float16), "b_scale": np.asarray(0.1, np.float16), "bias": None},
        ),
        (POOLING, {"window_size": [3, 4]}, {"window_size": np.array([3, 4])}),
        (POOLING, {"window_size": np.int64(3)}, {"window_size": (3, 3)}),
        (POOLING, {"input_scale": steps(4)}, {"input_scale": steps(4, 1, 1)}),
        (POOLING, {"output_zero_point": -3, "output_dtype": np.int8}, {"output_zero_point": np.asarray(-3, np.int8)}),
        (
            POOLING,
            {"input_zero_point": None, "output_zero_point": None},
            {"input_zero_point": 0, "output_zero_point": 0},
        ),
        (QUANTIZE_BLOCKS, {"scale": 0.5, "zero_point": 3}, {"scale": np.full((1, 1), 0.5, np.float32)}),
        (QUANTIZE_BLOCKS, {"scale": steps(2, 1)}, {"scale": np.repeat(steps(2, 1), 3, 1)}),
        (QUANTIZE_BLOCKS, {"zero_point": 3, "output_dtype": "uint4"}, {"zero_point": np.asarray(3, "uint4")}),
        # Without a zero point, an unsigned output has the middle of its range as zero point, and a signed output has 0.
        (QUANTIZE_BLOCKS, {"zero_point": None}, {"zero_point": 128}),
        (QUANTIZE_BLOCKS, {"zero_point": None, "output_dtype": "uint4"}, {"zero_point": np.asarray(8, "uint4")}),
        (QUANTIZE_BLOCKS, {"zero_point": None, "output_dtype": "int4"}, {"zero_point": np.asarray(0, "int4")}),
        (DEQUANTIZE_BLOCKS, {"zero_point": None}, {"zero_point": u8(1, 1) // 7 * 128}),
        (DEQUANTIZE_BLOCKS, {"scale": np.float16(0.1)}, {"scale": np.asarray(0.1, np.float16)}),
        (DEQUANTIZE_BLOCKS, {"zero_point": np.int64(3), "scale": 2}, {"scale": np.asarray(2, np.float32)}),
    ],
)
def test_other_ways_to_write_an_argument(operator, changes, plainly):
    """An accepted argument has the meaning of the explicit form."""
    ours, same = (call(operator, {**GOOD[operator], **arguments}) for arguments in (changes, plainly))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(same), strict=True):
        assert_same_bits(one, other)
