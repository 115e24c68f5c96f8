"""A network in int8 for jaxdml and its peers: convolutions, adds and max pools of uint8 activations.

Activations after a ReLU have zero point 0, so that saturation acts as the ReLU; all others have 128. The classifier is
a 1x1 convolution.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxdml as dml
from benchmarks import lax_peer, shapes
from benchmarks.case import ONNX, ORT, ORT_U8, Case, Form, data, ours
from benchmarks.lax_peer import LAX
from benchmarks.onnx_peer import Graph, moved
from benchmarks.shapes import Layer, Operators, Shape
from jaxdml import reference

SCALE = np.float32(0.02)
MIDDLE = np.uint8(128)  # the zero point of a value that is added to a skip


def network(batch: int, at_most: float | None = None, peers: str = "cpu") -> Case:
    """A network of ResNet-18's shape."""
    return _case(shapes.RESNET_18, batch, at_most, peers)


def mobilenet(batch: int, at_most: float | None = None, peers: str = "cpu") -> Case:
    """A network of MobileNetV2's shape."""
    return _case(shapes.MOBILENET_V2, batch, at_most, peers)


def of_jaxdml(operators: Any, max_pool: Callable[[Any], Any]) -> Operators:
    """The operators of jaxdml, or of its reference."""

    def convolve(x: Any, layer: Layer) -> Any:
        padding = layer.kernel // 2
        return operators.quantized_linear_convolution(
            x, SCALE, layer.input_zero_point, layer.weights, layer.weight_scale, None, layer.bias,
            SCALE, layer.output_zero_point, strides=layer.stride, start_padding=padding, end_padding=padding,
            group_count=layer.group_count,
        )  # fmt: skip

    def add(x: Any, skip: Any, zero: np.uint8) -> Any:
        return operators.element_wise_quantized_linear_add(x, SCALE, MIDDLE, skip, SCALE, zero, SCALE, zero)

    return Operators(convolve, add, max_pool)


def max_pool(x: Any) -> Any:
    """Pools rows, then columns: XLA:CPU takes 2.5 times as long for both at once."""
    x = lax.reduce_window(x, np.uint8(0), lax.max, (1, 1, 3, 1), (1, 1, 2, 1), ((0, 0), (0, 0), (1, 1), (0, 0)))
    return lax.reduce_window(x, np.uint8(0), lax.max, (1, 1, 1, 3), (1, 1, 1, 2), ((0, 0), (0, 0), (0, 0), (1, 1)))


def float_max_pool(x: Any) -> Any:
    """Channels last, after a ReLU, so that no value is below 0."""
    sides = ((0, 0), (1, 1), (1, 1), (0, 0))
    return lax.reduce_window(x, np.zeros((), x.dtype), lax.max, (1, 3, 3, 1), (1, 2, 2, 1), sides)


def numpy_max_pool(x: np.ndarray) -> np.ndarray:
    x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2]
    return windows.max((-2, -1))


def _in_lax(layer: Layer) -> dict[str, Any]:
    return {"stride": layer.stride, "padding": layer.kernel // 2, "group_count": layer.group_count}


def of_lax() -> Operators:
    """The operators of `lax` with int8 operands, as people write them."""

    def convolve(x: Any, layer: Layer) -> Any:
        total = lax_peer.conv(x, int(layer.input_zero_point), layer.weights, **_in_lax(layer))
        total = total + layer.bias[:, None, None].astype(total.dtype)
        multiplier = (SCALE * layer.weight_scale / SCALE)[:, None, None]
        return lax_peer.requantized(total, multiplier, int(layer.output_zero_point))

    def add(x: Any, skip: Any, zero: np.uint8) -> Any:
        value = (x.astype(jnp.float32) - 128) * SCALE + (skip.astype(jnp.float32) - int(zero)) * SCALE
        return lax_peer.rounded(value / SCALE, int(zero), jnp.uint8)

    return Operators(convolve, add, max_pool)


def of_floats() -> Operators:
    """The operators of the float network."""

    def convolve(x: Any, layer: Layer) -> Any:
        x = lax_peer.float_conv(x, layer.weights, layer.bias, **_in_lax(layer))
        return x if layer.output_zero_point else jnp.maximum(x, 0)

    def add(x: Any, skip: Any, zero: np.uint8) -> Any:
        return x + skip if zero else jnp.maximum(x + skip, 0)

    return Operators(convolve, add, float_max_pool)


def of_onnx(graph: Graph, weights_of: Callable[[np.ndarray], Any], weight_zero: Any) -> Operators:
    def convolve(x: str, layer: Layer) -> str:
        zeros = np.full(len(layer.weights), weight_zero) if weight_zero.dtype == np.int8 else weight_zero
        inputs = (SCALE, layer.input_zero_point, weights_of(layer.weights), layer.weight_scale, zeros, SCALE)
        attributes = {"strides": [layer.stride] * 2, "pads": [layer.kernel // 2] * 4, "group": layer.group_count}
        return graph.node("QLinearConv", x, *inputs, layer.output_zero_point, layer.bias, **attributes)

    def add(x: str, skip: str, zero: np.uint8) -> str:
        return graph.node("QLinearAdd", x, SCALE, MIDDLE, skip, SCALE, zero, SCALE, zero, domain="com.microsoft")

    def max_pool(x: str) -> str:
        return graph.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)

    return Operators(convolve, add, max_pool)


def _from_onnx(model: Any, image: Any) -> Form:
    """The same network as `jaxdml.onnx` reads it from onnxruntime's model."""
    loaded = dml.onnx.load(model)

    def run(image: Any, params: Any) -> Any:
        (output,) = loaded.apply(params, image).values()
        return output

    return run, (image, loaded.params)


def _case(shape: Shape, batch: int, at_most: float | None, peers: str) -> Case:
    rng = np.random.default_rng(0)
    layers = shape.layers(rng)
    x = data(rng, (batch, 3, shapes.SIZE, shapes.SIZE), np.uint8)
    image = jnp.asarray(x)

    def run(operators: Operators, x: Any, weights: dict[str, Any]) -> Any:
        with_weights = {name: layer._replace(weights=weights[name]) for name, layer in layers.items()}
        return shape.forward(x, with_weights, operators)

    def each(hold: Callable[[Layer], Any]) -> tuple[Any, dict[str, Any]]:
        return image, {name: hold(layer) for name, layer in layers.items()}

    def prepared() -> Any:
        return each(lambda layer: dml.prepare_convolution_filter(layer.weights, group_count=layer.group_count))

    jitted = ours(partial(run, of_jaxdml(dml, max_pool)), each(lambda layer: jnp.asarray(layer.weights)), prepared)
    if peers:
        jitted[LAX] = partial(run, of_lax()), each(lambda layer: lax_peer.held(layer.weights, (1, 2, 3)))
    for name, dtype in lax_peer.FLOATS[peers].items():
        _, weights = each(lambda layer, dtype=dtype: lax_peer.hwio(layer.weights, dtype))
        jitted[name] = partial(run, of_floats()), (lax_peer.nhwc(x, dtype), weights)
    calls = {}
    if peers == "cpu":
        for name, weights_of, zero in ((ORT, lambda w: w, np.int8(0)), (ORT_U8, moved, np.uint8(128))):
            graph = Graph()
            output = shape.forward("x", layers, of_onnx(graph, weights_of, zero))
            calls[name] = graph.session({"x": x}, output)
            if name == ORT:
                jitted[ONNX] = _from_onnx(graph.model({"x": x}, output, np.uint8), image)
    return Case(
        "network",
        f"{shape.name} shape, 224x224, batch {batch}",
        lambda: shape.forward(x, layers, of_jaxdml(reference, numpy_max_pool)),
        jitted,
        calls,
        at_most,
        multiply_adds=batch * shapes.multiply_adds(shape, layers),
    )
