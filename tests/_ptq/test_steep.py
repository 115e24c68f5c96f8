"""Steep functions of inputs read floats: with 256 values of the input, little would be left of their results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from _ptq.quantized import decibels, in_floats
from jaxdml.ptq import quantize

RNG = np.random.default_rng(0)
PARAMS = {
    "in": RNG.normal(size=(60, 32)).astype(np.float32) / 8,
    "out": RNG.normal(size=(32, 4)).astype(np.float32) / 6,
}


def dense(p, x):
    return jax.nn.relu(x @ p["in"]) @ p["out"]


def of_positions(p, x):
    """A network of positions, as in neural radiance fields."""
    return dense(p, jnp.concatenate([f(x * (np.pi * 2.0**k)) for k in range(10) for f in (jnp.sin, jnp.cos)], -1))


def of_powers(p, x):
    """A network of a spectrogram: the logarithms of powers of all magnitudes."""
    return dense(p, jnp.log(x + 1e-3))


CASES = {
    "sines of positions": (of_positions, RNG.uniform(-1, 1, size=(64, 3))),
    "logarithms of powers": (of_powers, np.exp(3 * RNG.normal(size=(64, 60)))),
}

STATES = RNG.normal(size=(64, 16)).astype(np.float32)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_ratios(name):
    """In tables of 256 entries, they were 2 and -9 dB."""
    apply, inputs = CASES[name]
    x = inputs.astype(np.float32)
    model = quantize(apply, PARAMS, [x], progress=False)
    assert "2 of 2 convolutions and products" in str(model)
    assert "kept in floats: it reads an input, for which 8 bits may be too few" in str(model)
    assert decibels(model.apply(model.params, x), in_floats(apply, PARAMS, x)) > 33


def test_functions_of_what_a_loop_carries_are_tables():
    """Values that a loop carries have been rounded before."""
    step = lambda h, w: (jnp.sin(h) @ w, None)  # noqa: E731
    apply = lambda p, x: jax.lax.scan(step, x, p)[0]  # noqa: E731
    model = quantize(apply, RNG.normal(size=(3, 16, 16)).astype(np.float32) / 4, [STATES], progress=False)
    assert "table" in str(model)
