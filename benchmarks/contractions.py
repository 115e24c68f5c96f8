"""Cases of products and convolutions."""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxdml as dml
from benchmarks import lax_peer
from benchmarks.case import AQT, ORT, ORT_U8, Case, data, on_device, ours
from benchmarks.lax_peer import LAX
from benchmarks.onnx_peer import Graph, moved
from jaxdml import reference

X_SCALE, X_ZERO, ZERO = np.float32(0.02), np.uint8(121), np.uint8(130)


def output_scale(depth: int) -> np.float32:
    """The output scale that spreads sums of `depth` products over the output's range."""
    return np.float32(0.02 * 0.01 * 74 * 74 * depth**0.5 / 40)


def aqt_dot_general() -> Any:
    """lax.dot_general quantized by AQT to 8 bits, or None where AQT is not installed."""
    try:
        from aqt.jax.v2 import config
    except ImportError:
        return None
    return config.dot_general_make(8, 8)


def matrix_multiply(m: int, k: int, n: int, at_most: float | None = None, peers: str = "cpu") -> Case:
    """uint8 by int8, one scale for all of A, one for each column of B, no zero point of B."""
    rng = np.random.default_rng([m, k, n])
    a, b = data(rng, (m, k), np.uint8), data(rng, (k, n), np.int8)
    b_scale, scale = rng.uniform(0.005, 0.015, n).astype(np.float32), output_scale(k)

    def multiply(a: Any, b: Any) -> Any:
        return dml.quantized_linear_matrix_multiply(a, X_SCALE, X_ZERO, b, b_scale, None, scale, ZERO)

    def as_people_write_it(a: Any, b: Any) -> Any:
        return lax_peer.requantized(lax_peer.dot(a, 121, b), X_SCALE * b_scale / scale, 130)

    plain = on_device(a, b)
    jitted = ours(multiply, plain, lambda: (plain[0], dml.prepare_matrix_multiply_b(b)))
    if peers:
        jitted[LAX] = as_people_write_it, (plain[0], lax_peer.held(b, (0,)))
    for name, dtype in lax_peer.FLOATS[peers].items():
        jitted[name] = lax.dot, tuple(jnp.asarray(x, dtype) for x in (a, b))
    calls = {}
    if peers == "cpu":
        if contraction := aqt_dot_general():
            floats = jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32)
            jitted[AQT] = (lambda a, b: contraction(a, b, (((1,), (0,)), ((), ()))), floats)
        for name, weights, zeros in ((ORT, b, np.zeros(n, np.int8)), (ORT_U8, moved(b), np.full(n, 128, np.uint8))):
            graph = Graph()
            inputs = (X_SCALE, X_ZERO, weights, b_scale, zeros, scale, ZERO)
            calls[name] = graph.session({"a": a}, graph.node("QLinearMatMul", "a", *inputs))
    expected = partial(reference.quantized_linear_matrix_multiply, a, X_SCALE, X_ZERO, b, b_scale, None, scale, ZERO)
    return Case("matrix multiply", f"{m} x {k} x {n}", expected, jitted, calls, at_most, m * k * n)


def convolution(
    batch: int, channels: int, size: int, outputs: int, kernel: int, *, stride: int = 1, group_count: int = 1,
    at_most: float | None = None, peers: str = "cpu",
) -> Case:  # fmt: skip
    """uint8 by int8, "same" padding, a scale for each output channel, a bias, no zero point of the filter."""
    rng = np.random.default_rng([batch, channels, size, outputs, kernel])
    depth = channels // group_count * kernel**2
    x = data(rng, (batch, channels, size, size), np.uint8)
    f = data(rng, (outputs, channels // group_count, kernel, kernel), np.int8)
    f_scale, scale = rng.uniform(0.005, 0.015, outputs).astype(np.float32), output_scale(depth)
    bias = rng.integers(-5000, 5000, outputs).astype(np.int32)
    pad = kernel // 2
    options = {"strides": stride, "start_padding": pad, "end_padding": pad, "group_count": group_count}
    rest = (f_scale, None, bias, scale, ZERO)

    def convolve(x: Any, f: Any) -> Any:
        return dml.quantized_linear_convolution(x, X_SCALE, X_ZERO, f, *rest, **options)

    in_lax = {"stride": stride, "padding": pad, "group_count": group_count}

    def as_people_write_it(x: Any, f: Any) -> Any:
        total = lax_peer.conv(x, 121, f, **in_lax)
        multiplier = (X_SCALE * f_scale / scale)[:, None, None]
        return lax_peer.requantized(total + bias[:, None, None].astype(total.dtype), multiplier, 130)

    plain = on_device(x, f)
    prepare = partial(dml.prepare_convolution_filter, f, group_count=group_count)
    jitted = ours(convolve, plain, lambda: (plain[0], prepare()))
    if peers:
        jitted[LAX] = as_people_write_it, (plain[0], lax_peer.held(f, (1, 2, 3)))
    for name, dtype in lax_peer.FLOATS[peers].items():
        arrays = lax_peer.nhwc(x, dtype), lax_peer.hwio(f, dtype), jnp.asarray(bias, dtype)
        jitted[name] = partial(lax_peer.float_conv, **in_lax), arrays
    calls = {}
    if peers == "cpu":
        for name, weights, zeros in ((ORT, f, np.zeros(outputs, np.int8)), (ORT_U8, moved(f), np.uint8(128))):
            graph = Graph()
            inputs = (X_SCALE, X_ZERO, weights, f_scale, zeros, scale, ZERO, bias)
            node = graph.node("QLinearConv", "x", *inputs, strides=[stride] * 2, pads=[pad] * 4, group=group_count)
            calls[name] = graph.session({"x": x}, node)
    expected = partial(reference.quantized_linear_convolution, x, X_SCALE, X_ZERO, f, *rest, **options)
    note = f", stride {stride}" * (stride > 1) + f", {group_count} groups" * (group_count > 1)
    name = f"{kernel}x{kernel} {channels} to {outputs} at {size}x{size}, batch {batch}{note}"
    out = 1 + (size + 2 * pad - kernel) // stride
    return Case("convolution", name, expected, jitted, calls, at_most, batch * outputs * out * out * depth)
