"""Small networks with nodes that onnxruntime's optimizers write, and the models that onnxruntime saves after them."""

import functools
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnxruntime import GraphOptimizationLevel as Level
from onnxruntime.quantization import QuantType, quantize_dynamic

from _onnx.float_models import Graph, encoder, mlp
from _onnx.quantized_models import quantized
from _onnx.small_models import residual

EXTENDED, ALL = Level.ORT_ENABLE_EXTENDED, Level.ORT_ENABLE_ALL
MICROSOFT = {"domain": "com.microsoft"}


def optimized(model, level):
    """A model as onnxruntime saves it after its optimizations."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level, options.log_severity_level = level, 4
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def branches():
    """A convolutional network with both poolings, a concatenation and a sum: x [N, 3, 8, 8], y [N, 5]."""
    graph = Graph(17)
    x = graph.node("Relu", graph.conv("x", 3, 8, 3))
    x = graph.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 1, 1])
    pooled = graph.node("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    x = graph.node("LeakyRelu", graph.node("Concat", pooled, graph.conv(x, 8, 8, 1), axis=1), alpha=0.1)
    x = graph.node("Add", x, graph.conv(x, 16, 16, 3, stride=1, group=4))
    x = graph.node("Flatten", graph.node("GlobalAveragePool", x))
    graph.gemm(x, 16, 5)
    return graph.model([3, 8, 8], [5])


def bert(width=16, hidden=24, heads=2, length=6):
    """An encoder as onnxruntime's transformer optimizer leaves it: token ids x, segments and a mask; y."""
    graph = Graph(17)
    tables = [graph.normal((rows, width), 1.0) for rows in (30, length + 2, 2)]

    def norm():
        return graph.normal(width, 0.2, mean=1.0), graph.normal(width, 0.2)

    def weights(rows, columns):
        return graph.normal((rows, columns), rows**-0.5)

    x = graph.node("EmbedLayerNormalization", "x", "segments", *tables, *norm(), "mask", **MICROSOFT)
    graph.nodes[-1].output.append("ends")
    read = graph.node(
        "Attention", x, weights(width, 3 * width), graph.normal(3 * width, 0.1), "ends", num_heads=heads, **MICROSOFT
    )
    read = graph.node("MatMul", read, weights(width, width))
    x = graph.node("SkipLayerNormalization", read, x, *norm(), graph.normal(width, 0.1), **MICROSOFT)
    inner = graph.node("MatMul", x, weights(width, hidden))
    inner = graph.node("BiasGelu", inner, graph.normal(hidden, 0.1), **MICROSOFT)
    inner = graph.node("MatMul", inner, weights(hidden, width))
    graph.node("SkipLayerNormalization", inner, x, *norm(), graph.normal(width, 0.1), **MICROSOFT)
    model = graph.model([length], [length, width])
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    del model.graph.input[:]
    sizes = ["N", length]
    names = ("x", "segments", "mask")
    model.graph.input.extend(helper.make_tensor_value_info(name, TensorProto.INT32, sizes) for name in names)
    return model


def dynamic_bert():
    """`bert` as onnxruntime's quantizer writes it."""
    with tempfile.TemporaryDirectory() as folder:
        source, path = Path(folder) / "float.onnx", Path(folder) / "quantized.onnx"
        onnx.save(bert(), source)
        options = {"DefaultTensorType": TensorProto.FLOAT}  # the quantizer does not know the types of fused nodes
        quantize_dynamic(source, path, weight_type=QuantType.QUInt8, extra_options=options)
        return onnx.load(path)


def tokens(batch=3, length=6, seed=0):
    """Inputs of `bert`."""
    random = np.random.default_rng(seed)
    mask = (np.arange(length) < random.integers(1, length + 1, (batch, 1))).astype(np.int32)
    ids = random.integers(0, 30, (batch, length)).astype(np.int32)
    return {"x": ids, "segments": random.integers(0, 2, (batch, length)).astype(np.int32), "mask": mask}


# By name: the model before onnxruntime optimizes it, the level, and the com.microsoft nodes in the optimized model.
FILES = {
    "channels last": (lambda: quantized(residual(), "qoperator"), ALL, {
        "QLinearConv", "QLinearAdd", "QLinearGlobalAveragePool", "QGemm"}),
    "channels last, QDQ": (lambda: quantized(residual(), "qdq"), ALL, {
        "QLinearConv", "QLinearAdd", "QLinearGlobalAveragePool", "QGemm"}),
    "poolings": (lambda: quantized(branches(), "qdq"), ALL, {
        "NhwcMaxPool", "QLinearConv", "QLinearAdd", "QLinearAveragePool", "QLinearConcat", "QLinearGlobalAveragePool",
        "QLinearLeakyRelu", "QGemm"}),
    "dynamic products": (lambda: quantized(mlp(16, 24, 10), "dynamic"), EXTENDED, {"DynamicQuantizeMatMul"}),
    "dynamic encoder": (lambda: quantized(encoder(1, 8, 32, 2, 48), "dynamic"), EXTENDED, {
        "MatMulIntegerToFloat", "FusedMatMul", "DynamicQuantizeMatMul", "SkipLayerNormalization", "Gelu"}),
    "dynamic BERT": (dynamic_bert, EXTENDED, {
        "QEmbedLayerNormalization", "QAttention", "DynamicQuantizeMatMul", "SkipLayerNormalization", "BiasGelu"}),
    "BERT": (bert, EXTENDED, {
        "EmbedLayerNormalization", "Attention", "SkipLayerNormalization", "BiasGelu"}),
    "encoder": (lambda: encoder(1, 8, 32, 2, 48), EXTENDED, {"FusedMatMul", "SkipLayerNormalization", "BiasGelu"}),
    "convolutions": (residual, EXTENDED, {"FusedConv", "FusedGemm"}),
    "products": (lambda: mlp(16, 24, 10), EXTENDED, {"FusedGemm"}),
}  # fmt: skip


@functools.cache
def saved(name):
    make, level, _ = FILES[name]
    return optimized(make(), level)
