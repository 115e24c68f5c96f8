"""A small float model with a convolution, a sum, pooling and products; and quantized models with other weights."""

import numpy as np
import onnx
from onnx import numpy_helper

from _onnx.float_models import Graph


def residual(size=8, channels=8, classes=10):
    """A convolutional network with a residual sum: x [N, 3, size, size], y [N, classes]."""
    graph = Graph(17)
    x = graph.node("Relu", graph.conv("x", 3, channels, 3))
    x = graph.node("Relu", graph.node("Add", graph.conv(x, channels, channels, 3), x))
    x = graph.node("Flatten", graph.node("GlobalAveragePool", x))
    x = graph.node("Relu", graph.gemm(x, channels, 2 * channels))
    graph.gemm(x, 2 * channels, classes)
    return graph.model([3, size, size], [classes])


def reversed_weights(model):
    """A copy of a quantized model with its 8-bit weights in reverse order, and the same scales and biases."""
    other = onnx.ModelProto()
    other.CopyFrom(model)
    for tensor in other.graph.initializer:
        weights = numpy_helper.to_array(tensor)
        if weights.dtype in (np.int8, np.uint8) and weights.ndim > 1:
            flipped = weights.reshape(-1)[::-1].reshape(weights.shape)
            tensor.CopyFrom(numpy_helper.from_array(flipped, tensor.name))
    return other
