"""Cases of a million elements: quantize, dequantize, add. The plain formula of `lax` is the same on every platform."""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

import jaxdml as dml
from benchmarks.case import ORT, Case, Form, data, on_device, ours
from benchmarks.lax_peer import LAX, rounded
from benchmarks.onnx_peer import Graph
from jaxdml import reference

SIZE = 1 << 20


def dequantize(dtype: Any, at_most: float | None = None, peers: str = "cpu") -> Case:
    """With a zero point, except for int32, where onnxruntime supports none."""
    x = data(np.random.default_rng(0), (SIZE,), dtype)
    scale, zero = np.float32(0.013), None if dtype == np.int32 else np.asarray(7, dtype)

    def as_people_write_it(x: Any) -> Any:
        return (x - (0 if zero is None else zero.astype(np.int32))).astype(jnp.float32) * scale

    arguments = on_device(x)
    jitted = ours(lambda x: dml.element_wise_dequantize_linear(x, scale, zero), arguments)
    inputs = (scale,) if zero is None else (scale, zero)
    expected = partial(reference.element_wise_dequantize_linear, x, scale, zero)
    return _case("dequantize", dtype, expected, jitted, as_people_write_it, {"x": x}, inputs, at_most, peers)


def quantize(dtype: Any, at_most: float | None = None, peers: str = "cpu") -> Case:
    """From float32, some of it outside the range."""
    x = np.random.default_rng(0).normal(0, 0.8, SIZE).astype(np.float32)
    scale, zero = np.float32(0.013), np.asarray(7, dtype)

    def as_people_write_it(x: Any) -> Any:
        return rounded(x / scale, 7, dtype)

    jitted = ours(lambda x: dml.element_wise_quantize_linear(x, scale, zero), on_device(x))
    expected = partial(reference.element_wise_quantize_linear, x, scale, zero)
    return _case("quantize", dtype, expected, jitted, as_people_write_it, {"x": x}, (scale, zero), at_most, peers)


def add(dtype: Any, at_most: float | None = None, peers: str = "cpu") -> Case:
    """Both addends have the output's type."""
    rng = np.random.default_rng(0)
    a, b = data(rng, (SIZE,), dtype), data(rng, (SIZE,), dtype)
    a_parameters = np.float32(0.013), np.asarray(7, dtype)
    b_parameters = np.float32(0.021), np.asarray(9, dtype)
    of_output = np.float32(0.03), np.asarray(5, dtype)

    def call(a: Any, b: Any, module: Any = dml) -> Any:
        return module.element_wise_quantized_linear_add(a, *a_parameters, b, *b_parameters, *of_output)

    def as_people_write_it(a: Any, b: Any) -> Any:
        value = (a.astype(jnp.float32) - 7) * a_parameters[0] + (b.astype(jnp.float32) - 9) * b_parameters[0]
        return rounded(value / of_output[0], 5, dtype)

    inputs = (*a_parameters, "b", *b_parameters, *of_output)
    expected = partial(call, a, b, reference)
    jitted = ours(call, on_device(a, b))
    return _case("add", dtype, expected, jitted, as_people_write_it, {"a": a, "b": b}, inputs, at_most, peers)


NODES = {
    "dequantize": ("DequantizeLinear", ""),
    "quantize": ("QuantizeLinear", ""),
    "add": ("QLinearAdd", "com.microsoft"),
}


def _case(
    family: str, dtype: Any, expected: Any, jitted: dict[str, Form], as_people_write_it: Any,
    arrays: dict[str, np.ndarray], inputs: tuple[Any, ...], at_most: float | None, peers: str,
) -> Case:  # fmt: skip
    """A case with its peers: the plain formula, and onnxruntime's node, whose inputs begin with the first array."""
    calls = {}
    if peers:
        jitted[LAX] = as_people_write_it, on_device(*arrays.values())
    if peers == "cpu":
        graph, (operator, domain) = Graph(), NODES[family]
        calls[ORT] = graph.session(arrays, graph.node(operator, next(iter(arrays)), *inputs, domain=domain))
    return Case(family, f"1M {np.dtype(dtype)}", expected, jitted, calls, at_most)
