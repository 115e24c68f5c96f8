"""Cases of integer products, dynamic and blocked quantization, and pooling, with peers in jaxdml and onnxruntime.

On a GPU, `peers` is not "cpu": this leaves out onnxruntime, and adds no comparison with lax.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxdml as dml
from benchmarks.case import COPY, ORT, TWIN, Case, data, on_device, ours
from benchmarks.onnx_peer import Graph
from jaxdml import reference

SCALE, ZERO, OF_OUTPUT = np.float32(0.02), np.uint8(121), (np.float32(0.7), np.uint8(130))
MICROSOFT = "com.microsoft"


def integer_product(m: int, k: int, n: int, at_most: float | None = None, peers: str = "cpu") -> Case:
    """uint8 by int8 in int32, compared with the quantized product."""
    rng = np.random.default_rng([m, k, n])
    a, b = data(rng, (m, k), np.uint8), rng.integers(-64, 64, (k, n)).astype(np.int8)

    def twin(a: Any, b: Any) -> Any:
        return dml.quantized_linear_matrix_multiply(a, SCALE, ZERO, b, SCALE, None, *OF_OUTPUT)

    prepared = lambda: (*on_device(a), dml.prepare_matrix_multiply_b(b))  # noqa: E731
    jitted = ours(lambda a, b: dml.matrix_multiply_integer(a, ZERO, b, None), on_device(a, b), prepared)
    jitted[TWIN] = twin, prepared()
    calls = {}
    if peers == "cpu":
        graph = Graph()
        calls[ORT] = graph.session({"a": a}, graph.node("MatMulInteger", "a", b, ZERO, np.int8(0)))
    expected = partial(reference.matrix_multiply_integer, a, ZERO, b, None)
    return Case("integer matrix multiply", f"{m} x {k} x {n}", expected, jitted, calls, at_most, m * k * n)


def integer_convolution(channels: int, size: int, at_most: float | None = None, peers: str = "cpu") -> Case:
    """3 x 3 in int32, compared with the quantized convolution."""
    rng = np.random.default_rng([channels, size])
    x = data(rng, (1, channels, size, size), np.uint8)
    f = rng.integers(-64, 64, (channels, channels, 3, 3)).astype(np.int8)
    padding = {"start_padding": 1, "end_padding": 1}

    def twin(x: Any, f: Any) -> Any:
        return dml.quantized_linear_convolution(x, SCALE, ZERO, f, SCALE, None, None, *OF_OUTPUT, **padding)

    prepared = lambda: (*on_device(x), dml.prepare_convolution_filter(f))  # noqa: E731
    jitted = ours(lambda x, f: dml.convolution_integer(x, ZERO, f, None, **padding), on_device(x, f), prepared)
    jitted[TWIN] = twin, prepared()
    calls = {}
    if peers == "cpu":
        graph = Graph()
        calls[ORT] = graph.session({"x": x}, graph.node("ConvInteger", "x", f, ZERO, np.int8(0), pads=[1] * 4))
    expected = partial(reference.convolution_integer, x, ZERO, f, None, **padding)
    return Case("integer convolution", f"3x3 {channels} at {size}x{size}", expected, jitted, calls, at_most)


def product_in_floats(m: int, k: int, n: int, at_most: float | None = None, peers: str = "cpu") -> Case:
    """uint8 by int8 in float32, with a bias and a scale for each column."""
    rng = np.random.default_rng([m, k, n])
    a, b = data(rng, (m, k), np.uint8), rng.integers(-64, 64, (k, n)).astype(np.int8)
    b_scale, bias = rng.uniform(0.005, 0.015, n).astype(np.float32), rng.normal(0, 9, n).astype(np.float32)

    def multiply(a: Any, b: Any, module: Any = dml) -> Any:
        return module.matrix_multiply_integer_to_float(a, SCALE, ZERO, b, b_scale, None, bias)

    jitted = ours(multiply, on_device(a, b), lambda: (*on_device(a), dml.prepare_matrix_multiply_b(b)))
    calls = {}
    if peers == "cpu":
        graph = Graph()
        inputs = "a", b, SCALE, b_scale, ZERO, np.zeros(n, np.int8), bias
        calls[ORT] = graph.session({"a": a}, graph.node("MatMulIntegerToFloat", *inputs, domain=MICROSOFT))
    expected = partial(multiply, a, b, reference)
    return Case("matrix multiply to float", f"{m} x {k} x {n}", expected, jitted, calls, at_most, m * k * n)


def dynamic_quantize(size: int, at_most: float | None = None, peers: str = "cpu") -> Case:
    """float32 to uint8."""
    x = np.random.default_rng(0).normal(0, 1, size).astype(np.float32)
    jitted, calls = ours(lambda x: dml.dynamic_quantize_linear(x)[0], on_device(x)), {}
    if peers == "cpu":
        graph = Graph()
        calls[ORT] = graph.session({"x": x}, graph.node("DynamicQuantizeLinear", "x", outputs=3))
    expected = lambda: reference.dynamic_quantize_linear(x)[0]  # noqa: E731
    return Case("dynamic quantize", f"{size >> 20}M float32", expected, jitted, calls, at_most)


def _blocks(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """uint4, in blocks of 32."""
    rng = np.random.default_rng(1)
    values = rng.integers(0, 16, (rows, columns)).astype(jnp.uint4)
    zero_points = rng.integers(0, 16, (rows, columns // 32)).astype(jnp.uint4)
    return values, rng.uniform(0.01, 0.02, zero_points.shape).astype(np.float32), zero_points


def dequantize_blocks(rows: int, columns: int, at_most: float | None = None, peers: str = "cpu") -> Case:
    """uint4 in blocks of 32, compared with the conversion of as many bytes to float32."""
    arguments = _blocks(rows, columns)
    jitted = ours(dml.dequantize, on_device(*arguments))
    jitted[COPY] = lambda x: x.astype(jnp.float32), on_device(np.zeros((rows, columns), np.uint8))
    expected = partial(reference.dequantize, *arguments)
    return Case("dequantize", f"uint4 {rows} x {columns}, blocks of 32", expected, jitted, {}, at_most)


def product_of_blocks(m: int, k: int, n: int, at_most: float | None = None, peers: str = "cpu") -> Case:
    """uint4 weights in blocks of 32, dequantized before a float32 product, compared with onnxruntime's MatMulNBits.

    Inputs are whole numbers and scales are powers of two, so that the sums are the same in every order.
    """
    values, scale, zero_points = _blocks(n, k)
    scale = np.exp2(np.round(np.log2(scale)))
    x = np.random.default_rng(2).integers(-4, 5, (m, k)).astype(np.float32)

    def multiply(x: Any, *weights: Any) -> Any:
        return lax.dot_general(x, dml.dequantize(*weights), (((1,), (1,)), ((), ())))

    jitted, calls = ours(multiply, on_device(x, values, scale, zero_points)), {}
    if peers == "cpu":
        graph, bytes_of = Graph(), lambda x: x[..., ::2] | x[..., 1::2] << 4
        packed = bytes_of(values.astype(np.uint8)).reshape(n, k // 32, 16)
        inputs = "x", packed, scale, bytes_of(zero_points.astype(np.uint8))
        node = graph.node("MatMulNBits", *inputs, domain=MICROSOFT, K=k, N=n, bits=4, block_size=32)
        calls[ORT] = graph.session({"x": x}, node)
    weights = partial(reference.dequantize, values, scale, zero_points)
    expected = lambda: (x.astype(np.float64) @ weights().astype(np.float64).T).astype(np.float32)  # noqa: E731
    return Case("float32 by uint4", f"{m} x {k} x {n}", expected, jitted, calls, at_most, m * k * n)


def average_pooling(
    batch: int, channels: int, size: int, window: int, at_most: float | None = None, peers: str = "cpu"
) -> Case:
    """A 3 x 3 window with padding on all sides, or a window of the whole image."""
    x = data(np.random.default_rng(0), (batch, channels, size, size), np.uint8)
    parameters = SCALE, ZERO, np.float32(0.015), np.uint8(120)
    padding = 0 if window == size else 1
    options = {"window_size": window, "start_padding": padding, "end_padding": padding}

    def pool(x: Any, module: Any = dml) -> Any:
        return module.quantized_linear_average_pooling(x, *parameters, **options)

    jitted, calls = ours(pool, on_device(x)), {}
    if peers == "cpu":
        graph = Graph()
        node = {"kernel_shape": [window] * 2, "strides": [1, 1], "pads": [1] * 4}
        name, node = ("QLinearGlobalAveragePool", {}) if window == size else ("QLinearAveragePool", node)
        calls[ORT] = graph.session({"x": x}, graph.node(name, "x", *parameters, domain=MICROSOFT, **node))
    kind = "whole images" if window == size else f"{window}x{window}"
    name = f"{kind}, {channels} at {size}x{size}, batch {batch}"
    return Case("average pooling", name, partial(pool, x, reference), jitted, calls, at_most)
