"""Layers of float networks in plain JAX, and random parameters for them.

Filters are OIHW by default, matrices [inputs, outputs]. No function converts a dimension to an integer, so that the
batch may be symbolic.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class Weights:
    """Random parameters, normally distributed, of variance gain / fan-in; one seed makes one network."""

    def __init__(self, seed=0):
        self.random = np.random.default_rng(seed)

    def normal(self, *shape, deviation=0.1, mean=0.0):
        values = np.float32(mean) + np.float32(deviation) * self.random.standard_normal(shape, np.float32)
        return jax.device_put(values)

    def dense(self, inputs, outputs, gain=1.0):
        return {"w": self.normal(inputs, outputs, deviation=math.sqrt(gain / inputs)), "b": self.normal(outputs)}

    def conv(self, inputs, outputs, *size, groups=1, gain=2.0):
        shape = (outputs, inputs // groups, *size)
        return {"w": self.normal(*shape, deviation=math.sqrt(gain / math.prod(shape[1:]))), "b": self.normal(outputs)}

    def conv_norm(self, *shape, scale=1.0, **options):
        """A convolution without bias, and its BatchNorm; `measured` finds its mean and variance."""
        channels, filters = shape[1], self.conv(*shape, **options)["w"]
        moments = {"mean": np.zeros(channels, np.float32), "var": np.ones(channels, np.float32)}
        return moments | {"w": filters, "scale": self.normal(channels, mean=scale), "bias": self.normal(channels)}

    def block(self, width, hidden):
        """The parameters of a transformer block."""
        layers = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, hidden), "down": (hidden, width)}
        norms = {f"norm_{i}": {"scale": self.normal(width, mean=1.0), "bias": self.normal(width)} for i in (1, 2)}
        return norms | {name: self.dense(*shape) for name, shape in layers.items()}


def along(vector, axis, rank):
    return vector.reshape((1,) * axis + (-1,) + (1,) * (rank - axis - 1))


def dense(layer, x):
    return x @ layer["w"] + along(layer["b"], x.ndim - 1, x.ndim)


def conv(layer, x, stride=1, layout="NCHW"):
    """A convolution that pads by half its size; the filter, whose shape gives the groups, is HWIO for NHWC."""
    numbers = (layout, "OIHW" if layout == "NCHW" else "HWIO", layout)
    size = {letter: layer["w"].shape[axis] for axis, letter in enumerate(numbers[1])}
    y = lax.conv_general_dilated(
        x, layer["w"], (stride,) * 2, [(size[letter] // 2,) * 2 for letter in "HW"],
        dimension_numbers=numbers, feature_group_count=x.shape[layout.index("C")] // size["I"],
    )  # fmt: skip
    return y + along(layer["b"], layout.index("C"), 4) if "b" in layer else y


def ungrouped(filters, channels):
    """Filters of one group that are equivalent to these filters of several groups, for this many input channels."""
    outputs, inputs = filters.shape[:2]
    own = np.arange(outputs)[:, None] // (outputs * inputs // channels) == np.arange(channels) // inputs
    return jnp.tile(filters, (1, channels // inputs, 1, 1)) * jnp.asarray(own, filters.dtype)[:, :, None, None]


class BatchNorm:
    """BatchNorm with the mean and variance in params; if it measures, with those of the batch, which it records."""

    def __init__(self, axis=1, measures=False, noise=None):
        self.axis, self.measures, self.noise, self.moments = axis, measures, noise, {}

    def __call__(self, params, name, x):
        layer = params[name]
        if self.measures:
            self.moments[name] = self._measure(x)
            layer = layer | self.moments[name]
        mean, var, scale, bias = (along(layer[part], self.axis, x.ndim) for part in ("mean", "var", "scale", "bias"))
        return (x - mean) * lax.rsqrt(var + 1e-5) * scale + bias

    def _measure(self, x):
        others = tuple(axis for axis in range(x.ndim) if axis != self.axis)
        if not self.noise:
            return {"mean": jnp.mean(x, others), "var": jnp.var(x, others)}
        square = jnp.mean(jnp.square(x), others)
        mean = self.noise.normal(*square.shape) * jnp.sqrt(square)
        return {"mean": mean, "var": square * self.noise.random.uniform(0.5, 1.5, square.shape).astype(np.float32)}


def measured(network, params, x, noise=None):
    """The params with the mean and variance that every BatchNorm of network(params, x, batch_norm) sees in a batch.

    With noise, which is a Weights, mean and variance are random, near those that the BatchNorm sees. Channels of random
    filters hardly vary in deep layers: dividing by their deviation would magnify every rounding.
    """

    @jax.jit
    def moments(params, x):
        batch_norm = BatchNorm(measures=True, noise=noise)
        network(params, x, batch_norm)
        return batch_norm.moments

    found = moments(params, x)
    return {name: layer | found.get(name, {}) for name, layer in params.items()}


def max_pool(x, size, stride, padding=0, axes=(2, 3)):
    window, strides = ([by if axis in axes else 1 for axis in range(4)] for by in (size, stride))
    padded = [(padding,) * 2 if axis in axes else (0, 0) for axis in range(4)]
    return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padded)


def average_pool(x, size):
    window = (1, 1, size, size)
    return lax.reduce_window(x, 0.0, lax.add, window, window, "VALID") / size**2


def layer_norm(layer, x):
    centered = x - jnp.mean(x, -1, keepdims=True)
    x = centered * lax.rsqrt(jnp.mean(jnp.square(centered), -1, keepdims=True) + 1e-5)
    return x * along(layer["scale"], x.ndim - 1, x.ndim) + along(layer["bias"], x.ndim - 1, x.ndim)


def attention_block(params, x, heads, causal=False):
    """A transformer block that normalizes first: x [N, tokens, width]."""
    queries, keys, values = (
        part.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)
        for part in jnp.split(dense(params["qkv"], layer_norm(params["norm_1"], x)), 3, -1)
    )
    scores = queries @ keys.transpose(0, 1, 3, 2) / math.sqrt(queries.shape[-1])
    if causal:
        seen = jnp.tril(jnp.ones(scores.shape[2:], bool))[None, None]
        scores = jnp.where(jnp.broadcast_to(seen, scores.shape), scores, -1e9)
    read = jax.nn.softmax(scores) @ values
    x = x + dense(params["out"], read.transpose(0, 2, 1, 3).reshape(x.shape))
    return x + dense(params["down"], jax.nn.gelu(dense(params["up"], layer_norm(params["norm_2"], x))))
