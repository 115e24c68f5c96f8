"""One small CNN in flax's linen and nnx, in equinox and in plain JAX: the same numbers, called the same way.

`apply(params, x)` reads x [N, 8, 8, 3], channels last, and returns logits [N, 10]; equinox's modules, which have
channels first and no batch, get it transposed under `jax.vmap`. BatchNorm is in inference mode.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

from _ptq.layers import BatchNorm, Weights, conv, dense, measured
from _ptq.models import normal_inputs

CHANNELS, OUTPUTS = 8, 10
make_inputs = normal_inputs(8, 8, 3)


@functools.cache
def model(framework):
    """(apply, params) of the network in "plain", "linen", "nnx" or "equinox"."""
    return {"plain": _plain, "linen": _linen, "nnx": _nnx, "equinox": _equinox}[framework](_numbers())


@functools.cache
def _numbers():
    weights = Weights()
    params = {
        "unit_1": weights.conv_norm(3, CHANNELS, 3, 3) | {"b": weights.normal(CHANNELS)},
        "unit_2": weights.conv_norm(CHANNELS, CHANNELS, 3, 3) | {"b": weights.normal(CHANNELS)},
        "head": weights.dense(CHANNELS, OUTPUTS),
    }
    (x,) = make_inputs(16, seed=1)
    return jax.device_get(measured(_first_channels, params, np.asarray(x).transpose(0, 3, 1, 2), weights))


def _network(unit, head, x, axes):
    x = jax.nn.relu(unit("unit_1", x))
    x = x + jax.nn.relu(unit("unit_2", x))
    return head(jnp.mean(x, axes))


def _first_channels(params, x, batch_norm):
    def unit(name, x):
        return batch_norm(params, name, conv(params[name], x))

    return _network(unit, lambda x: dense(params["head"], x), x, (2, 3))


def _hwio(filters):
    return filters.transpose(2, 3, 1, 0)


def _plain(params):
    batch_norm = BatchNorm(axis=3)

    def apply(params, x):
        def unit(name, x):
            return batch_norm(params, name, conv(params[name], x, layout="NHWC"))

        return _network(unit, lambda x: dense(params["head"], x), x, (1, 2))

    units = {name: params[name] | {"w": _hwio(params[name]["w"])} for name in ("unit_1", "unit_2")}
    return apply, params | units


# flax ----------------------------------------------------------------------------------------------------------------


class LinenUnit(linen.Module):
    @linen.compact
    def __call__(self, x, train=False):
        x = linen.Conv(CHANNELS, (3, 3), name="conv")(x)
        return linen.BatchNorm(use_running_average=not train, name="norm")(x)


class LinenNetwork(linen.Module):
    @linen.compact
    def __call__(self, x, train=False):
        return _network(
            lambda name, x: LinenUnit(name=name)(x, train), linen.Dense(OUTPUTS, name="head"), x, (1, 2)
        )  # fmt: skip


def _kernel_and_bias(layer):
    kernel = layer["w"]
    return {"kernel": _hwio(kernel) if kernel.ndim == 4 else kernel, "bias": layer["b"]}


def _linen(params):
    variables: dict[str, Any] = {"params": {"head": _kernel_and_bias(params["head"])}, "batch_stats": {}}
    for name in ("unit_1", "unit_2"):
        norm = {part: params[name][part] for part in ("scale", "bias", "mean", "var")}
        variables["batch_stats"][name] = {"norm": {part: norm.pop(part) for part in ("mean", "var")}}
        variables["params"][name] = {"conv": _kernel_and_bias(params[name]), "norm": norm}
    return LinenNetwork().apply, variables


class NnxUnit(nnx.Module):
    def __init__(self, inputs, rngs):
        self.conv = nnx.Conv(inputs, CHANNELS, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(CHANNELS, rngs=rngs)

    def __call__(self, x):
        return self.norm(self.conv(x))


class NnxNetwork(nnx.Module):
    def __init__(self, rngs):
        self.unit_1, self.unit_2 = NnxUnit(3, rngs), NnxUnit(CHANNELS, rngs)
        self.head = nnx.Linear(CHANNELS, OUTPUTS, rngs=rngs)

    def __call__(self, x):
        return _network(lambda name, x: getattr(self, name)(x), self.head, x, (1, 2))


def _nnx(params):
    network = nnx.eval_shape(lambda: NnxNetwork(nnx.Rngs(0)))  # initializing it would take seconds
    network.eval()
    numbers = {"head": _kernel_and_bias(params["head"])}
    for name in ("unit_1", "unit_2"):
        norm = {part: params[name][part] for part in ("scale", "bias", "mean", "var")}
        numbers[name] = {"conv": _kernel_and_bias(params[name]), "norm": norm}
    nnx.update(network, numbers)
    graph, state = nnx.split(network)
    return lambda state, x: nnx.merge(graph, state)(x), state


# equinox -------------------------------------------------------------------------------------------------------------


class EquinoxUnit(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm

    def __init__(self, inputs, key):
        self.conv = eqx.nn.Conv2d(inputs, CHANNELS, 3, padding=1, key=key)
        self.norm = eqx.nn.BatchNorm(CHANNELS, "batch", mode="ema", inference=True, dtype=jnp.float32)


class EquinoxNetwork(eqx.Module):
    unit_1: EquinoxUnit
    unit_2: EquinoxUnit
    head: eqx.nn.Linear

    def __init__(self, key):
        self.unit_1, self.unit_2 = EquinoxUnit(3, key), EquinoxUnit(CHANNELS, key)
        self.head = eqx.nn.Linear(CHANNELS, OUTPUTS, key=key)

    def __call__(self, x, state):
        def unit(name, x):
            layers = getattr(self, name)
            return layers.norm(layers.conv(x), state)[0]

        return _network(unit, self.head, x, (1, 2))


def _equinox(params):
    # Initializing it would take seconds.
    network, state = eqx.filter_eval_shape(eqx.nn.make_with_state(EquinoxNetwork), jax.random.key(0))
    numbers = [params["head"]["w"].T, params["head"]["b"]]
    for name in ("unit_1", "unit_2"):
        layer = params[name]
        numbers += [layer["w"], layer["b"][:, None, None], layer["scale"], layer["bias"]]
        state = state.set(getattr(network, name).norm.ema_state_index, (layer["mean"], layer["var"]))

    def leaves(network):
        found = [network.head.weight, network.head.bias]
        for unit in (network.unit_1, network.unit_2):
            found += [unit.conv.weight, unit.conv.bias, unit.norm.weight, unit.norm.bias]
        return found

    state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else x, state)
    arrays, rest = eqx.partition(eqx.tree_at(leaves, network, jax.device_put(numbers)), eqx.is_array)

    def apply(params, x):
        arrays, state = params
        network = eqx.combine(arrays, rest)
        batched = jax.vmap(network, in_axes=(0, None), axis_name="batch")
        return batched(x.transpose(0, 3, 1, 2), state)

    return apply, (arrays, state)
