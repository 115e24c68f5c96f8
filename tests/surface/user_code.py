"""A user's code, which a type checker helps to write."""

from typing import assert_type

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

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
    """The remaining operators."""
    quantized, scale, zero_point = dml.dynamic_quantize_linear(x)
    return [
        dml.element_wise_quantize_linear(x, 0.5, 3),
        dml.quantize(x, 0.5, output_dtype=jnp.int4),
        dml.dequantize(quantized, scale, zero_point),
        dml.matrix_multiply_integer(quantized, zero_point, quantized, None),
        dml.matrix_multiply_integer_to_float(quantized, scale, zero_point, quantized, scale, None, bias=None),
        dml.element_wise_quantized_linear_add(quantized, 0.5, 3, quantized, 0.5, 3, 1.0, 3),
    ]


def linear(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """A float function."""
    return x @ params["kernel"]


def after_training(params: dict[str, jax.Array], batches: list[jax.Array]) -> dml.ptq.Model:
    """Post-training quantization."""
    rules = [dml.ptq.Rule("head", keep="float"), dml.ptq.Rule("", observer=dml.ptq.Percentile(bins=64))]
    model = dml.ptq.quantize(linear, params, batches, activations=jnp.int8, observer="mse", rules=rules)
    print(model.apply(model.params, batches[0]), model.sqnr(params, batches[0]))
    dml.ptq.save("model.npz", model)
    return dml.ptq.load("model.npz", linear)


def by_hand(w: jax.Array, bias: jax.Array) -> Array:
    """The building blocks."""
    low, high = dml.ptq.MinMax().update(w).range(jnp.uint8)
    scale, zero_point = dml.ptq.scale_and_zero_point(low, high, jnp.uint8, symmetric=True)
    quantized, filter_scale = dml.ptq.quantize_weights(w, axis=0, dtype="int8")
    print(zero_point.dtype, quantized.shape, dml.ptq.scale_and_zero_point(-1.0, 1, np.int16))
    return dml.ptq.quantize_bias(bias, scale, filter_scale)


def from_onnx(x: jax.Array) -> dict[str, jax.Array]:
    """A model from a file."""
    model = dml.onnx.load("model.onnx", numerics="onnxruntime", limits=dml.onnx.Limits(seconds=60))
    problems = dml.onnx.check(b"")
    print(model.inputs[0].shape, problems[0].upper())
    comparison = dml.onnx.compare("model.onnx", {"x": x}, model)
    worst = [row.reason for row in comparison.nodes if row.own is not None and row.own.largest > 1]
    print(comparison.are_equal, worst, comparison.page("model"))
    return model.apply(model.params, x)


def with_checks(x: jax.Array) -> None:
    """The scale is a value."""
    error, output = checkify.checkify(dml.checked.fake_quantize)(x, 0.1)
    assert_type(output, jax.Array)
    assert_type(dml.checked.fake_quantize(x, 0.1), jax.Array)
    print(error, dml.checked.quantize(x, 0.1))


desc = dml.descs.desc_of(dml.dequantize, np.zeros(3, np.int8), 1.0)
assert_type(desc, dml.OperatorDesc)
