"""Small float functions that a quantizer finds awkward, each with the expected outcome for its contractions."""

import jax
import jax.numpy as jnp
from jax import lax

from _ptq import awkward_networks as ptq_awkward_networks
from _ptq.case import IMAGE, TOKENS, Cases, biases, channel, conv, filters, matrix, normalized, row, scales
from _ptq.layers import average_pool, layer_norm, max_pool

case = Cases()

# Between two dense layers: x [N, 16], hidden [N, 24], y [N, 8] -------------------------------------------------------


@jax.custom_jvp
def custom_jvp_square(x):
    return jnp.square(jax.nn.relu(x))


custom_jvp_square.defjvp(lambda xs, ts: (custom_jvp_square(*xs), 2 * jax.nn.relu(xs[0]) * ts[0]))


@jax.custom_vjp
def straight_through_clip(x):
    return jnp.clip(x, -1, 1)


straight_through_clip.defvjp(lambda x: (straight_through_clip(x), None), lambda _, t: (t,))


@jax.jit
def nested_jit(x):
    return jax.jit(jax.nn.relu)(x) * 2


ACTIVATIONS = {
    "relu6": jax.nn.relu6,
    "clip": lambda x: jnp.clip(x, -0.5, 1.0),
    "relu written as where(x > 0)": lambda x: jnp.where(x > 0, x, 0),
    "leaky_relu": jax.nn.leaky_relu,
    "elu": jax.nn.elu,
    "softplus": jax.nn.softplus,
    "silu": jax.nn.silu,
    "hard_swish": jax.nn.hard_swish,
    "exact gelu (erf)": lambda x: jax.nn.gelu(x, approximate=False),
    "square": jnp.square,
    "tanh": jnp.tanh,
    "custom_jvp activation": custom_jvp_square,
    "custom_vjp activation": straight_through_clip,
    "nested jit": nested_jit,
    "jax.checkpoint": jax.checkpoint(lambda x: jax.nn.relu(x)),
    "LayerNorm without parameters": lambda x: normalized(x, -1),
    "RMSNorm without scale": lambda x: x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-5),
    "l2 normalization": lambda x: x / jnp.sqrt(jnp.sum(jnp.square(x), -1, keepdims=True) + 1e-5),
    "stack and unstack": lambda x: sum(jnp.unstack(jnp.stack([x, -x, 2 * x], 1), axis=1)),
    "lax.cond without a contraction": lambda x: lax.cond(x[0, 0] > 0, jnp.tanh, jax.nn.relu, x),
}
TWO = {"w": matrix(16, 24), "v": matrix(24, 8)}


def between_dense(activation):
    return lambda p, x: activation(x @ p["w"] + row(p["b"], x)) @ p["v"]


for _name, _activation in ACTIVATIONS.items():
    case(_name, b=biases(24), **TWO)(between_dense(_activation))
for _dtype in (jnp.bfloat16, jnp.float16):
    case(f"{_dtype.__name__} params and inputs", dtype=_dtype, b=biases(24), **TWO)(between_dense(jax.nn.relu))


# Between two convolutions: x [N, 8, 10, 10], y [N, 4, ...] -----------------------------------------------------------


def counted_average(x):
    return lax.reduce_window(x, 0.0, lax.add, (1, 1, 3, 3), (1, 1, 2, 2), "SAME") / 9


def uncounted_average(x):
    sums, counts = (
        lax.reduce_window(y, 0.0, lax.add, (1, 1, 3, 3), (1, 1, 2, 2), "SAME")
        for y in (x, jnp.ones(x.shape[2:], x.dtype)[None, None])
    )
    return sums / counts


def pixel_shuffle(x):
    x = x.reshape(x.shape[0], -1, 2, 2, *x.shape[2:]).transpose(0, 1, 4, 2, 5, 3)
    return x.reshape(x.shape[0], x.shape[1], 2 * x.shape[2], -1)


def group_norm(x):
    return normalized(x.reshape(x.shape[0], 4, -1), -1).reshape(x.shape)


BETWEEN = {  # the operation, and how many of 8 channels it leaves
    "max pool": (lambda x: max_pool(x, 2, 2), 8),
    "max pool, padded": (lambda x: max_pool(x, 3, 2, 1), 8),
    "average pool": (lambda x: average_pool(x, 2), 8),
    "average pool by mean": (lambda x: jnp.mean(x.reshape(*x.shape[:2], 5, 2, 5, 2), (3, 5)), 8),
    "average pool, padding counted": (counted_average, 8),
    "average pool, padding not counted": (uncounted_average, 8),
    "global mean": (lambda x: jnp.mean(x, (2, 3), keepdims=True), 8),
    "global max": (lambda x: jnp.max(x, (2, 3), keepdims=True), 8),
    "pad": (lambda x: jnp.pad(x, ((0, 0), (0, 0), (1, 2), (0, 1))), 8),
    "pad before max pool": (lambda x: max_pool(jnp.pad(x, ((0, 0), (0, 0), (1, 1), (0, 2))), 2, 2), 8),
    "pad with 1": (lambda x: jnp.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=1), 8),
    "reflected padding": (lambda x: jnp.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), "reflect"), 8),
    "nearest resize": (lambda x: jax.image.resize(x, (*x.shape[:2], 20, 20), "nearest"), 8),
    "repeat": (lambda x: jnp.repeat(jnp.repeat(x, 2, 2), 2, 3), 8),
    "pixel shuffle": (pixel_shuffle, 2),
    "channel shuffle": (lambda x: x.reshape(x.shape[0], 2, 4, 10, 10).swapaxes(1, 2).reshape(x.shape), 8),
    "split, halves added": (lambda x: sum(jnp.split(x, 2, 1)), 4),
    "concatenated with itself turned": (lambda x: jnp.concatenate([x, jnp.flip(x, 3)], 1), 16),
    "GroupNorm": (group_norm, 8),
    "strided slice": (lambda x: x[:, ::2, 1::2, 1:-1], 4),
}


def between_convolutions(operation):
    return lambda p, x: conv(operation(jax.nn.relu(conv(x, p["w"]) + channel(p["b"], x))), p["v"])


for _name, (_operation, _channels) in BETWEEN.items():
    _filters = {"w": filters(8, 8, 3, 3), "v": filters(4, _channels, 1, 1)}
    case(_name, IMAGE, b=biases(8), **_filters)(between_convolutions(_operation))


# Parameters and products ---------------------------------------------------------------------------------------------

case("weights used twice", w=matrix(16, 16))(lambda p, x: jax.nn.relu(x @ p["w"]) @ p["w"])
case("weights on the left", w=filters(24, 16), v=filters(8, 24))(lambda p, x: (p["v"] @ jax.nn.relu(p["w"] @ x.T)).T)
case("two inputs", (16,), (12,), w=matrix(16, 8), v=matrix(12, 8))(lambda p, x, y: jnp.tanh(x @ p["w"] + y @ p["v"]))
case("two inputs concatenated", (16,), (12,), w=matrix(28, 8))(lambda p, *xs: jnp.concatenate(xs, 1) @ p["w"])
case(
    "pixels standardized",
    (3, 8, 8),
    dtype=jnp.uint8,
    below=256,
    mean=scales(3),
    deviation=scales(3),
    w=filters(8, 3, 3, 3),
)(lambda p, x: conv((x.astype(jnp.float32) / 255 - channel(p["mean"], x)) / channel(p["deviation"], x), p["w"]))
case("integers as floats", dtype=jnp.int32, below=9, w=matrix(16, 8))(lambda p, x: x.astype(jnp.float32) @ p["w"])
case("LoRA, weights added", w=matrix(16, 8), a=matrix(16, 4), b=matrix(4, 8))(
    lambda p, x: x @ (p["w"] + 0.5 * (p["a"] @ p["b"]))
)
case("LoRA, results added", w=matrix(16, 8), a=matrix(16, 4), b=matrix(4, 8))(
    lambda p, x: x @ p["w"] + 0.5 * (x @ p["a"] @ p["b"])
)
case("weight norm", g=scales(8), v=matrix(16, 8))(
    lambda p, x: x @ (p["v"] * row(p["g"] / jnp.sqrt(jnp.sum(jnp.square(p["v"]), 0)), p["v"]))
)
case("weight standardization", IMAGE, w=filters(8, 8, 3, 3))(lambda p, x: conv(x, normalized(p["w"], (1, 2, 3)) / 9))
case("BatchNorm before a dense layer", mean=biases(16), var=scales(16), w=matrix(16, 8))(
    lambda p, x: (x - row(p["mean"], x)) * lax.rsqrt(row(p["var"], x)) @ p["w"]
)
case("LayerNorm", scale=scales(16), bias=biases(16), w=matrix(16, 8))(lambda p, x: layer_norm(p, x) @ p["w"])
case("RMSNorm with scale", scale=scales(16), w=matrix(16, 8))(
    lambda p, x: x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-5) * row(p["scale"], x) @ p["w"]
)
case("GLU", w=matrix(16, 24), v=matrix(12, 8))(lambda p, x: jax.nn.glu(x @ p["w"]) @ p["v"])
case("SwiGLU", gate=matrix(16, 24), **TWO)(lambda p, x: (jax.nn.silu(x @ p["gate"]) * (x @ p["w"])) @ p["v"])
case("precision and type of a product", **TWO)(
    lambda p, x: jnp.matmul(x, p["w"] @ p["v"], precision="highest", preferred_element_type=jnp.float32)
)
case("bfloat16 summed in float32", dtype=jnp.bfloat16, w=matrix(16, 8))(
    lambda p, x: jnp.matmul(x, p["w"], preferred_element_type=jnp.float32)
)
case("heads projected by einsum", TOKENS, w=matrix(16, 2 * 8))(
    lambda p, x: jnp.einsum("ntd,dhk->nhtk", x, p["w"].reshape(16, 2, 8))
)
case("einsum over two axes", (6, 2, 8), w=matrix(2 * 8, 12))(
    lambda p, x: jnp.einsum("nthk,hkd->ntd", x, p["w"].reshape(2, 8, 12))
)
case("einsum over the first axis", TOKENS, w=matrix(6, 5))(lambda p, x: jnp.einsum("ntd,to->nod", x, p["w"]))
case("Gram matrix", TOKENS, w=matrix(16, 8))(lambda p, x: jnp.einsum("ntd,nsd->nts", x @ p["w"], x @ p["w"]))
case("vmap within", w=matrix(16, 24), v=matrix(24, 8))(
    lambda p, x: jax.vmap(lambda x: p["v"].T @ jax.nn.relu(x @ p["w"]))(x)
)
case("batched expert weights", w=matrix(16, 4 * 8), v=matrix(4, 8, 5), expects="batched weights")(
    lambda p, x: jnp.einsum("nei,eio->neo", jax.nn.relu(x @ p["w"]).reshape(-1, 4, 8), p["v"])
)
case("vmap over weights", w=matrix(16, 8), v=matrix(4, 8, 5), expects="batched weights")(
    lambda p, x: jax.vmap(lambda v, h: h @ v, (0, None))(p["v"], jax.nn.relu(x @ p["w"])).swapaxes(0, 1)
)
case("a matrix for each row", TOKENS, w=matrix(6, 16, 8), b=biases(6, 8), expects="batched weights")(
    lambda p, x: jax.nn.relu(jax.vmap(jax.vmap(lambda w, b, x: x @ w + b), (None, None, 0))(p["w"], p["b"], x))
)
case("attention pooling", TOKENS, w=matrix(16, 16), v=matrix(16, 1))(
    lambda p, x: jnp.einsum("nt,ntd->nd", jax.nn.softmax((x @ p["v"])[..., 0]), x @ p["w"])
)
case("two experts for each row", w=matrix(16, 16), v=matrix(4, 16, 8))(
    lambda p, x: jnp.einsum("nd,nkdh->nkh", x @ p["w"], p["v"][lax.top_k(x[:, :4], 2)[1]])
)
case("experts gated", gate=matrix(16, 4), w=matrix(16, 4 * 8))(
    lambda p, x: jnp.einsum("neh,ne->nh", (x @ p["w"]).reshape(-1, 4, 8), jax.nn.softmax(x @ p["gate"]))
)


@case("spectral norm", **TWO, u=biases(24))
def _(p, x):
    left = p["w"] @ p["u"]
    right = p["w"].T @ (left / jnp.sqrt(jnp.sum(jnp.square(left))))
    return jax.nn.relu(x @ (p["w"] / jnp.sqrt(jnp.sum(jnp.square(right))))) @ p["v"]


@case(
    "BatchNorm after a dense layer",
    b=biases(24),
    mean=biases(24),
    var=scales(24),
    scale=scales(24),
    bias=biases(24),
    **TWO,
)
def _(p, x):
    x = x @ p["w"] + row(p["b"], x)
    x = (x - row(p["mean"], x)) / jnp.sqrt(row(p["var"], x) + 1e-3) * row(p["scale"], x) + row(p["bias"], x)
    return jax.nn.relu(x) @ p["v"]


@case("mixture of experts by one_hot", gate=matrix(16, 4), w=matrix(16, 4 * 8))
def _(p, x):
    chosen = jax.nn.one_hot(jnp.argmax(x[:, :4], -1), 4, dtype=x.dtype)  # by the input, which rounding does not change
    gates = chosen * jax.nn.softmax(x @ p["gate"])
    return jnp.sum((x @ p["w"]).reshape(-1, 4, 8) * gates[:, :, None], 1)


case("parameter of no use", spare=matrix(3, 3), **TWO)(lambda p, x: jax.nn.relu(x @ p["w"]) @ p["v"])


@case("outputs: a tuple", **TWO)
def _(p, x):
    hidden = jax.nn.relu(x @ p["w"])
    return hidden, hidden @ p["v"], x


@case("outputs: a dict", **TWO)
def _(p, x):
    before = x @ p["w"]
    return {"features": (before, jax.nn.relu(before)), "logits": jax.nn.relu(before) @ p["v"]}


AWKWARD = [*case, *ptq_awkward_networks.case]
