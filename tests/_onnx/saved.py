"""Quantized functions that are saved as ONNX files: small networks, and onnxruntime's outputs of a file."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
from jax import lax

import jaxdml as dml
from benchmarks import machine

EXACT = {"session.disable_quant_qdq": "1"}  # no operators are fused across QuantizeLinear
LEVELS = {name: getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{name}_ALL") for name in ("DISABLE", "ENABLE")}
LEVELS |= {name: getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{name}") for name in ("BASIC", "EXTENDED")}
RANDOM = np.random.default_rng(7)


def weights(*shape):
    fan_in = math.prod(shape[1:]) if len(shape) == 4 else shape[-2]
    return (RANDOM.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32)


def vector(size):
    return RANDOM.standard_normal(size).astype(np.float32) / 4


def conv(x, w, stride=1, groups=1):
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", feature_group_count=groups)


def cnn(p, x):
    """Convolutions with and without groups, a residual, both poolings, a concatenation, a product of two values."""
    x = jax.nn.relu(conv(x, p["stem"]["w"], 2) + p["stem"]["b"][None, :, None, None])
    branch = conv(jax.nn.relu6(conv(x, p["depthwise"], groups=8)), p["mix"])
    x = jax.nn.relu(x + branch)
    gate = jnp.mean(x, (2, 3), keepdims=True)
    x = x * jax.nn.hard_sigmoid(conv(gate, p["gate"]))
    wide = lax.reduce_window(x, 0.0, lax.add, (1, 1, 3, 3), (1, 1, 2, 2), "VALID") / 9
    most = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), "VALID")
    x = conv(jnp.concatenate([wide, most], 1), p["last"])
    return jnp.mean(jax.nn.relu(x), (2, 3)) @ p["head"]["w"] + p["head"]["b"][None]


CNN = {
    "stem": {"w": weights(8, 3, 3, 3), "b": vector(8)}, "depthwise": weights(8, 1, 3, 3), "mix": weights(8, 8, 1, 1),
    "gate": weights(8, 8, 1, 1), "last": weights(16, 16, 3, 3), "head": {"w": weights(16, 10), "b": vector(10)},
}  # fmt: skip


def mlp(p, x):
    """Dense layers whose activations are tables."""
    for name, function in (("first", jax.nn.gelu), ("second", jax.nn.silu), ("third", jnp.tanh)):
        x = function(x @ p[name]["w"] + p[name]["b"][None])
    return x @ p["last"]["w"]


MLP = {name: {"w": weights(32, 32), "b": vector(32)} for name in ("first", "second", "third", "last")}


def norm(p, x):
    centered = x - jnp.mean(x, -1, keepdims=True)
    y = centered * lax.rsqrt(jnp.mean(jnp.square(centered), -1, keepdims=True) + 1e-5)
    return y * p["scale"][None, None] + p["bias"][None, None]


def block(p, x, heads=2):
    """A transformer block: x [N, tokens, 16]."""
    q, k, v = (
        part.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)
        for part in jnp.split(norm(p["norm_1"], x) @ p["qkv"]["w"] + p["qkv"]["b"][None, None], 3, -1)
    )
    read = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / 4) @ v
    x = x + read.transpose(0, 2, 1, 3).reshape(x.shape) @ p["out"]["w"]
    return x + jax.nn.gelu(norm(p["norm_2"], x) @ p["up"]["w"], approximate=False) @ p["down"]["w"]


def block_weights():
    norms = {name: {"scale": 1 + vector(16), "bias": vector(16)} for name in ("norm_1", "norm_2")}
    return norms | {
        "qkv": {"w": weights(16, 48), "b": vector(48)}, "out": {"w": weights(16, 16)}, "up": {"w": weights(16, 64)},
        "down": {"w": weights(64, 16)},
    }  # fmt: skip


def scan(p, x):
    """A scan over layers, and one over steps whose weights all steps share."""
    x = lax.scan(lambda x, w: (jax.nn.relu(x @ w), None), x, p["layers"])[0]
    steps = lax.scan(lambda h, row: (jnp.tanh(h @ p["cell"] + row), h), x[:, 0], x.swapaxes(0, 1))[1]
    return steps.swapaxes(0, 1) @ p["head"]


SCAN = {"layers": np.stack([weights(8, 8) for _ in range(3)]), "cell": weights(8, 8), "head": weights(8, 4)}
NETWORKS = {
    "CNN": (cnn, CNN, (3, 15, 15)), "MLP": (mlp, MLP, (32,)), "block": (block, block_weights(), (6, 16)),
    "scan": (scan, SCAN, (4, 8)),
}  # fmt: skip


def inputs_of(name, batch=8, seed=0):
    shape = NETWORKS[name][2]
    return np.random.default_rng(seed).standard_normal((batch, *shape)).astype(np.float32)


@functools.cache
def quantized(name, **options):
    apply, params, _ = NETWORKS[name]
    return dml.ptq.quantize(apply, params, [inputs_of(name, 32, 1)], progress=False, **options)


def session(path, level="ENABLE", optimized=None, **entries):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = LEVELS[level]
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(path, *inputs, level="ENABLE", **entries):
    """onnxruntime's outputs of a file, by name."""
    made = session(path, level, **entries)
    names = [each.name for each in made.get_inputs()]
    return dict(zip(
        [each.name for each in made.get_outputs()],
        made.run(None, dict(zip(names, map(np.asarray, inputs), strict=True))), strict=True,
    ))  # fmt: skip


def saved(model, path, form="qdq", **options):
    """The file's proto; the checker of the package onnx has inferred all of its shapes."""
    dml.onnx.save(model, path, form, **options)
    onnx.checker.check_model(str(path), full_check=True)
    return onnx.load(path)


@functools.cache
def has_int8_products():
    """Whether the processor has int8 dot products, without which onnxruntime's kernels for int8 weights saturate."""
    return machine.has_int8_products(machine.environment()["instructions"])


def kinds(proto):
    """The operators of a file, each once."""
    return {node.op_type for node in proto.graph.node}
