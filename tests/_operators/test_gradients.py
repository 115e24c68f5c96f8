"""Derivatives of dequantize, of operators that round, and straight-through ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits, assert_same_values
from helpers.marks import rarely_on_xla
from jaxdml import reference

pytestmark = [rarely_on_xla, pytest.mark.oldest]

X = np.linspace(-3, 3, 61, dtype=np.float32).reshape(1, 61)


def test_dequantize_differentiates_with_respect_to_its_scale():
    q = np.arange(12, dtype=np.uint8).reshape(3, 4)
    by_scale = jax.jit(jax.jacrev(lambda scale: dml.element_wise_dequantize_linear(q, scale, 5)))(jnp.float32(0.3))
    assert_same_bits(by_scale, q.astype(np.float32) - 5)
    by_channel = jax.grad(lambda scale: dml.element_wise_dequantize_linear(q, scale, 5).sum())(jnp.ones((3, 1)))
    assert_same_bits(by_channel, (q.astype(np.float32) - 5).sum(1, keepdims=True))


def test_what_rounds_to_integers_has_the_gradient_that_integers_have():
    def loss(scale):
        q = dml.element_wise_quantize_linear(X, scale, 128)
        y = dml.quantized_linear_matrix_multiply(q, scale, 128, np.ones((61, 2), np.int8), 0.1, None, scale, 3)
        wide, thin = np.ones((32, 16, 3), np.int8), np.ones((32, 1, 3), np.int8)
        z, w = (
            dml.quantized_linear_convolution(
                jnp.repeat(q[:, None], f.shape[1], 1), scale, 128, f, 0.1, None, None, scale, 3
            )
            for f in (wide, thin)
        )
        return sum(dml.element_wise_dequantize_linear(v, 0.5, 3).sum() for v in (y, z, w))

    assert jax.grad(loss)(jnp.float32(0.02)) == 0
    assert_same_values(jax.jit(jax.vmap(jax.grad(loss)))(jnp.float32([0.02, 0.1])), [0, 0])


def test_scales_and_biases_of_what_makes_floats_have_gradients():
    """For blocks, sums over each block; for products of bytes and of words, sums over rows or columns of products."""
    q = np.arange(8, dtype=np.uint8).reshape(2, 4)
    by_block = jax.grad(lambda scale: dml.dequantize(q, scale, 1).sum())(jnp.ones((2, 2)))
    assert_same_bits(by_block, (q.astype(np.float32) - 1).reshape(2, 2, 2).sum(-1))
    b = np.arange(-4, 4, dtype=np.int8).reshape(4, 2)
    for a in (q, q.astype(np.int16)):
        sums = reference.matrix_multiply_integer_to_float(a, np.float32(1), None, b, np.float32(1), None)

        def total(a_scale, b_scale, bias, a=a):
            return dml.matrix_multiply_integer_to_float(a, a_scale, None, b, b_scale, None, bias).sum()

        gradients = jax.grad(total, (0, 1, 2))(jnp.float32([[0.5], [2]]), jnp.ones(2), jnp.zeros(2))
        expected = sums.sum(1, keepdims=True), (sums * np.float32([[0.5], [2]])).sum(0), [2, 2]
        for one, right in zip(gradients, expected, strict=True):
            assert_same_values(one, right)


def test_the_scale_of_a_range_has_the_gradient_of_its_ends():
    x, step = jnp.float32([1, 5, -3]), np.float32(1 / 255)
    by_x = jax.grad(lambda x: dml.dynamic_quantize_linear(x).output_scale[0])(x)
    assert_same_values(by_x, [0, step, -step])
    assert not jax.grad(lambda x: dml.quantize(x, 0.5).astype(jnp.float32).sum())(x).any()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("output_dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("per_column", [False, True])
def test_fake_quantize_has_the_bits_of_the_two_operators(dtype, output_dtype, per_column):
    x = X.astype(dtype)
    scale = np.geomspace(0.005, 0.05, 61).astype(dtype).reshape(1, 61) if per_column else dtype(0.013)
    zero_point = np.asarray(3, output_dtype)
    q = reference.element_wise_quantize_linear(x, scale, zero_point)
    expected = reference.element_wise_dequantize_linear(q, scale, zero_point)
    got = dml.fake_quantize(x, scale, zero_point)
    primal, _ = jax.jvp(lambda x, s: dml.fake_quantize(x, s, zero_point), (x, scale), (x, scale))
    for one in (got, primal, jax.jit(dml.fake_quantize)(x, scale, zero_point)):
        assert one.dtype == expected.dtype == dtype
        assert_same_bits(one, expected)


def test_fake_quantize_gradients_are_straight_through():
    """uint8 with zero point 100 holds -100 to 155 steps of 0.015625: -1.5625 to 2.421875, and what rounds to them."""
    scale = np.float32(2**-6)
    steps = X / scale
    inside = (np.round(steps) >= -100) & (np.round(steps) <= 155)
    assert 0 < inside.sum() < inside.size
    by_x = jax.grad(lambda x: dml.fake_quantize(x, scale, 100).sum())(jnp.asarray(X))
    assert_same_bits(by_x, inside.astype(np.float32))
    by_scale = jax.jacfwd(lambda s: dml.fake_quantize(X, s, 100))(jnp.asarray(scale))
    assert_same_values(by_scale, np.where(inside, np.round(steps) - steps, np.where(steps < 0, -100, 155)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("output_dtype", [np.uint8, np.int8, np.uint16, np.int16])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_fake_quantize_gradients_know_what_the_forward_pass_clamps(dtype, output_dtype):
    """At every kind of value, with a scale that divides nothing exactly; in float32, because quotients are rounded."""
    x = np.concatenate([np.arange(-400, 400) * 0.0133, [3.3203125, 7.69140625, 60000, -60000, 1e-3]]).astype(dtype)
    scale, limits = dtype(0.0301), np.iinfo(output_dtype)
    ratio = x.astype(np.float32) / np.float32(scale)
    inside = (np.round(ratio) >= limits.min) & (np.round(ratio) <= limits.max)

    def fake(x, scale):
        level = dml.FeatureLevel.JAXDML if limits.bits == 16 else dml.FeatureLevel.LATEST
        return dml.fake_quantize(x, scale, 0, output_dtype=output_dtype, feature_level=level)

    by_x, by_scale = jax.jit(
        lambda x, s: (jax.vjp(lambda x: fake(x, s), x)[1](jnp.ones_like(x))[0], jax.jacfwd(fake, 1)(x, s))
    )(x, scale)
    assert by_x.dtype == by_scale.dtype == dtype
    assert_same_bits(by_x, inside.astype(dtype))
    steps = np.clip(np.round(ratio), limits.min, limits.max)
    with np.errstate(over="ignore"):
        assert_same_bits(by_scale, (steps - np.where(inside, ratio, np.float32(0))).astype(dtype))


def test_fake_quantize_learns_a_scale():
    """Gradient descent on the scale alone finds a better one, in jit and vmapped over candidates."""
    x = np.random.default_rng(0).normal(0, 1, (1, 400)).astype(np.float32)

    def loss(scale):
        return jnp.mean((dml.fake_quantize(x, scale, 0, output_dtype=np.int8) - x) ** 2)

    start = jnp.float32([0.1, 0.005])
    scale, step = start, jax.jit(lambda scale: scale - 0.0005 * jax.vmap(jax.grad(loss))(scale))
    for _ in range(200):
        scale = step(scale)
    assert (jax.vmap(loss)(scale) < jax.vmap(loss)(start)).all()


def test_fake_quantize_says_what_is_wrong():
    with pytest.raises(dml.DescError, match="ScaleTensor has Sizes"):
        dml.fake_quantize(X, np.ones((1, 3), np.float32))
    with pytest.raises(dml.DescError, match="out of INT8's range"):
        dml.fake_quantize(X, 0.1, 200, output_dtype=np.int8)
    with pytest.raises(dml.DescError, match="InputTensor has type int32, expected FLOAT32 or FLOAT16"):
        dml.fake_quantize(np.arange(4, dtype=np.int32), 0.1)
    with pytest.raises(dml.FeatureLevelError, match="optional from 6_2"):
        dml.fake_quantize(X, 0.1, feature_level=dml.FeatureLevel.LEVEL_6_0)
