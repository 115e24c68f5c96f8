"""Derivatives: those of exact functions are XLA's, and `exact` evaluates a function of derivatives by the rules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits
from jaxdml._arithmetic.exact_calls import in_one_call
from jaxdml.reference import floats

pytestmark = pytest.mark.oldest
X = np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32)


def test_gradients_are_xlas_and_exact_gradients_are_exact():
    def f(x):
        return (jnp.tanh(x) * x).sum()

    assert_same_bits(jax.grad(dml.exact(f))(X), jax.grad(f)(X))
    t, one = floats.tanh(X), np.float32(1)
    rest = floats.sub(one, t)
    if "one_minus_square" in str(jax.make_jaxpr(jax.grad(f))(X)):
        right = floats.add(t, floats.mul(X, floats.mul(rest, floats.add(one, t))))
    else:  # jax before 0.12 has another formula for the derivative of tanh
        product = floats.mul(X, rest)
        right = floats.add(floats.add(t, product), floats.mul(product, t))
    got = jax.jit(dml.exact(jax.grad(f)))(X)
    assert_same_bits(got, right)
    with jax.disable_jit():
        assert_same_bits(dml.exact(jax.grad(f))(X), got)
    value, _ = jax.value_and_grad(dml.exact(f))(X)
    assert_same_bits(value, dml.exact(f)(X))


def test_derivatives_of_exact_calls_are_evaluated_by_the_rules():
    """JAX names the derivative of a call after the call; tanh stands for a function with one answer.

    The derivative of a call adds its terms before others are added, so the gradient is compared with that of a call.
    """

    def gradient(tanh):
        return jax.jit(dml.exact(jax.grad(lambda x: (tanh(x) * x).sum())))

    assert_same_bits(gradient(lambda x: in_one_call(jnp.tanh, (x,)))(X), gradient(jax.jit(jnp.tanh))(X))
