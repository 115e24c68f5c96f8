"""Trained networks, and rewritten forms that scale channels up and down again: the function stays the same.

Channels of real networks differ by factors of a hundred, in BatchNorm's scales and in LayerNorm's gains.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from _ptq.layers import BatchNorm, Weights, attention_block, average_pool, conv, dense, layer_norm, ungrouped
from _ptq.models import Model, digits

BLOCKS = range(2)


def mobilenet(params, x, batch_norm=None):
    """Inverted residuals with relu: x [N, 1, 8, 8], logits [N, 10]."""
    batch_norm = batch_norm or BatchNorm()

    def unit(name, x):
        return batch_norm(params, name, conv(params[name], x))

    x = jax.nn.relu(unit("stem", x))
    for block in BLOCKS:
        inner = jax.nn.relu(unit(f"depthwise_{block}", jax.nn.relu(unit(f"expand_{block}", x))))
        x = x + unit(f"project_{block}", inner)
        x = x if block else average_pool(x, 2)
    return dense(params["head"], jnp.mean(jax.nn.relu(unit("last", x)), (2, 3)))


def vit(params, x):
    """Blocks that normalize first, over patches of 2 by 2: x [N, 1, 8, 8], logits [N, 10]."""
    patches = x.reshape(-1, 4, 2, 4, 2).transpose(0, 1, 3, 2, 4).reshape(-1, 16, 4)
    x = dense(params["patches"], patches) + params["position"][None]
    for block in BLOCKS:
        x = attention_block(params[f"block_{block}"], x, 4)
    return dense(params["head"], jnp.mean(layer_norm(params["norm"], x), 1))


def bert(params, tokens):
    """Blocks that normalize last, over embeddings: tokens [N, 16], logits [N, 16, 16] of the tokens in order."""
    x = layer_norm(params["norm"], params["embedding"][tokens] + params["position"][None])
    for block in BLOCKS:
        x = _post_norm_block(params[f"block_{block}"], x, 4)
    return dense(params["head"], x)


def _post_norm_block(params, x, heads):
    queries, keys, values = (
        part.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)
        for part in jnp.split(dense(params["qkv"], x), 3, -1)
    )
    read = jax.nn.softmax(queries @ keys.transpose(0, 1, 3, 2) / math.sqrt(queries.shape[-1])) @ values
    kept = x * params["kept_qkv"][None, None]
    x = layer_norm(params["norm_1"], kept + dense(params["out"], read.transpose(0, 2, 1, 3).reshape(x.shape)))
    kept = x * params["kept_up"][None, None]
    return layer_norm(params["norm_2"], kept + dense(params["down"], jax.nn.gelu(dense(params["up"], x))))


# Training ------------------------------------------------------------------------------------------------------------


def _loss(logits, labels):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1))


def trained(loss, params, batches, rate, update=lambda params, moments: params):
    """The params after Adam's steps; `loss` returns the loss and moments, with which `update` changes params."""

    @jax.jit
    def step(params, first, second, number, *batch):
        gradient, moments = jax.grad(loss, has_aux=True)(params, *batch)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, gradient)
        rate_now = rate * 0.5 * (1 + jnp.cos(jnp.pi * number / len(batches)))
        rate_now = rate_now * jnp.sqrt(1 - 0.99 ** (number + 1)) / (1 - 0.9 ** (number + 1))
        params = jax.tree.map(lambda p, m, v: p - rate_now * m / (jnp.sqrt(v) + 1e-8), params, first, second)
        return update(params, moments), first, second

    first = second = jax.tree.map(jnp.zeros_like, params)
    for number, batch in enumerate(batches):
        params, first, second = step(params, first, second, np.float32(number), *batch)
    return params


def _digit_batches(steps, seed=0):
    images, _, labels, _ = digits()
    random = np.random.default_rng(seed)
    places = [random.choice(len(images), 64, replace=False) for _ in range(steps)]
    return [(images[each], labels[each]) for each in places]


def _digit_inputs(batch=1, seed=0):
    images = digits()[0 if seed >= 0 else 1]
    return (jnp.asarray(np.random.default_rng(abs(seed)).choice(images, batch)),)


@functools.cache
def trained_mobilenet(width=16, hidden=48, steps=200):
    weights = Weights(0)
    params = {"stem": weights.conv_norm(1, width, 3, 3), "last": weights.conv_norm(width, hidden, 1, 1)}
    for block in BLOCKS:
        params[f"expand_{block}"] = weights.conv_norm(width, hidden, 1, 1)
        params[f"depthwise_{block}"] = weights.conv_norm(hidden, hidden, 3, 3, groups=hidden)
        params[f"project_{block}"] = weights.conv_norm(hidden, width, 1, 1)
    params["head"] = weights.dense(hidden, 10)

    def loss(params, images, labels):
        batch_norm = BatchNorm(measures=True)
        # XLA takes forty times as long for the gradient of a convolution with groups.
        for block in BLOCKS:
            layer = params[f"depthwise_{block}"]
            params = params | {f"depthwise_{block}": layer | {"w": ungrouped(layer["w"], channels=hidden)}}
        return _loss(mobilenet(params, images, batch_norm), labels), batch_norm.moments

    def update(params, moments):
        moving = {name: {part: 0.9 * params[name][part] + 0.1 * x for part, x in each.items()}
                  for name, each in moments.items()}  # fmt: skip
        return {name: layer | moving.get(name, {}) for name, layer in params.items()}

    return Model(mobilenet, trained(loss, params, _digit_batches(steps), 0.01, update), _digit_inputs)


def _blocks(weights, width):
    return {f"block_{block}": weights.block(width, 4 * width) for block in BLOCKS}


def _norm(weights, width):
    return {"scale": weights.normal(width, mean=1.0), "bias": weights.normal(width)}


@functools.cache
def trained_vit(width=48, steps=300):
    weights = Weights(0)
    params = _blocks(weights, width) | {"norm": _norm(weights, width), "head": weights.dense(width, 10)}
    params |= {"patches": weights.dense(4, width), "position": weights.normal(16, width)}
    params = trained(
        lambda params, images, labels: (_loss(vit(params, images), labels), None), params, _digit_batches(steps), 3e-3
    )
    return Model(vit, params, _digit_inputs)


def _token_inputs(batch=1, seed=0):
    return (jnp.asarray(np.random.default_rng(abs(seed)).integers(16, size=(batch, 16)), jnp.int32),)


@functools.cache
def trained_bert(width=48, steps=300):
    weights = Weights(0)
    params = _blocks(weights, width) | {"norm": _norm(weights, width), "head": weights.dense(width, 16)}
    params |= {"embedding": weights.normal(16, width, deviation=1.0), "position": weights.normal(16, width)}
    for block in BLOCKS:
        params[f"block_{block}"] |= {f"kept_{name}": jnp.ones(width) for name in ("qkv", "up")}
    batches = [_token_inputs(64, seed=1000 + step) for step in range(steps)]
    batches = [(tokens, jnp.sort(tokens, -1)) for (tokens,) in batches]
    params = trained(lambda params, x, y: (_loss(bert(params, x), y), None), params, batches, 3e-3)
    return Model(bert, params, _token_inputs)


# Outliers ------------------------------------------------------------------------------------------------------------


def _factors(count, most, seed):
    """Factors from 1 to `most`, evenly distributed by their logarithms; the geometric mean is the root of `most`."""
    return np.exp(np.random.default_rng(seed).uniform(0, math.log(most), count)).astype(np.float32)


def _raised(layer, factors):
    return layer | {part: layer[part] * factors for part in ("scale", "bias")}


def mobilenet_with_outliers(most):
    """The MobileNet; BatchNorms after expansions and depthwise convolutions scale channels by 1 to `most`."""
    apply, params, make_inputs = trained_mobilenet()
    params = dict(params)
    for block in BLOCKS:
        for seed, (name, reader) in enumerate((("expand", "depthwise"), ("depthwise", "project"))):
            name, reader = f"{name}_{block}", f"{reader}_{block}"
            factors = _factors(len(params[name]["scale"]), most, seed)
            params[name] = _raised(params[name], factors)
            by_input = factors[:, None, None, None] if reader.startswith("depthwise") else factors[None, :, None, None]
            params[reader] = params[reader] | {"w": params[reader]["w"] / by_input}
    return Model(apply, params, make_inputs)


def vit_with_outliers(most):
    """The transformer, with gains of its LayerNorms multiplied by 1 to `most`."""
    apply, params, make_inputs = trained_vit()
    params = dict(params)
    for block in BLOCKS:
        layers = dict(params[f"block_{block}"])
        for seed, (name, reader) in enumerate((("norm_1", "qkv"), ("norm_2", "up"))):
            factors = _factors(len(layers[name]["scale"]), most, seed)
            layers[name] = _raised(layers[name], factors)
            layers[reader] = layers[reader] | {"w": layers[reader]["w"] / factors[:, None]}
        params[f"block_{block}"] = layers
    return Model(apply, params, make_inputs)


def bert_with_outliers(most):
    """The post-norm transformer, with gains of LayerNorms times 1 to `most`; its residuals divide by the factors."""
    apply, params, make_inputs = trained_bert()
    params = dict(params)
    for block in BLOCKS:
        layers = dict(params[f"block_{block}"])
        before = f"block_{block - 1}" if block else ""
        for seed, (name, reader) in enumerate((("norm_2" if block else "norm", "qkv"), ("norm_1", "up"))):
            factors = _factors(len(layers["norm_1"]["scale"]), most, seed)
            if reader == "up":
                layers[name] = _raised(layers[name], factors)
            elif block:
                params[before] = params[before] | {name: _raised(params[before][name], factors)}
            else:
                params[name] = _raised(params[name], factors)
            layers[reader] = layers[reader] | {"w": layers[reader]["w"] / factors[:, None]}
            layers[f"kept_{reader}"] = layers[f"kept_{reader}"] / factors
        params[f"block_{block}"] = layers
    return Model(apply, params, make_inputs)


WITHOUT = {"MobileNet": trained_mobilenet, "ViT": trained_vit, "BERT": trained_bert}
NETWORKS = {
    "MobileNet, channels x 1 to 10": functools.partial(mobilenet_with_outliers, 10),
    "MobileNet, channels x 1 to 100": functools.partial(mobilenet_with_outliers, 100),
    "ViT, gains x 1 to 20": functools.partial(vit_with_outliers, 20),
    "ViT, gains x 1 to 100": functools.partial(vit_with_outliers, 100),
    "BERT, gains x 1 to 100": functools.partial(bert_with_outliers, 100),
}
