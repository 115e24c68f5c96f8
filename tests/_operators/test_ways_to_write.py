"""Other ways to write an argument: Python and NumPy numbers, other shapes of one form, options as an integer."""

import fractions
import math

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from calls import GOOD, call, steps
from descs import ADD, CONVOLUTION, DEQUANTIZE, MATRIX_MULTIPLY, QUANTIZE

U8 = np.dtype(np.uint8)


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
    ],
)
def test_other_ways_to_write_an_argument(operator, changes, plainly):
    """What is accepted means what it says."""
    ours, same = (call(operator, {**GOOD[operator], **arguments}) for arguments in (changes, plainly))
    assert ours.dtype == same.dtype
    np.testing.assert_array_equal(ours, same)
