"""Float ONNX models with random weights, scaled so that activations neither vanish nor explode.

Each has an input x and an output y, and "N" for the size of the batch.
"""

import math

import numpy as np
from onnx import TensorProto, helper, numpy_helper

IR_VERSIONS = {17: 8, 21: 10}  # by opset, as onnx released them together
CLASSES = 1000
MOBILENET_V2 = (  # expansion, channels for a stem of 32, blocks, stride of the first block
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip


def resnet18(size=224, width=64, opset=17):
    """ResNet-18, its batch norms folded into the convolutions: x [N, 3, size, size], y [N, 1000]."""
    graph = Graph(opset)
    x = graph.node("Relu", graph.conv("x", 3, width, 7, stride=2))
    x = graph.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = width
    for stage in range(4):
        for block in range(2):
            x = _basic_block(graph, x, channels, width << stage, 2 if stage and not block else 1)
            channels = width << stage
    x = graph.node("Flatten", graph.node("GlobalAveragePool", x))
    graph.gemm(x, channels, CLASSES)
    return graph.model([3, size, size], [CLASSES])


def _basic_block(graph, x, inputs, outputs, stride):
    branch = graph.node("Relu", graph.conv(x, inputs, outputs, 3, stride=stride))
    branch = graph.conv(branch, outputs, outputs, 3, gain=0.5)
    if (inputs, stride) != (outputs, 1):
        x = graph.conv(x, inputs, outputs, 1, stride=stride, gain=1.0)
    return graph.node("Relu", graph.node("Add", branch, x))


def mobilenet_v2(size=224, width=32, opset=17, stages=MOBILENET_V2):
    """MobileNetV2 with other kinds of nodes in its head: x [N, 3, size, size], y [N, 1000].

    The head is a squeeze-and-excitation, then two activations, pooled and concatenated; it needs a size of 64.
    """
    graph = Graph(opset)
    x, channels = _clipped(graph, graph.conv("x", 3, width, 3, stride=2)), width
    for expansion, outputs, blocks, stride in stages:
        for block in range(blocks):
            new = outputs * width // 32
            x = _inverted_residual(graph, x, channels, new, expansion, 1 if block else stride)
            channels = new
    x, channels = _excited(graph, graph.conv(x, channels, 4 * channels, 1), 4 * channels), 4 * channels
    branches = graph.node("LeakyRelu", x, alpha=0.1), graph.node("Mul", x, graph.node("Sigmoid", x))
    branches = [graph.node("AveragePool", branch, kernel_shape=[2, 2]) for branch in branches]
    x = graph.mean(graph.node("Concat", *branches, axis=1), [2, 3], keepdims=0)
    graph.gemm(x, 2 * channels, CLASSES)
    return graph.model([3, size, size], [CLASSES])


def _clipped(graph, x):
    return graph.node("Clip", x, graph.constant(np.float32(0)), graph.constant(np.float32(6)))


def _inverted_residual(graph, x, inputs, outputs, expansion, stride):
    hidden = inputs * expansion
    branch = x if expansion == 1 else _clipped(graph, graph.conv(x, inputs, hidden, 1))
    branch = _clipped(graph, graph.conv(branch, hidden, hidden, 3, stride=stride, group=hidden))
    branch = graph.conv(branch, hidden, outputs, 1, gain=1.0)
    return graph.node("Add", x, branch) if (inputs, stride) == (outputs, 1) else branch


def _excited(graph, x, channels):
    weights = graph.node("Relu", graph.conv(graph.mean(x, [2, 3], keepdims=1), channels, channels // 4, 1))
    weights = graph.node("HardSigmoid", graph.conv(weights, channels // 4, channels, 1), alpha=1 / 6)
    return graph.node("Mul", x, weights)


def mlp(inputs=64, hidden=128, outputs=10, opset=17):
    """Three layers: x [N, inputs], probabilities y [N, outputs]."""
    graph = Graph(opset)
    x = graph.node("Relu", graph.gemm("x", inputs, hidden))
    x = graph.node("Relu", graph.gemm(x, hidden, hidden))
    graph.node("Softmax", graph.gemm(x, hidden, outputs), axis=-1)
    return graph.model([inputs], [outputs])


def encoder(blocks=1, sequence=16, width=64, heads=4, hidden=128, gelu="Erf", opset=17):
    """A transformer encoder: x and y [N, sequence, width]. gelu is "Erf", or "Gelu" from opset 20 on."""
    graph = Graph(opset)
    x = "x"
    for _ in range(blocks):
        x = _normalized(graph, graph.node("Add", x, _attention(graph, x, width, heads)), width)
        branch = _gelu(graph, graph.dense(x, width, hidden), gelu)
        x = _normalized(graph, graph.node("Add", x, graph.dense(branch, hidden, width, gain=2.0)), width)
    return graph.model([sequence, width], [sequence, width])


def _attention(graph, x, width, heads):
    apart = graph.constant(np.array([0, 0, heads, width // heads], np.int64))
    together = graph.constant(np.array([0, 0, width], np.int64))
    queries, keys, values = (
        graph.node("Transpose", graph.node("Reshape", graph.dense(x, width, width), apart), perm=order)
        for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    scores = graph.node("MatMul", queries, keys)
    scores = graph.node("Div", scores, graph.constant(np.float32(math.sqrt(width // heads))))
    read = graph.node("MatMul", graph.node("Softmax", scores, axis=-1), values)
    read = graph.node("Reshape", graph.node("Transpose", read, perm=[0, 2, 1, 3]), together)
    return graph.dense(read, width, width)


def _gelu(graph, x, kind):
    if kind == "Gelu":
        return graph.node("Gelu", x)
    erf = graph.node("Erf", graph.node("Div", x, graph.constant(np.float32(math.sqrt(2)))))
    twice = graph.node("Mul", x, graph.node("Add", erf, graph.constant(np.float32(1))))
    return graph.node("Mul", twice, graph.constant(np.float32(0.5)))


def _normalized(graph, x, width):
    return graph.node(
        "LayerNormalization", x, graph.normal(width, 0.2, mean=1.0), graph.normal(width, 0.2), axis=-1, epsilon=1e-5
    )


class Graph:
    """A graph to which nodes are added one by one; tensors are names.

    Weights are normal, of variance gain / fan-in: He initialization, where a gain of 2 makes up for a Relu.
    """

    def __init__(self, opset):
        self.opset, self.nodes, self.initializers, self.random = opset, [], [], np.random.default_rng(0)

    def node(self, operator, *inputs, **attributes):
        name = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def constant(self, value):
        name = f"constant_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def normal(self, shape, deviation, mean=0.0):
        return self.constant(self.random.normal(mean, deviation, shape).astype(np.float32))

    def conv(self, x, inputs, outputs, size, *, stride=1, group=1, gain=2.0):
        """A convolution that pads by half its size, with the bias of a folded batch norm."""
        weights = self.normal((outputs, inputs // group, size, size), math.sqrt(gain / (inputs // group * size**2)))
        options = {"kernel_shape": [size] * 2, "strides": [stride] * 2, "pads": [size // 2] * 4, "group": group}
        return self.node("Conv", x, weights, self.normal(outputs, 0.1), **options)

    def gemm(self, x, inputs, outputs, *, gain=2.0):
        """A product with transposed weights, as PyTorch exports it."""
        weights = self.normal((outputs, inputs), math.sqrt(gain / inputs))
        return self.node("Gemm", x, weights, self.normal(outputs, 0.1), transB=1)

    def dense(self, x, inputs, outputs, *, gain=1.0):
        """A product and a sum, as PyTorch exports a linear layer of rank 3."""
        product = self.node("MatMul", x, self.normal((inputs, outputs), math.sqrt(gain / inputs)))
        return self.node("Add", self.normal(outputs, 0.1), product)

    def mean(self, x, axes, *, keepdims):
        """Before opset 18 the axes are an attribute."""
        if self.opset < 18:
            return self.node("ReduceMean", x, axes=axes, keepdims=keepdims)
        return self.node("ReduceMean", x, self.constant(np.array(axes, np.int64)), keepdims=keepdims)

    def model(self, input_shape, output_shape):
        """The model; its last node computes its output."""
        self.nodes[-1].output[0] = "y"
        x, y = (
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *shape])
            for name, shape in (("x", input_shape), ("y", output_shape))
        )
        graph = helper.make_graph(self.nodes, "float", [x], [y], self.initializers)
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSIONS[self.opset])
