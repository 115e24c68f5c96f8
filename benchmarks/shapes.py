"""The shapes of networks: their layers, with random weights, and how the layers are connected."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.case import data

SIZE = 224  # of an image


class Layer(NamedTuple):
    """A convolution with "same" padding: weights in any form, and parameters."""

    weights: Any
    weight_scale: np.ndarray
    bias: np.ndarray
    kernel: int
    stride: int
    group_count: int
    input_zero_point: np.uint8
    output_zero_point: np.uint8


class Operators(NamedTuple):
    """The operators that a network is computed with.

    Attributes:
      convolve: (x, layer).
      add: (x, skip, zero point of skip and of the sum); that of x is 128.
      max_pool: (x), 3x3 with stride 2.
    """

    convolve: Callable[[Any, Layer], Any]
    add: Callable[[Any, Any, np.uint8], Any]
    max_pool: Callable[[Any], Any]


class Shape(NamedTuple):
    """A network without its operators: forward is (x, layers by name, operators)."""

    name: str
    layers: Callable[[np.random.Generator], dict[str, Layer]]
    forward: Callable[[Any, dict[str, Layer], Operators], Any]


def layer(
    rng: np.random.Generator, inputs: int, outputs: int, kernel: int, stride: int = 1, *, group_count: int = 1,
    zero: int = 0, relu: bool = True, mean_square: int = 74**2,
) -> Layer:  # fmt: skip
    """Random weights of any int8 value, scaled so that activations use their range.

    `zero` is the input's zero point, `mean_square` is the input's expected mean square.
    """
    spread = 74 * (mean_square * (inputs // group_count * kernel**2)) ** 0.5
    return Layer(
        data(rng, (outputs, inputs // group_count, kernel, kernel), np.int8),
        (rng.uniform(0.5, 1.5, outputs) * 60 / spread).astype(np.float32),
        rng.integers(-2000, 2000, outputs).astype(np.int32),
        kernel,
        stride,
        group_count,
        np.uint8(zero),
        np.uint8(0 if relu else 128),
    )


def multiply_adds(shape: Shape, layers: dict[str, Layer]) -> int:
    """The multiply-adds for one image."""
    counts = []

    def convolve(size: int, layer: Layer) -> int:
        size //= layer.stride
        counts.append(layer.weights.size * size**2)
        return size

    shape.forward(SIZE, layers, Operators(convolve, lambda size, *_: size, lambda size: size // 2))
    return sum(counts)


def _resnet_layers(rng: np.random.Generator) -> dict[str, Layer]:
    """21 convolutions."""
    made = {"stem": layer(rng, 3, 64, 7, 2, zero=128)}
    inputs = 64
    for stage, outputs in enumerate((64, 128, 256, 512)):
        for block in range(2):
            stride = 2 if stage and not block else 1
            made[f"{stage}{block}a"] = layer(rng, inputs, outputs, 3, stride)
            made[f"{stage}{block}b"] = layer(rng, outputs, outputs, 3, relu=False)
            if stride == 2:
                made[f"{stage}{block}skip"] = layer(rng, inputs, outputs, 1, stride)
            inputs = outputs
    return made | {"classes": layer(rng, 512, 1000, 1, relu=False)}


def _resnet(x: Any, layers: dict[str, Layer], operators: Operators) -> Any:
    """8 blocks of two convolutions and an add, after a max pool."""
    convolve, add, max_pool = operators
    x = max_pool(convolve(x, layers["stem"]))
    for stage in range(4):
        for block in range(2):
            name = f"{stage}{block}"
            skip = convolve(x, layers[f"{name}skip"]) if f"{name}skip" in layers else x
            x = add(convolve(convolve(x, layers[f"{name}a"]), layers[f"{name}b"]), skip, np.uint8(0))
    return convolve(x, layers["classes"])


# For each stage of inverted residuals: expansion factor, outputs, blocks, stride of the first block.
INVERTED = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _mobilenet_layers(rng: np.random.Generator) -> dict[str, Layer]:
    """53 convolutions, 17 of them depthwise; few have a skip, so `mean_square` keeps activations from fading."""
    behind_sum = {"zero": 128, "mean_square": 60**2}
    behind_relu = {"mean_square": 42**2}
    made = {"stem": layer(rng, 3, 32, 3, 2, zero=128)}
    inputs = 32
    for stage, (wider, outputs, blocks, stride) in enumerate(INVERTED):
        for block in range(blocks):
            name, inside = f"{stage}{block}", wider * inputs
            if wider > 1:
                made[f"{name}expand"] = layer(rng, inputs, inside, 1, **behind_sum)
            made[f"{name}depthwise"] = layer(
                rng, inside, inside, 3, 1 if block else stride, group_count=inside, **behind_relu
            )
            made[f"{name}project"] = layer(rng, inside, outputs, 1, relu=False, **behind_relu)
            inputs = outputs
    last, classes = layer(rng, 320, 1280, 1, **behind_sum), layer(rng, 1280, 1000, 1, relu=False, **behind_relu)
    return made | {"last": last, "classes": classes}


def _mobilenet(x: Any, layers: dict[str, Layer], operators: Operators) -> Any:
    """17 inverted residuals, 10 of them with an add."""
    convolve, add, _ = operators
    x = convolve(x, layers["stem"])
    for stage, (_, _, blocks, _) in enumerate(INVERTED):
        for block in range(blocks):
            name, inner = f"{stage}{block}", x
            for part in ("expand", "depthwise", "project"):
                inner = convolve(inner, layers[name + part]) if name + part in layers else inner
            x = add(inner, x, np.uint8(128)) if block else inner
    return convolve(convolve(x, layers["last"]), layers["classes"])


RESNET_18 = Shape("ResNet-18", _resnet_layers, _resnet)
MOBILENET_V2 = Shape("MobileNetV2", _mobilenet_layers, _mobilenet)
