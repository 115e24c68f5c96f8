"""Float networks in plain JAX: each is a function `apply(params, *inputs)`, its parameters, and its random inputs."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from _ptq.layers import (
    BatchNorm,
    Weights,
    attention_block,
    average_pool,
    conv,
    dense,
    layer_norm,
    max_pool,
    measured,
    ungrouped,
)

CLASSES = 1000
BATCH, STEPS = 64, 22  # images in a step of training, steps in an epoch


class Model(NamedTuple):
    """A network for `jax.jit(apply)(params, *make_inputs(batch, seed))`."""

    apply: Callable[..., Any]
    params: Any
    make_inputs: Callable[..., tuple[Any, ...]]


def normal_inputs(*shape, batch=1):
    """The function make_inputs of a network that reads one array [batch, *shape], normally distributed."""

    def make_inputs(batch=batch, seed=0):
        return (jax.device_put(np.random.default_rng(seed).standard_normal((batch, *shape), np.float32)),)

    return make_inputs


class TrainedModel(NamedTuple):
    """A model that is trained to read digits, and its training and test images [N, 1, 8, 8]."""

    apply: Callable[..., Any]
    params: Any
    make_inputs: Callable[..., tuple[Any, ...]]
    train_images: jax.Array
    images: jax.Array
    labels: jax.Array


def _digits_cnn(params, x, batch_norm=None):
    batch_norm = batch_norm or BatchNorm()

    def unit(name, x):
        return batch_norm(params, name, conv(params[name], x))

    x = jax.nn.relu6(unit("stem", x))
    branch = unit("mix", jax.nn.relu(unit("grouped", x)))
    x = average_pool(jax.nn.relu(x + branch), 2)
    x = average_pool(jax.nn.relu(unit("wide", x)), 2)
    return dense(params["head"], x.reshape(x.shape[0], -1))


@functools.cache
def digits():
    from sklearn.datasets import load_digits  # importing it takes a second
    from sklearn.model_selection import train_test_split

    data = load_digits()
    images = (data.images.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    return train_test_split(images, data.target.astype(np.int32), test_size=360, random_state=0, stratify=data.target)


@jax.jit
def _train_step(params, velocity, rate, images, labels):
    def loss(params):
        batch_norm = BatchNorm(measures=True)
        # XLA takes forty times as long for the gradient of a convolution with groups.
        filters = ungrouped(params["grouped"]["w"], channels=len(params["stem"]["w"]))
        params = params | {"grouped": params["grouped"] | {"w": filters}}
        log_probabilities = jax.nn.log_softmax(_digits_cnn(params, images, batch_norm))
        return -jnp.mean(jnp.take_along_axis(log_probabilities, labels[:, None], 1)), batch_norm.moments

    gradient, moments = jax.grad(loss, has_aux=True)(params)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, gradient)
    params = jax.tree.map(lambda p, v: p - rate * (v + 0.002 * p), params, velocity)
    for name, found in moments.items():
        params[name] |= {part: 0.9 * params[name][part] + 0.1 * value for part, value in found.items()}
    return params, velocity


@functools.cache
def digits_cnn(seed=0, epochs=12):
    """A residual CNN with grouped filters, relu6 and pooling: x [N, 1, 8, 8], logits [N, 10]."""
    train_images, images, train_labels, labels = digits()
    weights = Weights(seed)
    params = {
        "stem": weights.conv_norm(1, 24, 3, 3),
        "grouped": weights.conv_norm(24, 24, 3, 3, groups=4),
        "mix": weights.conv_norm(24, 24, 1, 1),
        "wide": weights.conv_norm(24, 48, 3, 3),
        "head": weights.dense(48 * 2 * 2, 10),
    }
    velocity = jax.tree.map(jnp.zeros_like, params)
    # A loop in Python: XLA takes ten times as long for a convolution within a scan.
    for step in range(epochs * STEPS):
        if step % STEPS == 0:
            batches = weights.random.permutation(len(train_images))[: STEPS * BATCH].reshape(STEPS, BATCH)
        batch = batches[step % STEPS]
        rate = np.float32(0.05 * (1 + math.cos(math.pi * step / (epochs * STEPS))))
        params, velocity = _train_step(params, velocity, rate, train_images[batch], train_labels[batch])

    def make_inputs(batch=1, seed=0):
        return (jnp.asarray(np.random.default_rng(seed).choice(train_images, batch)),)

    return TrainedModel(_digits_cnn, params, make_inputs, *map(jnp.asarray, (train_images, images, labels)))


def _resnet18(params, x, batch_norm=None, layout="NCHW"):
    axis, apply_conv = layout.index("C"), functools.partial(conv, layout=layout)
    batch_norm = batch_norm or BatchNorm(axis=axis)
    spatial = tuple(layout.index(letter) for letter in "HW")

    def unit(name, x, stride=1):
        return batch_norm(params, name, apply_conv(params[name], x, stride))

    x = max_pool(jax.nn.relu(unit("stem", x, 2)), 3, 2, 1, spatial)
    for stage in range(4):
        for block in range(2):
            name, stride = f"stage_{stage}.block_{block}", 2 if stage and not block else 1
            branch = jax.nn.relu(unit(f"{name}.conv_1", x, stride))
            branch = unit(f"{name}.conv_2", branch)
            shortcut = unit(f"{name}.shortcut", x, stride) if f"{name}.shortcut" in params else x
            x = jax.nn.relu(branch + shortcut)
    return dense(params["head"], jnp.mean(x, spatial))


@functools.cache
def resnet18(size=224, width=64, layout="NCHW", seed=0):
    """ResNet-18, the same network in both layouts: x [N, 3, size, size] or [N, size, size, 3], logits [N, 1000]."""
    weights, channels = Weights(seed), width
    params = {"stem": weights.conv_norm(3, width, 7, 7)}
    for stage in range(4):
        outputs = width << stage
        for block in range(2):
            name = f"stage_{stage}.block_{block}"
            params[f"{name}.conv_1"] = weights.conv_norm(channels, outputs, 3, 3)
            params[f"{name}.conv_2"] = weights.conv_norm(outputs, outputs, 3, 3, scale=0.5)
            if channels != outputs:
                params[f"{name}.shortcut"] = weights.conv_norm(channels, outputs, 1, 1)
            channels = outputs
    params["head"] = weights.dense(channels, CLASSES)
    # Smaller images give each BatchNorm similar statistics.
    (x,) = normal_inputs(3, min(size, 112), min(size, 112))(8, seed=1)
    params = measured(_resnet18, params, x, weights)
    if layout == "NCHW":
        return Model(_resnet18, params, normal_inputs(3, size, size))
    params = {
        name: layer | {"w": layer["w"].transpose(2, 3, 1, 0)} if layer["w"].ndim == 4 else layer
        for name, layer in params.items()
    }
    return Model(functools.partial(_resnet18, layout=layout), params, normal_inputs(size, size, 3))


def transformer_block(batch=4, tokens=128, width=256, heads=8, seed=0):
    """Attention and an MLP with gelu: x and the result [N, tokens, width]."""
    params = Weights(seed).block(width, 4 * width)
    return Model(functools.partial(attention_block, heads=heads), params, normal_inputs(tokens, width, batch=batch))


def _vit(params, x):
    patches = conv(params["patches"], x, 4)
    tokens = patches.reshape(*patches.shape[:2], -1).swapaxes(1, 2)
    first = jnp.broadcast_to(params["first"], (x.shape[0], 1, tokens.shape[-1]))
    x = jnp.concatenate([first, tokens], 1) + params["positions"]
    for block in params["blocks"]:
        x = attention_block(block, x, 4)
    return dense(params["head"], layer_norm(params["norm"], x)[:, 0])


def vit(width=32, seed=0):
    """A transformer of patches, which a convolution makes, and a class token: x [N, 3, 16, 16], logits [N, 10]."""
    weights = Weights(seed)
    params = {
        "patches": weights.conv(3, width, 4, 4), "first": weights.normal(1, 1, width),
        "positions": weights.normal(1, 26, width), "blocks": [weights.block(width, 2 * width) for _ in range(2)],
        "norm": {"scale": weights.normal(width, mean=1.0), "bias": weights.normal(width)},
        "head": weights.dense(width, 10),
    }  # fmt: skip
    return Model(_vit, params, normal_inputs(3, 16, 16))


def _stacked(layers):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)


def _scanned_mlp(params, x):
    x, _ = lax.scan(lambda x, layer: (jax.nn.relu(dense(layer, x)), None), x, params["layers"])
    return dense(params["head"], x)


def scanned_mlp(layers=6, width=64, seed=0):
    """A scan over dense layers with relu, then a head: x [N, width], logits [N, 10]."""
    weights = Weights(seed)
    stacked = _stacked([weights.dense(width, width, gain=2.0) for _ in range(layers)])
    return Model(_scanned_mlp, {"layers": stacked, "head": weights.dense(width, 10)}, normal_inputs(width))


def _scanned_transformer(params, x, heads):
    return lax.scan(lambda x, layer: (attention_block(layer, x, heads), None), x, params)[0]


def scanned_transformer(layers=3, tokens=16, width=64, heads=4, seed=0):
    """A scan over transformer blocks: x and the result [N, tokens, width]."""
    weights = Weights(seed)
    params = _stacked([weights.block(width, 4 * width) for _ in range(layers)])
    return Model(functools.partial(_scanned_transformer, heads=heads), params, normal_inputs(tokens, width))


def _mobilenet_v3_block(params, x, batch_norm=None):
    batch_norm = batch_norm or BatchNorm()
    branch = jax.nn.hard_swish(batch_norm(params, "expand", conv(params["expand"], x)))
    depthwise = conv(params["depthwise"], branch)
    branch = jax.nn.hard_swish(batch_norm(params, "depthwise", depthwise))
    gates = jax.nn.relu(conv(params["squeeze"], jnp.mean(branch, (2, 3), keepdims=True)))
    branch = branch * jax.nn.hard_sigmoid(conv(params["excite"], gates))
    return x + batch_norm(params, "project", conv(params["project"], branch))


def mobilenet_v3_block(size=14, channels=16, hidden=64, seed=0):
    """An inverted residual with squeeze-and-excitation and hard_swish: x and the result [N, channels, size, size]."""
    weights, make_inputs = Weights(seed), normal_inputs(channels, size, size)
    params = {
        "expand": weights.conv_norm(channels, hidden, 1, 1),
        "depthwise": weights.conv_norm(hidden, hidden, 5, 5, groups=hidden),
        "squeeze": weights.conv(hidden, hidden // 4, 1, 1),
        "excite": weights.conv(hidden // 4, hidden, 1, 1),
        "project": weights.conv_norm(hidden, channels, 1, 1),
    }
    return Model(_mobilenet_v3_block, measured(_mobilenet_v3_block, params, *make_inputs(8, seed=1)), make_inputs)


def _unet(params, x):
    outer = jax.nn.relu(conv(params["outer"], x))
    inner = jax.nn.relu(conv(params["inner"], max_pool(outer, 2, 2)))
    x = jax.nn.relu(conv(params["middle"], max_pool(inner, 2, 2)))
    x = jnp.concatenate([inner, jnp.repeat(jnp.repeat(x, 2, 2), 2, 3)], 1)
    x = jax.nn.relu(conv(params["inner_up"], x))
    x = jnp.concatenate([outer, jax.image.resize(x, (*x.shape[:2], *outer.shape[2:]), "nearest")], 1)
    return conv(params["mask"], jax.nn.relu(conv(params["outer_up"], x)))


def unet(size=32, width=8, seed=0):
    """Two levels, raised by repeat and by jax.image.resize: x [N, 3, size, size], the mask [N, 1, size, size]."""
    weights = Weights(seed)
    params = {"outer": weights.conv(3, width, 3, 3), "mask": weights.conv(width, 1, 1, 1)}
    for name, (inputs, outputs) in {"inner": (1, 2), "middle": (2, 4), "inner_up": (6, 2), "outer_up": (3, 1)}.items():
        params[name] = weights.conv(inputs * width, outputs * width, 3, 3)
    return Model(_unet, params, normal_inputs(3, size, size))


def _causal_conv1d(params, x):
    for name in ("dilated_1", "dilated_2", "dilated_4"):
        dilation = int(name[-1])
        padded = jnp.pad(x, ((0, 0), (0, 0), (2 * dilation, 0)))
        y = lax.conv_general_dilated(padded, params[name]["w"], (1,), "VALID", rhs_dilation=(dilation,))
        x = x + jax.nn.relu(y + params[name]["b"][None, :, None])
    return dense(params["head"], x[:, :, -1])


def causal_conv1d(tokens=32, channels=16, seed=0):
    """Residual, dilated convolutions that see no later token: x [N, channels, tokens], logits [N, 10] of the last."""
    weights = Weights(seed)
    params = {f"dilated_{dilation}": weights.conv(channels, channels, 3) for dilation in (1, 2, 4)}
    return Model(_causal_conv1d, params | {"head": weights.dense(channels, 10)}, normal_inputs(channels, tokens))


def _tied_embedding_lm(params, tokens, heads):
    x = params["embedding"][tokens] + params["position"][None]
    x = layer_norm(params["norm"], attention_block(params["block"], x, heads, causal=True))
    return x @ params["embedding"].T


def tied_embedding_lm(tokens=16, vocabulary=96, width=64, heads=4, seed=0):
    """A causal block between an embedding and its transpose: int32 [N, tokens], logits [N, tokens, vocabulary]."""
    weights = Weights(seed)
    params = {
        "embedding": weights.normal(vocabulary, width, deviation=width**-0.5),
        "position": weights.normal(tokens, width, deviation=width**-0.5),
        "block": weights.block(width, 4 * width),
        "norm": {"scale": weights.normal(width, mean=1.0), "bias": weights.normal(width)},
    }

    def make_inputs(batch=1, seed=0):
        return (jnp.asarray(np.random.default_rng(seed).integers(vocabulary, size=(batch, tokens)), jnp.int32),)

    return Model(functools.partial(_tied_embedding_lm, heads=heads), params, make_inputs)


def _decoder(params, x, keys, values, position, heads):
    query, *new = jnp.split(dense(params["qkv"], layer_norm(params["norm_1"], x)), 3, -1)
    written = jax.vmap(lambda cache, rows, place: lax.dynamic_update_slice_in_dim(cache, rows, place, 0))
    keys, values = (written(cache, rows, position) for cache, rows in zip((keys, values), new, strict=True))
    query, *caches = (each.reshape(*each.shape[:2], heads, -1).transpose(0, 2, 1, 3) for each in (query, keys, values))
    scores = query @ caches[0].transpose(0, 1, 3, 2) / math.sqrt(query.shape[-1])
    seen = jnp.arange(keys.shape[1], dtype=jnp.int32)[None] <= position[:, None]
    scores = jnp.where(jnp.broadcast_to(seen[:, None, None], scores.shape), scores, -1e9)
    read = (jax.nn.softmax(scores) @ caches[1]).transpose(0, 2, 1, 3).reshape(x.shape)
    x = x + dense(params["out"], read)
    x = x + dense(params["down"], jax.nn.gelu(dense(params["up"], layer_norm(params["norm_2"], x))))
    return dense(params["head"], x), keys, values


def decoder(tokens=12, width=32, heads=4, vocabulary=40, seed=0):
    """A step of a GPT with a cache: a token [N, 1, width], keys and values [N, tokens, width], and int32 positions [N].

    The results are logits [N, 1, vocabulary], and the caches with the token's key and value.
    """
    weights = Weights(seed)
    params = weights.block(width, 4 * width) | {"head": weights.dense(width, vocabulary)}

    def make_inputs(batch=1, seed=0):
        random = np.random.default_rng(seed)
        shapes = (batch, 1, width), (batch, tokens, width), (batch, tokens, width)
        position = random.integers(tokens, size=batch).astype(np.int32)
        return (*(random.standard_normal(shape, np.float32) for shape in shapes), position)

    return Model(functools.partial(_decoder, heads=heads), params, make_inputs)


def _mixer(params, x):
    mixed = layer_norm(params["norm_1"], x).swapaxes(1, 2)
    mixed = dense(params["tokens_down"], jax.nn.gelu(dense(params["tokens_up"], mixed)))
    x = x + mixed.swapaxes(1, 2)
    hidden = jax.nn.gelu(dense(params["up"], layer_norm(params["norm_2"], x)), approximate=False)
    return x + dense(params["down"], hidden)


def mixer(tokens=12, width=32, seed=0):
    """Dense layers over tokens, then over channels: x and the result [N, tokens, width]."""
    weights = Weights(seed)
    params = weights.block(width, 4 * width) | {
        "tokens_up": weights.dense(tokens, 2 * tokens),
        "tokens_down": weights.dense(2 * tokens, tokens),
    }
    return Model(_mixer, params, normal_inputs(tokens, width))


def _lstm(params, x):
    def step(state, x):
        h, c = state
        i, f, g, o = jnp.split(dense(params["kernel"], x) + h @ params["recurrent"], 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    start = jnp.zeros_like(x[:, 0])
    _, outputs = lax.scan(step, (start, start), x.swapaxes(0, 1))
    return jax.nn.softmax(layer_norm(params["norm"], outputs.swapaxes(0, 1)))


def lstm(tokens=12, width=32, seed=0):
    """An LSTM by scan, then softmax: x and the result [N, tokens, width]."""
    weights = Weights(seed)
    params = {
        "kernel": weights.dense(width, 4 * width),
        "recurrent": weights.dense(width, 4 * width)["w"],
        "norm": {"scale": weights.normal(width, mean=1.0), "bias": weights.normal(width)},
    }
    return Model(_lstm, params, normal_inputs(tokens, width))
