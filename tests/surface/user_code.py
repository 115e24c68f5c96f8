"""What a user writes, whom a type checker helps."""

from typing import assert_type

import jax
import jax.numpy as jnp
import numpy as np

import jaxdml as dml
from jaxdml.typing import Array, Scale, ZeroPoint


def dense(x: Array, w: Array, scale: Scale, zero_point: ZeroPoint | None) -> jax.Array:
    """Python numbers, NumPy arrays and JAX arrays, by keyword."""
    product = dml.quantized_linear_matrix_multiply(
        a=x,
        a_scale=scale,
        a_zero_point=zero_point,
        b=dml.prepare_matrix_multiply_b(w),
        b_scale=np.float32(0.1),
        b_zero_point=None,
        output_scale=0.5,
        output_zero_point=np.uint8(3),
        output_dtype=jnp.uint8,
        feature_level=dml.FeatureLevel.LEVEL_2_1,
    )
    assert_type(product, jax.Array)
    return dml.element_wise_dequantize_linear(product, 0.5, 3)


def convolve(x: Array, f: Array, bias: jax.Array) -> jax.Array:
    """One integer, or one for each dimension."""
    total = dml.convolution_integer(x, 3, dml.prepare_convolution_filter(f, group_count=2), None, strides=[2, 2])
    assert_type(total, jax.Array)
    output = dml.quantized_linear_convolution(
        input=x,
        input_scale=0.1,
        input_zero_point=3,
        filter=f,
        filter_scale=np.ones(4, np.float32),
        filter_zero_point=None,
        bias=bias,
        output_scale=0.5,
        output_zero_point=None,
        start_padding=1,
        end_padding=(1, 1),
        output_dtype=dml.DataType.INT8,
    )
    return dml.quantized_linear_average_pooling(output, 0.5, 0, 0.5, 0, window_size=2)


def loss(x: jax.Array, scale: jax.Array) -> jax.Array:
    """As in fine-tuning."""
    return jnp.mean((dml.fake_quantize(x, scale, output_dtype="int8") - x) ** 2)


def others(x: jax.Array) -> list[jax.Array]:
    """The operators that are left."""
    quantized, scale, zero_point = dml.dynamic_quantize_linear(x)
    return [
        dml.element_wise_quantize_linear(x, 0.5, 3),
        dml.quantize(x, 0.5, output_dtype=jnp.int4),
        dml.dequantize(quantized, scale, zero_point),
        dml.matrix_multiply_integer(quantized, zero_point, quantized, None),
        dml.matrix_multiply_integer_to_float(quantized, scale, zero_point, quantized, scale, None, bias=None),
        dml.element_wise_quantized_linear_add(quantized, 0.5, 3, quantized, 0.5, 3, 1.0, 3),
    ]


desc = dml.descs.desc_of(dml.dequantize, np.zeros(3, np.int8), 1.0)
assert_type(desc, dml.OperatorDesc)
