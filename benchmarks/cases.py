"""What is timed: each case says how jaxdml and its peers compute it, and what NumPy says the answer is."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxdml as dml
from benchmarks.onnx_peer import Graph
from jaxdml import reference

Run = Callable[[], Any]
PREPARED, PLAIN = "jaxdml, prepared weights", "jaxdml"
ORT, ORT_U8 = "onnxruntime", "onnxruntime, uint8 weights"
LAX, FLOAT, AQT = "lax int8", "lax float32", "AQT"
LOOP = "a loop"


@dataclass
class Case:
    """One row of the benchmark.

    `jitted` holds functions and their arguments, to be compiled; `calls` holds what others have compiled already.
    """

    family: str
    name: str
    expected: Callable[[], np.ndarray]
    jitted: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]
    calls: dict[str, Run] = field(default_factory=dict)
    at_most: float | None = None
    multiply_adds: int = 0

    @property
    def first(self) -> str:
        """The form of jaxdml that is compared with others."""
        return PREPARED if PREPARED in self.jitted else PLAIN


def data(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def requantized(accumulator: Any, multiplier: float, zero_point: int) -> jax.Array:
    """As people write it."""
    rounded = jnp.round(accumulator.astype(jnp.float32) * np.float32(multiplier)) + zero_point
    return jnp.clip(rounded, 0, 255).astype(jnp.uint8)


def aqt_dot_general() -> Any:
    """lax.dot_general quantized by AQT to 8 bits, or None where AQT is not installed."""
    try:
        from aqt.jax.v2 import config
    except ImportError:
        return None
    return config.dot_general_make(8, 8)


def matrix_multiply(m: int, k: int, n: int, at_most: float | None = None, peers: bool = True) -> Case:
    """uint8 by int8, one scale for all rows, one for each column, no zero point of B."""
    rng = np.random.default_rng([m, k, n])
    a, b = data(rng, (m, k), np.uint8), data(rng, (k, n), np.int8)
    a_scale, output_scale = np.float32(0.02), np.float32(0.02 * 0.01 * 74 * 74 * k**0.5 / 40)
    b_scale = rng.uniform(0.005, 0.015, n).astype(np.float32)
    a_zero, zero = np.uint8(121), np.uint8(130)

    def multiply(a: Any, b: Any) -> Any:
        return dml.quantized_linear_matrix_multiply(a, a_scale, a_zero, b, b_scale, None, output_scale, zero)

    multiplier = a_scale * b_scale / output_scale

    def plain(a: Any, b: Any) -> Any:
        product = lax.dot(a.astype(jnp.int32) - 121, b.astype(jnp.int32), preferred_element_type=jnp.int32)
        return requantized(product, multiplier, 130)

    def emulated(a: Any, b: Any) -> Any:
        return requantized(lax.dot(a.astype(jnp.float32) - 121, b.astype(jnp.float32)), multiplier, 130)

    on_device = jnp.asarray(a), jnp.asarray(b)
    jitted = {
        PREPARED: (multiply, (on_device[0], dml.prepare_matrix_multiply_b(b))),
        PLAIN: (multiply, on_device),
    }
    calls = {}
    if peers:
        jitted |= {LAX: (plain, on_device), FLOAT: (emulated, on_device)}
        if contraction := aqt_dot_general():
            floats = jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32)
            jitted[AQT] = (lambda a, b: contraction(a, b, (((1,), (0,)), ((), ()))), floats)
        for name, weights, zeros in ((ORT, b, np.zeros(n, np.int8)), (ORT_U8, moved(b), np.full(n, 128, np.uint8))):
            graph = Graph()
            inputs = (a_scale, a_zero, weights, b_scale, zeros, output_scale, zero)
            calls[name] = graph.session({"a": a}, graph.node("QLinearMatMul", "a", *inputs))
    expected = partial(
        reference.quantized_linear_matrix_multiply, a, a_scale, a_zero, b, b_scale, None, output_scale, zero
    )
    name = f"{m} x {k} x {n}"
    return Case("matrix multiply", name, expected, jitted, calls, at_most, m * k * n)


def moved(weights: np.ndarray) -> np.ndarray:
    """int8 weights as uint8 ones with zero point 128: the same answer, in the type that onnxruntime never saturates."""
    return (weights.astype(np.int16) + 128).astype(np.uint8)


def convolution(
    batch: int, channels: int, size: int, outputs: int, kernel: int, *, stride: int = 1, group_count: int = 1,
    at_most: float | None = None, peers: bool = True,
) -> Case:  # fmt: skip
    """uint8 by int8, "same" padding, a scale for each output channel, a bias, no zero point of the filter."""
    rng = np.random.default_rng([batch, channels, size, outputs, kernel])
    depth = channels // group_count * kernel**2
    x, f = (
        data(rng, (batch, channels, size, size), np.uint8),
        data(rng, (outputs, depth // kernel**2, kernel, kernel), np.int8),
    )
    x_scale, output_scale = np.float32(0.02), np.float32(0.02 * 0.01 * 74 * 74 * depth**0.5 / 40)
    f_scale = rng.uniform(0.005, 0.015, outputs).astype(np.float32)
    x_zero, zero = np.uint8(121), np.uint8(130)
    bias = rng.integers(-5000, 5000, outputs).astype(np.int32)
    pad = kernel // 2
    options = {"strides": stride, "start_padding": pad, "end_padding": pad, "group_count": group_count}

    def convolve(x: Any, f: Any) -> Any:
        return dml.quantized_linear_convolution(
            x, x_scale, x_zero, f, f_scale, None, bias, output_scale, zero, **options
        )

    multiplier = (x_scale * f_scale / output_scale)[:, None, None]

    def as_people_write_it(dtype: Any, x: Any, f: Any) -> Any:
        total = lax.conv_general_dilated(
            x.astype(dtype) - 121,
            f.astype(dtype),
            (stride, stride),
            [(pad, pad)] * 2,
            feature_group_count=group_count,
            preferred_element_type=dtype,
        )
        return requantized(total + bias[:, None, None].astype(dtype), multiplier, 130)

    on_device = jnp.asarray(x), jnp.asarray(f)
    prepared = dml.prepare_convolution_filter(f, group_count=group_count)
    jitted = {PREPARED: (convolve, (on_device[0], prepared)), PLAIN: (convolve, on_device)}
    calls = {}
    if peers:
        jitted[LAX] = (partial(as_people_write_it, jnp.int32), on_device)
        jitted[FLOAT] = (partial(as_people_write_it, jnp.float32), on_device)
        for name, weights, zeros in ((ORT, f, np.zeros(outputs, np.int8)), (ORT_U8, moved(f), np.uint8(128))):
            graph = Graph()
            inputs = (x_scale, x_zero, weights, f_scale, zeros, output_scale, zero, bias)
            node = graph.node("QLinearConv", "x", *inputs, strides=[stride] * 2, pads=[pad] * 4, group=group_count)
            calls[name] = graph.session({"x": x}, node)
    expected = partial(
        reference.quantized_linear_convolution,
        x,
        x_scale,
        x_zero,
        f,
        f_scale,
        None,
        bias,
        output_scale,
        zero,
        **options,
    )
    note = f", stride {stride}" * (stride > 1) + f", {group_count} groups" * (group_count > 1)
    name = f"{kernel}x{kernel} {channels} to {outputs} at {size}x{size}, batch {batch}{note}"
    out = 1 + (size + 2 * pad - kernel) // stride
    work = batch * outputs * out * out * depth
    return Case("convolution", name, expected, jitted, calls, at_most, work)


def against_a_loop(name: str, call: Any, xs: np.ndarray, weights: np.ndarray, prepare: Any, at_most: Any) -> Case:
    """vmap over xs, weights or both, prepared, against a loop over the same compiled call; one alone is not mapped."""
    size = max(len(xs), len(weights))
    axes = tuple(0 if len(values) == size else None for values in (xs, weights))

    def each(values: Any) -> list[Any]:
        return [values[i % len(values)] for i in range(size)]

    prepared = [prepare(w) for w in weights]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *prepared) if axes[1] == 0 else prepared[0]
    pairs = list(zip(each([jnp.asarray(x) for x in xs]), each(prepared), strict=True))
    one = jax.jit(call).lower(*pairs[0]).compile()

    def expected() -> np.ndarray:
        return np.stack([call(x, w, reference) for x, w in zip(each(xs), each(weights), strict=True)])

    arguments = (jnp.asarray(xs if axes[0] == 0 else xs[0]), stacked)
    calls = {LOOP: lambda: jax.block_until_ready([one(*pair) for pair in pairs])}
    return Case("vmap", name, expected, {PREPARED: (jax.vmap(call, axes), arguments)}, calls, at_most)


def vmap_matrix_multiply(over: str, size: int, m: int, k: int, n: int, at_most: float | None = None) -> Case:
    """Over a, b or pairs of them."""
    rng = np.random.default_rng([size, m, k, n])
    a = data(rng, (1 if over == "b" else size, m, k), np.uint8)
    b = data(rng, (1 if over == "a" else size, k, n), np.int8)
    output_scale = np.float32(0.02 * 0.01 * 74 * 74 * k**0.5 / 40)

    def multiply(a: Any, b: Any, module: Any = dml) -> Any:
        rest = (np.float32(0.01), None, output_scale, np.uint8(130))
        return module.quantized_linear_matrix_multiply(a, np.float32(0.02), np.uint8(121), b, *rest)

    return against_a_loop(f"{size} {over}, {m} x {k} x {n}", multiply, a, b, dml.prepare_matrix_multiply_b, at_most)


def vmap_convolution(
    over: str, size: int, batch: int, channels: int, extent: int, outputs: int, *, group_count: int = 1,
    at_most: float | None = None,
) -> Case:  # fmt: skip
    """Over inputs, filters or pairs of them."""
    rng = np.random.default_rng([size, batch, channels, extent, outputs])
    xs = data(rng, (1 if over == "filters" else size, batch, channels, extent, extent), np.uint8)
    fs = data(rng, (1 if over == "inputs" else size, outputs, channels // group_count, 3, 3), np.int8)
    output_scale = np.float32(0.02 * 0.01 * 74 * 74 * (9 * channels) ** 0.5 / 40)

    def convolve(x: Any, f: Any, module: Any = dml) -> Any:
        rest = (np.float32(0.01), None, None, output_scale, np.uint8(130))
        return module.quantized_linear_convolution(
            x, np.float32(0.02), np.uint8(121), f, *rest, group_count=group_count
        )

    note = f", {group_count} groups" * (group_count > 1)
    name = f"{size} {over}, 3x3 {channels} to {outputs} at {extent}x{extent}, batch {batch}{note}"
    prepare = partial(dml.prepare_convolution_filter, group_count=group_count)
    return against_a_loop(name, convolve, xs, fs, prepare, at_most)


def dequantize(dtype: Any, at_most: float | None = None) -> Case:
    """A million elements, with a zero point except for int32, where onnxruntime has none."""
    x = data(np.random.default_rng(0), (1 << 20,), dtype)
    scale, zero = np.float32(0.013), None if dtype == np.int32 else np.asarray(7, dtype)
    graph = Graph()
    node = graph.node("DequantizeLinear", "x", scale, *([] if zero is None else [zero]))
    return Case(
        "dequantize",
        f"1M {np.dtype(dtype)}",
        partial(reference.element_wise_dequantize_linear, x, scale, zero),
        {
            PLAIN: (lambda x: dml.element_wise_dequantize_linear(x, scale, zero), (jnp.asarray(x),)),
            LAX: (
                lambda x: (x - (0 if zero is None else zero.astype(np.int32))).astype(jnp.float32) * scale,
                (jnp.asarray(x),),
            ),
        },
        {ORT: graph.session({"x": x}, node)},
        at_most,
    )


def add(dtype: Any, at_most: float | None = None) -> Case:
    """A million elements."""
    rng = np.random.default_rng(0)
    a, b = data(rng, (1 << 20,), dtype), data(rng, (1 << 20,), dtype)
    parameters = [
        np.float32(0.013),
        np.asarray(7, dtype),
        np.float32(0.021),
        np.asarray(9, dtype),
        np.float32(0.03),
        np.asarray(5, dtype),
    ]

    def call(a: Any, b: Any) -> Any:
        return dml.element_wise_quantized_linear_add(a, *parameters[:2], b, *parameters[2:])

    def as_people_write_it(a: Any, b: Any) -> Any:
        value = (a.astype(jnp.float32) - 7) * parameters[0] + (b.astype(jnp.float32) - 9) * parameters[2]
        limits = np.iinfo(dtype)
        return jnp.clip(jnp.round(value / parameters[4]) + 5, limits.min, limits.max).astype(dtype)

    graph = Graph()
    node = graph.node("QLinearAdd", "a", *parameters[:2], "b", *parameters[2:], domain="com.microsoft")
    on_device = jnp.asarray(a), jnp.asarray(b)
    return Case(
        "add",
        f"1M {np.dtype(dtype)}",
        partial(reference.element_wise_quantized_linear_add, a, *parameters[:2], b, *parameters[2:]),
        {PLAIN: (call, on_device), LAX: (as_people_write_it, on_device)},
        {ORT: graph.session({"a": a, "b": b}, node)},
        at_most,
    )
