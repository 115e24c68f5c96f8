"""Float networks as ONNX models with random weights, and the files that onnxruntime's quantizer makes from them.

Batch normalization is folded into the convolutions, as exporters fold it.
"""

import logging
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.onnx_peer import Graph
from benchmarks.shapes import INVERTED, SIZE

IMAGE = "image"


class Builder(Graph):
    """Builds a float network. Values are names; `channels` has the number of channels of each."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._rng = np.random.default_rng(seed)
        self.channels = {IMAGE: 3}

    def unit(self, kind: str, x: str, *inputs: Any, **attributes: Any) -> str:
        """A node whose output has the channels of x."""
        y = self.node(kind, x, *inputs, **attributes)
        self.channels[y] = self.channels[x]
        return y

    def conv(self, x: str, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> str:
        """A convolution with "same" padding and a bias."""
        fan_in = self.channels[x] // groups * kernel**2
        weights = self._rng.normal(0, (2 / fan_in) ** 0.5, (outputs, self.channels[x] // groups, kernel, kernel))
        bias = self._rng.normal(0, 0.1, outputs).astype(np.float32)
        y = self.unit("Conv", x, weights.astype(np.float32), bias, kernel_shape=[kernel] * 2, strides=[stride] * 2,
                      pads=[kernel // 2] * 4, group=groups)  # fmt: skip
        self.channels[y] = outputs
        return y

    def relu(self, x: str) -> str:
        return self.unit("Relu", x)

    def relu6(self, x: str) -> str:
        return self.unit("Clip", x, np.float32(0), np.float32(6))

    def hard_swish(self, x: str) -> str:
        return self.unit("HardSwish", x)

    def silu(self, x: str) -> str:
        return self.unit("Mul", x, self.sigmoid(x))

    def sigmoid(self, x: str) -> str:
        return self.unit("Sigmoid", x)

    def hard_sigmoid(self, x: str) -> str:
        return self.unit("HardSigmoid", x, alpha=1 / 6)

    def add(self, x: str, y: str) -> str:
        return self.unit("Add", x, y)

    def squeeze_and_excite(
        self, x: str, inside: int, activation: Callable[[str], str], gate: Callable[[str], str]
    ) -> str:
        """Multiplies channels by numbers between 0 and 1 that are computed from the channels' means."""
        y = activation(self.conv(self.unit("GlobalAveragePool", x), inside, 1))
        return self.unit("Mul", x, gate(self.conv(y, self.channels[x], 1)))

    def classes(self, x: str, *widths: int, activation: Callable[[str], str] | None = None) -> str:
        """The mean of each channel, then linear layers."""
        x = self.unit("Flatten", self.unit("GlobalAveragePool", x))
        for place, width in enumerate(widths):
            x = activation(x) if activation and place else x
            weights = self._rng.normal(0, (2 / self.channels[x]) ** 0.5, (width, self.channels[x])).astype(np.float32)
            x = self.unit("Gemm", x, weights, np.zeros(width, np.float32), transB=1)
            self.channels[x] = width
        return x


def resnet_18(net: Builder) -> str:
    x = net.unit("MaxPool", net.relu(net.conv(IMAGE, 64, 7, 2)), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for stage in range(4):
        for block in range(2):
            outputs, stride = 64 << stage, 2 if stage and not block else 1
            y = net.conv(net.relu(net.conv(x, outputs, 3, stride)), outputs, 3)
            x = net.relu(net.add(y, net.conv(x, outputs, 1, stride) if stride > 1 else x))
    return net.classes(x, 1000)


def mobilenet_v2(net: Builder) -> str:
    x = net.relu6(net.conv(IMAGE, 32, 3, 2))
    for wider, outputs, blocks, first_stride in INVERTED:
        for block in range(blocks):
            inside, stride = wider * net.channels[x], 1 if block else first_stride
            y = net.relu6(net.conv(x, inside, 1)) if wider > 1 else x
            y = net.conv(net.relu6(net.conv(y, inside, 3, stride, inside)), outputs, 1)
            x = net.add(x, y) if block else y
    return net.classes(net.relu6(net.conv(x, 1280, 1)), 1000)


# For each stage of EfficientNet-B0: expansion factor, outputs, blocks, kernel, stride of the first block.
_EFFICIENT = (
    (1, 16, 1, 3, 1), (6, 24, 2, 3, 2), (6, 40, 2, 5, 2), (6, 80, 3, 3, 2), (6, 112, 3, 5, 1), (6, 192, 4, 5, 2),
    (6, 320, 1, 3, 1),
)  # fmt: skip


def efficientnet_b0(net: Builder) -> str:
    x = net.silu(net.conv(IMAGE, 32, 3, 2))
    for wider, outputs, blocks, kernel, first_stride in _EFFICIENT:
        for block in range(blocks):
            inputs = net.channels[x]
            inside, stride = wider * inputs, 1 if block else first_stride
            y = net.silu(net.conv(x, inside, 1)) if wider > 1 else x
            y = net.silu(net.conv(y, inside, kernel, stride, inside))
            y = net.conv(net.squeeze_and_excite(y, inputs // 4, net.silu, net.sigmoid), outputs, 1)
            x = net.add(x, y) if block else y
    return net.classes(net.silu(net.conv(x, 1280, 1)), 1000)


# For each block of MobileNetV3-Large: channels inside, outputs, kernel, stride, squeeze and excite, hard-swish.
_MOBILE = (
    (16, 16, 3, 1, 0, 0), (64, 24, 3, 2, 0, 0), (72, 24, 3, 1, 0, 0), (72, 40, 5, 2, 1, 0), (120, 40, 5, 1, 1, 0),
    (120, 40, 5, 1, 1, 0), (240, 80, 3, 2, 0, 1), (200, 80, 3, 1, 0, 1), (184, 80, 3, 1, 0, 1), (184, 80, 3, 1, 0, 1),
    (480, 112, 3, 1, 1, 1), (672, 112, 3, 1, 1, 1), (672, 160, 5, 2, 1, 1), (960, 160, 5, 1, 1, 1),
    (960, 160, 5, 1, 1, 1),
)  # fmt: skip


def mobilenet_v3(net: Builder) -> str:
    x = net.hard_swish(net.conv(IMAGE, 16, 3, 2))
    for inside, outputs, kernel, stride, is_squeezed, is_swish in _MOBILE:
        activation = net.hard_swish if is_swish else net.relu
        y = activation(net.conv(x, inside, 1)) if inside != net.channels[x] else x
        y = activation(net.conv(y, inside, kernel, stride, inside))
        if is_squeezed:
            y = net.squeeze_and_excite(y, (inside // 4 + 7) // 8 * 8, net.relu, net.hard_sigmoid)
        y = net.conv(y, outputs, 1)
        x = net.add(x, y) if stride == 1 and outputs == net.channels[x] else y
    return net.classes(net.hard_swish(net.conv(x, 960, 1)), 1280, 1000, activation=net.hard_swish)


NETWORKS: dict[str, Callable[[Builder], str]] = {
    "ResNet-18": resnet_18,
    "MobileNetV2": mobilenet_v2,
    "EfficientNet-B0": efficientnet_b0,
    "MobileNetV3": mobilenet_v3,
}


def images(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, (1, 3, SIZE, SIZE)).astype(np.float32)


def quantized(name: str) -> bytes:
    """The file in QOperator format: uint8 activations, int8 weights with a scale for each channel."""
    return file_of(NETWORKS[name], images, "QOperator", "QUInt8", "QInt8", per_channel=True)


def file_of(
    build: Callable[["Builder"], str], draw: Callable[[int], np.ndarray], form: str, activations: str, weights: str,
    **options: bool,
) -> bytes:  # fmt: skip
    """The file of a network, as onnxruntime quantizes it.

    Args:
      build: adds the network's nodes, and returns the name of its output.
      draw: maps a seed to an input, with which onnxruntime calibrates.
      form: a name of onnxruntime's QuantFormat.
      activations, weights: names of onnxruntime's QuantType.
      **options: other options of `quantize_static`.
    """
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Inputs(CalibrationDataReader):
        def __init__(self) -> None:
            self._rest: Iterator[Any] = iter([{IMAGE: draw(seed)} for seed in range(2)])

        def get_next(self) -> Any:
            return next(self._rest, None)

    logging.getLogger().setLevel(logging.ERROR)  # the quantizer's warnings do not concern these files
    net = Builder()
    output = build(net)
    model = net.model({IMAGE: draw(0)}, output, np.float32)
    with tempfile.TemporaryDirectory() as folder:
        of_floats, of_integers = Path(folder, "float.onnx"), Path(folder, "quantized.onnx")
        onnx.save(model, of_floats)
        quantize_static(
            of_floats, of_integers, Inputs(), quant_format=QuantFormat[form], activation_type=QuantType[activations],
            weight_type=QuantType[weights], **options,
        )  # fmt: skip
        return of_integers.read_bytes()
