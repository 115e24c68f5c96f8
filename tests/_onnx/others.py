"""Networks of layers that others wrote: equinox's and flax's transformers, and the small CNNs of `_ptq.frameworks`."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen

from _ptq import frameworks
from _ptq.models import Model, normal_inputs

TOKENS, SIZE, WORDS = 12, 32, 50


def _equinox_transformer():
    """Attention and MLP of equinox, under vmap over the batch; x [N, 12, 32]."""
    keys = jax.random.split(jax.random.key(0), 2)
    layers = (
        eqx.nn.LayerNorm(SIZE), eqx.nn.MultiheadAttention(4, SIZE, key=keys[0]), eqx.nn.RMSNorm(SIZE),
        eqx.nn.MLP(SIZE, SIZE, 2 * SIZE, 1, jax.nn.gelu, key=keys[1]),
    )  # fmt: skip
    params, rest = eqx.partition(layers, eqx.is_array)

    def one(params, x):
        norm, attention, other, mlp = eqx.combine(params, rest)
        h = jax.vmap(norm)(x)
        x = x + attention(h, h, h)
        return x + jax.vmap(mlp)(jax.vmap(other)(x))

    return Model(jax.vmap(one, (None, 0)), params, normal_inputs(TOKENS, SIZE))


class LinenTransformer(linen.Module):
    """Embeddings, masked attention and MLP of flax's linen; ids [N, 12]."""

    @linen.compact
    def __call__(self, ids):
        x = linen.Embed(WORDS, SIZE)(ids) + self.param("places", linen.initializers.normal(1.0), (1, TOKENS, SIZE))
        h, mask = linen.LayerNorm()(x), linen.make_causal_mask(ids)
        x = x + linen.MultiHeadDotProductAttention(num_heads=4, name="attention")(h, mask=mask)
        return x + linen.Dense(SIZE, name="down")(jax.nn.gelu(linen.Dense(2 * SIZE, name="up")(linen.LayerNorm()(x))))


def _ids(batch=1, seed=0):
    return (jnp.asarray(np.random.default_rng(seed).integers(0, WORDS, (batch, TOKENS), np.int32)),)


def _linen_transformer():
    network = LinenTransformer()
    return Model(network.apply, network.init(jax.random.key(0), *_ids()), _ids)


def _linen_gru():
    """A recurrent network of flax's linen, whose cell is scanned over 6 steps; x [N, 6, 8]."""
    network, draw = linen.RNN(linen.GRUCell(16)), normal_inputs(6, 8)
    return Model(network.apply, network.init(jax.random.key(0), *draw()), draw)


OTHERS = {
    "equinox transformer": _equinox_transformer, "linen transformer": _linen_transformer, "linen GRU": _linen_gru,
    "equinox CNN": lambda: Model(*frameworks.model("equinox"), frameworks.make_inputs),
    "linen CNN": lambda: Model(*frameworks.model("linen"), frameworks.make_inputs),
}  # fmt: skip


@functools.cache
def other(name):
    return OTHERS[name]()
