"""Awkward parts of networks: attention, kinds of convolutions, branches, control flow."""

import jax
import jax.numpy as jnp
from jax import lax

from _ptq.case import IMAGE, TOKENS, Cases, conv, filters, matrix
from _ptq.layers import max_pool

case = Cases()

# Tokens --------------------------------------------------------------------------------------------------------------

QKV = {"qkv": matrix(16, 48), "out": matrix(16, 16)}


def attention(p, x, mask=None):
    q, k, v = (y.reshape(*x.shape[:2], 2, 8) for y in jnp.split(x @ p["qkv"], 3, -1))
    scores = jnp.einsum("nqhd,nkhd->nhqk", q, k) / 8**0.5
    if mask is not None:
        scores = jnp.where(jnp.broadcast_to(mask, scores.shape), scores, -1e9)
    return jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(scores), v).reshape(x.shape) @ p["out"]


case("attention", TOKENS, **QKV)(attention)
case("attention, causal", TOKENS, **QKV)(lambda p, x: attention(p, x, jnp.tril(jnp.ones((6, 6), bool))[None, None]))
case("attention, masked by the data", TOKENS, **QKV)(lambda p, x: attention(p, x, (x[:, :, 0] > -1)[:, None, None]))
case("attention by jax.nn", TOKENS, **QKV)(
    lambda p, x: (
        jax.nn.dot_product_attention(*(y.reshape(*x.shape[:2], 2, 8) for y in jnp.split(x @ p["qkv"], 3, -1))).reshape(
            x.shape
        )
        @ p["out"]
    )
)
case("one token of many", TOKENS, w=matrix(16, 24), v=matrix(24, 8))(
    lambda p, x: jax.nn.relu(x @ p["w"])[:, 0] @ p["v"]
)
case("tokens gathered", TOKENS, w=matrix(16, 24), v=matrix(24, 8))(
    lambda p, x: jnp.take(jax.nn.relu(x @ p["w"]), jnp.array([4, 0, 4]), axis=1) @ p["v"]
)
case("tied embeddings", (6,), dtype=jnp.int32, below=20, embedding=filters(20, 16), w=matrix(16, 16))(
    lambda p, ids: jax.nn.relu(p["embedding"][ids] @ p["w"]) @ p["embedding"].T
)
case("tokens mixed along both axes", TOKENS, w=matrix(6, 6), v=matrix(16, 16))(
    lambda p, x: (jax.nn.gelu(x.swapaxes(1, 2) @ p["w"]).swapaxes(1, 2)) @ p["v"]
)

# Convolutions --------------------------------------------------------------------------------------------------------

case("depthwise convolution", IMAGE, w=filters(8, 1, 3, 3))(lambda p, x: conv(x, p["w"], feature_group_count=8))
case("depthwise convolution, two filters each", IMAGE, w=filters(16, 1, 3, 3))(
    lambda p, x: conv(x, p["w"], feature_group_count=8)
)
case("grouped convolution", IMAGE, w=filters(12, 2, 3, 3))(lambda p, x: conv(x, p["w"], feature_group_count=4))
case("dilated convolution", IMAGE, w=filters(6, 8, 3, 3))(lambda p, x: conv(x, p["w"], rhs_dilation=(2, 3)))
case("strided SAME convolution", IMAGE, w=filters(6, 8, 3, 3))(lambda p, x: conv(x, p["w"], window_strides=(2, 2)))
case("unequal padding", IMAGE, w=filters(6, 8, 2, 3))(lambda p, x: conv(x, p["w"], padding=((0, 1), (2, 0))))
case("cropped and padded at once", IMAGE, w=filters(6, 8, 3, 3))(
    lambda p, x: conv(lax.pad(x, 0.0, ((0, 0, 0), (0, 0, 0), (-1, 1, 0), (0, -2, 0))), p["w"], padding="VALID")
)
case("1-D convolution", (8, 20), w=filters(6, 8, 3))(lambda p, x: conv(x, p["w"]))
case("causal convolution", (8, 20), w=filters(6, 8, 3))(
    lambda p, x: conv(jnp.pad(x, ((0, 0), (0, 0), (4, 0))), p["w"], padding="VALID", rhs_dilation=(2,))
)
case("NHWC convolution", (10, 10, 8), w=filters(6, 8, 3, 3))(
    lambda p, x: lax.conv_general_dilated(
        x, p["w"].transpose(2, 3, 1, 0), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
)
case("transposed convolution", IMAGE, w=filters(8, 8, 1, 1), v=filters(8, 6, 3, 3))(
    lambda p, x: lax.conv_transpose(conv(x, p["w"]), p["v"], (2, 2), "SAME", dimension_numbers=("NCHW", "IOHW", "NCHW"))
)
case("3-D convolution", (4, 5, 5, 5), w=matrix(5, 5), v=filters(6, 4, 3, 3, 3), expects="3-D convolution")(
    lambda p, x: conv(x @ p["w"], p["v"])
)
case("filter computed from data", IMAGE, w=filters(8, 8, 1, 1), expects="filter computed from data")(
    lambda p, x: conv(x, 0.1 * conv(x, p["w"])[0][:, None], feature_group_count=8, padding="VALID")
)
case("flattened to a dense layer", IMAGE, w=filters(6, 8, 3, 3), v=matrix(600, 10))(
    lambda p, x: jax.nn.relu(conv(x, p["w"])).reshape(x.shape[0], -1) @ p["v"]
)
case("dense layer seen as an image", w=matrix(16, 8 * 5 * 5), v=filters(6, 8, 3, 3))(
    lambda p, x: conv(jax.nn.relu(x @ p["w"]).reshape(-1, 8, 5, 5), p["v"])
)


@case("squeeze and excitation", IMAGE, w=filters(16, 8, 3, 3), squeeze=matrix(16, 4), excite=matrix(4, 16))
def _(p, x):
    x = jax.nn.relu(conv(x, p["w"]))
    gates = jax.nn.sigmoid(jax.nn.relu(jnp.mean(x, (2, 3)) @ p["squeeze"]) @ p["excite"])
    return x * gates[:, :, None, None]


@case("dense block", IMAGE, w=filters(4, 8, 3, 3), v=filters(4, 12, 3, 3), last=filters(4, 16, 1, 1))
def _(p, x):
    for name in ("w", "v"):
        x = jnp.concatenate([x, jax.nn.relu(conv(x, p[name]))], 1)
    return conv(x, p["last"])


@case("branches concatenated", IMAGE, a=filters(4, 8, 1, 1), b=filters(4, 8, 3, 3), last=filters(4, 16, 1, 1))
def _(p, x):
    pooled = max_pool(x, 3, 1, 1)
    return conv(jnp.concatenate([jax.nn.relu(conv(x, p["a"])), conv(x, p["b"]), pooled], 1), p["last"])


# Control -------------------------------------------------------------------------------------------------------------

HIDDEN = {"first": matrix(16, 16), "w": matrix(16, 16)}


def tanh_of(w, x):
    return jnp.tanh(x @ w)


case("lax.cond", **HIDDEN, expects="cond")(
    lambda p, x: lax.cond(x[0, 0] > 0, lambda x: tanh_of(p["w"], x), jnp.negative, tanh_of(p["first"], x))
)
case("lax.switch", **HIDDEN, expects="cond")(
    lambda p, x: lax.switch(
        jnp.argmax(x[0, :3]), [jnp.tanh, jnp.negative, lambda x: tanh_of(p["w"], x)], tanh_of(p["first"], x)
    )
)
case("lax.while_loop", **HIDDEN, expects="while")(
    lambda p, x: lax.while_loop(
        lambda state: state[0] < 3, lambda state: (state[0] + 1, tanh_of(p["w"], state[1])), (0, tanh_of(p["first"], x))
    )[1]
)
case("fori_loop, a number of times", **HIDDEN)(
    lambda p, x: lax.fori_loop(0, 3, lambda _, x: tanh_of(p["w"], x), tanh_of(p["first"], x))
)
case("fori_loop, as often as the data say", **HIDDEN, expects="while")(
    lambda p, x: lax.fori_loop(0, jnp.argmax(x[0]), lambda _, x: tanh_of(p["w"], x), tanh_of(p["first"], x))
)
case("scan over layers", layers=matrix(4, 16, 16), head=matrix(16, 8))(
    lambda p, x: lax.scan(lambda x, w: (tanh_of(w, x), None), x, p["layers"])[0] @ p["head"]
)
case("scan over layers that are returned", layers=matrix(4, 16, 16), head=matrix(16, 8))(
    lambda p, x: lax.scan(lambda x, w: (tanh_of(w, x),) * 2, x, p["layers"])[1].swapaxes(0, 1) @ p["head"]
)
case("scan over time", TOKENS, **HIDDEN)(
    lambda p, x: lax.scan(
        lambda h, x: (tanh_of(p["w"], h) + x,) * 2, jnp.zeros_like(x[:, 0]), (x @ p["first"]).swapaxes(0, 1)
    )[1].swapaxes(0, 1)
)
case("lax.map", TOKENS, **HIDDEN)(
    lambda p, x: lax.map(lambda x: tanh_of(p["w"], x), (x @ p["first"]).swapaxes(0, 1)).swapaxes(0, 1)
)
