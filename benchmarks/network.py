"""A network of ResNet-18's shape, in int8, for jaxdml and its peers: 21 convolutions, 8 adds, one max pool.

The classifier is a 1x1 convolution. Activations after a ReLU have zero point 0, so that saturating is the ReLU.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxdml as dml
from benchmarks.cases import FLOAT, LAX, ORT, ORT_U8, PLAIN, PREPARED, Case, data, moved
from benchmarks.onnx_peer import Graph
from jaxdml import reference

SCALE = np.float32(0.02)
MULTIPLY_ADDS = 1_838_649_344  # for one image


class Layer(NamedTuple):
    """The parameters of a convolution. The input's zero point is 0, but for the image."""

    weights: Any
    weight_scale: np.ndarray
    bias: np.ndarray
    stride: int
    input_zero_point: np.uint8
    output_zero_point: np.uint8


def layers(rng: np.random.Generator) -> dict[str, Layer]:
    """All convolutions by name; weights of any int8 value, scaled so that activations use their range."""
    made = {}

    def layer(
        name: str, inputs: int, outputs: int, kernel: int, stride: int = 1, image: int = 0, relu: bool = True
    ) -> None:
        spread = 74 * 74 * (inputs * kernel**2) ** 0.5
        made[name] = Layer(
            data(rng, (outputs, inputs, kernel, kernel), np.int8),
            (rng.uniform(0.5, 1.5, outputs) * 60 / spread).astype(np.float32),
            rng.integers(-2000, 2000, outputs).astype(np.int32),
            stride,
            np.uint8(image),
            np.uint8(0 if relu else 128),
        )

    layer("stem", 3, 64, 7, 2, image=128)
    inputs = 64
    for stage, outputs in enumerate((64, 128, 256, 512)):
        for block in range(2):
            stride = 2 if stage and not block else 1
            layer(f"{stage}{block}a", inputs, outputs, 3, stride)
            layer(f"{stage}{block}b", outputs, outputs, 3, relu=False)
            if stride == 2:
                layer(f"{stage}{block}skip", inputs, outputs, 1, stride)
            inputs = outputs
    layer("classes", 512, 1000, 1, relu=False)
    return made


def forward(x: Any, weights: dict[str, Any], convolve: Any, add: Any, max_pool: Any) -> Any:
    """The network over any implementation of its three operators."""
    x = max_pool(convolve(x, weights["stem"]))
    for stage in range(4):
        for block in range(2):
            name = f"{stage}{block}"
            skip = convolve(x, weights[f"{name}skip"]) if f"{name}skip" in weights else x
            x = add(convolve(convolve(x, weights[f"{name}a"]), weights[f"{name}b"]), skip)
    return convolve(x, weights["classes"])


def _options(layer: Layer) -> dict[str, int]:
    padding = layer.weights.shape[-1] // 2
    return {"strides": layer.stride, "start_padding": padding, "end_padding": padding}


def convolve(operators: Any, x: Any, layer: Layer) -> Any:
    return operators.quantized_linear_convolution(
        x, SCALE, layer.input_zero_point, layer.weights, layer.weight_scale, None, layer.bias,
        SCALE, layer.output_zero_point, **_options(layer),
    )  # fmt: skip


def add(operators: Any, x: Any, skip: Any) -> Any:
    zero, middle = np.uint8(0), np.uint8(128)
    return operators.element_wise_quantized_linear_add(x, SCALE, middle, skip, SCALE, zero, SCALE, zero)


def max_pool(x: Any) -> Any:
    return lax.reduce_window(x, np.uint8(0), lax.max, (1, 1, 3, 3), (1, 1, 2, 2), ((0, 0), (0, 0), (1, 1), (1, 1)))


def numpy_max_pool(x: np.ndarray) -> np.ndarray:
    x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2]
    return windows.max((-2, -1))


def plain_convolve(dtype: Any, x: Any, layer: Layer) -> Any:
    """With lax, as people write it."""
    padding = layer.weights.shape[-1] // 2
    total = lax.conv_general_dilated(
        x.astype(dtype) - int(layer.input_zero_point),
        layer.weights.astype(dtype),
        (layer.stride, layer.stride),
        [(padding, padding)] * 2,
        preferred_element_type=dtype,
    )
    value = (total + layer.bias[:, None, None].astype(dtype)).astype(jnp.float32) * layer.weight_scale[:, None, None]
    return jnp.clip(jnp.round(value) + int(layer.output_zero_point), 0, 255).astype(jnp.uint8)


def plain_add(x: Any, skip: Any) -> Any:
    value = (x.astype(jnp.float32) - 128) * SCALE + skip.astype(jnp.float32) * SCALE
    return jnp.clip(jnp.round(value / SCALE), 0, 255).astype(jnp.uint8)


def onnx_network(x: np.ndarray, made: dict[str, Layer], weights_of: Callable[[np.ndarray], Any], zero: Any) -> Any:
    graph = Graph()

    def convolve(x: str, layer: Layer) -> str:
        padding = layer.weights.shape[-1] // 2
        zeros = np.full(len(layer.weights), zero) if zero.dtype == np.int8 else zero
        inputs = (SCALE, layer.input_zero_point, weights_of(layer.weights), layer.weight_scale, zeros, SCALE)
        attributes = {"strides": [layer.stride] * 2, "pads": [padding] * 4}
        return graph.node("QLinearConv", x, *inputs, layer.output_zero_point, layer.bias, **attributes)

    def add(x: str, skip: str) -> str:
        inputs = (SCALE, np.uint8(128), skip, SCALE, np.uint8(0), SCALE, np.uint8(0))
        return graph.node("QLinearAdd", x, *inputs, domain="com.microsoft")

    def max_pool(x: str) -> str:
        return graph.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)

    return graph.session({"x": x}, forward("x", made, convolve, add, max_pool))


def network(batch: int, at_most: float | None = None) -> Case:
    rng = np.random.default_rng(0)
    made = layers(rng)
    x = data(rng, (batch, 3, 224, 224), np.uint8)

    def ours(x: Any, weights: dict[str, Any]) -> Any:
        with_weights = {name: layer._replace(weights=weights[name]) for name, layer in made.items()}
        return forward(x, with_weights, partial(convolve, dml), partial(add, dml), max_pool)

    def theirs(dtype: Any, x: Any, weights: dict[str, Any]) -> Any:
        with_weights = {name: layer._replace(weights=weights[name]) for name, layer in made.items()}
        return forward(x, with_weights, partial(plain_convolve, dtype), plain_add, max_pool)

    on_device = jnp.asarray(x)
    arrays = {name: jnp.asarray(layer.weights) for name, layer in made.items()}
    prepared = {name: dml.prepare_convolution_filter(layer.weights) for name, layer in made.items()}
    return Case(
        "network",
        f"ResNet-18 shape, 224x224, batch {batch}",
        lambda: forward(x, made, partial(convolve, reference), partial(add, reference), numpy_max_pool),
        {
            PREPARED: (ours, (on_device, prepared)),
            PLAIN: (ours, (on_device, arrays)),
            LAX: (partial(theirs, jnp.int32), (on_device, arrays)),
            FLOAT: (partial(theirs, jnp.float32), (on_device, arrays)),
        },
        {
            ORT: onnx_network(x, made, lambda w: w, np.int8(0)),
            ORT_U8: onnx_network(x, made, moved, np.uint8(128)),
        },
        at_most,
        multiply_adds=batch * MULTIPLY_ADDS,
    )
