"""Cases of small float functions, and a decorator that defines them."""

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

IMAGE, TOKENS = (8, 10, 10), (6, 16)


class Case(NamedTuple):
    """A function for `jax.jit(apply)(params, *inputs(batch, seed))`, and the expected outcome of quantizing it.

    Every function has a contraction that becomes integer, so that there is something to quantize. `expects` is "int8"
    if all contractions do, and otherwise the reason why the others stay float.
    """

    name: str
    apply: Callable[..., Any]
    params: dict[str, jax.Array]
    inputs: Callable[..., tuple[jax.Array, ...]]
    expects: str


def as_jax(x, dtype):
    """x on the device; `jnp.asarray` would compile a program for each shape."""
    return jax.device_put(np.asarray(x, dtype))


# Parameters: their shape, mean and standard deviation ----------------------------------------------------------------


def matrix(*shape):
    """[..., inputs, outputs]."""
    return shape, 0.0, shape[-2] ** -0.5


def filters(*shape):
    """[outputs, inputs, *size]."""
    return shape, 0.0, float(np.prod(shape[1:])) ** -0.5


def scales(*shape):
    return shape, 1.0, 0.1


def biases(*shape):
    return shape, 0.0, 0.1


class Cases(list[Case]):
    """A list of cases; a call adds one."""

    def __call__(self, name, *inputs, expects="int8", dtype=jnp.float32, below=None, **params):
        """Adds the decorated function. Its inputs have these shapes after the batch; the default is [batch, 16].

        Each of params is a result of `matrix`, `filters` or the like. Inputs and params are normally distributed, of
        type dtype; if below is given, inputs are integers from 0 to below - 1 of that type, and params are float32.
        """

        def add(apply):
            random = np.random.default_rng(zlib.crc32(name.encode()))
            arrays = {
                key: as_jax(mean + deviation * random.standard_normal(shape), dtype if below is None else np.float32)
                for key, (shape, mean, deviation) in params.items()
            }

            def make_inputs(batch=1, seed=0):
                random, shapes = np.random.default_rng(seed), [(batch, *shape) for shape in inputs or [(16,)]]
                if below is not None:
                    return tuple(as_jax(random.integers(below, size=shape), dtype) for shape in shapes)
                return tuple(as_jax(random.standard_normal(shape), dtype) for shape in shapes)

            self.append(Case(name, apply, arrays, make_inputs, expects))
            return apply

        return add


# Shared functions ----------------------------------------------------------------------------------------------------


def conv(x, w, **options):
    """A convolution in any number of dimensions, channels first, that pads to the same size."""
    spatial = "DHW"[5 - x.ndim :]
    numbers = ("NC" + spatial, "OI" + spatial, "NC" + spatial)
    options = {"window_strides": (1,) * len(spatial), "padding": "SAME"} | options
    return lax.conv_general_dilated(x, w, dimension_numbers=numbers, **options)


def row(vector, x):
    """The vector along the last axis of x."""
    return vector.reshape((1,) * (x.ndim - 1) + (-1,))


def channel(vector, x):
    """The vector along the second axis of x."""
    return vector.reshape((1, -1) + (1,) * (x.ndim - 2))


def normalized(x, axes):
    x = x - jnp.mean(x, axes, keepdims=True)
    return x * lax.rsqrt(jnp.mean(jnp.square(x), axes, keepdims=True) + 1e-5)
