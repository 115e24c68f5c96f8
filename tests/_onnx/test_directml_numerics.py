"""In the numerics "directml", the operators of DirectML have the bits of `jaxdml.reference`.

Each node of quantized networks is compared on the inputs that it has inside the network.
"""

import collections
import functools
import inspect
import operator
import re
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import jaxdml.onnx
from _onnx.float_models import MOBILENET_V2, encoder, mlp, mobilenet_v2, resnet18
from _onnx.quantized_models import quantized, random_inputs
from helpers.compare import assert_same_bits
from jaxdml import reference

NETWORKS = {
    "ResNet-18": functools.partial(resnet18, size=32, width=8),
    "MobileNetV2": functools.partial(mobilenet_v2, size=64, width=8, stages=MOBILENET_V2[:3]),
    "MLP": mlp,
    "encoder": encoder,
}
PER_CHANNEL = {"per_channel": True, "weight": "int8"}
FOR_FLOATS = "encoder, products in floats"
BLOCKS = "blocks of 4 and of 5 along the last axis"
BETWEEN = {"QuantizeLinear": 1, "DequantizeLinear": 1}
CONVOLUTIONS = BETWEEN | {"QLinearConv": 20, "QLinearAdd": 8, "QLinearGlobalAveragePool": 1}
MIXED = {"QuantizeLinear": 4, "DequantizeLinear": 4, "QLinearConv": 21, "QLinearAdd": 3, "QLinearAveragePool": 2}
ATTENTION = {"QuantizeLinear": 4, "DequantizeLinear": 4, "QLinearMatMul": 8, "QLinearAdd": 9}
NODES = {  # of the operators that DirectML has, by network, form, and whether weights have a scale for each channel
    ("ResNet-18", "qoperator", False): CONVOLUTIONS,
    ("ResNet-18", "qoperator", True): CONVOLUTIONS,
    ("ResNet-18", "qdq", False): CONVOLUTIONS,
    ("ResNet-18", "qdq", True): CONVOLUTIONS,
    ("ResNet-18", "dynamic", False): {"DynamicQuantizeLinear": 18, "ConvInteger": 20, "MatMulInteger": 1},
    ("MobileNetV2", "qoperator", False): MIXED,
    ("MobileNetV2", "qdq", True): MIXED,
    ("MobileNetV2", "dynamic", False): {"DynamicQuantizeLinear": 22, "ConvInteger": 21, "MatMulInteger": 1},
    ("MLP", "qdq", True): BETWEEN,
    ("MLP", "dynamic", True): {"DynamicQuantizeLinear": 3, "MatMulInteger": 3},
    ("encoder", "qoperator", True): ATTENTION,
    ("encoder", "qdq", False): ATTENTION | {"QuantizeLinear": 5, "DequantizeLinear": 9},
    ("encoder", "qdq", True): ATTENTION | {"QuantizeLinear": 5, "DequantizeLinear": 9},
    ("encoder", "dynamic", True): {"DynamicQuantizeLinear": 4, "MatMulInteger": 6},
    (BLOCKS, "qdq", False): {"QuantizeLinear": 2, "DequantizeLinear": 2},
    (FOR_FLOATS, "qdq", False): ATTENTION
    | {"QuantizeLinear": 5, "DequantizeLinear": 8, "QLinearMatMul": 7, "MatMulIntegerToFloat": 1},
}
QUICK = ((BLOCKS, "qdq", False), ("MLP", "qdq", True), ("MLP", "dynamic", True), (FOR_FLOATS, "qdq", False))


def along(parameter, axis, rank):
    """A scale or zero point that broadcasts: one number, or one for each index of an axis."""
    if parameter is None or parameter.size == 1:
        return None if parameter is None else parameter.reshape(())
    return parameter.reshape([-1 if place == axis % rank else 1 for place in range(rank)])


def windows(options):
    pads = options["padding"]
    start, end = zip(*pads, strict=True) if pads else (0, 0)
    return {
        "strides": options["strides"],
        "dilations": options["dilations"],
        "start_padding": start,
        "end_padding": end,
    }


def of_blocks(parameter, options, x):
    """A scale or zero point for each element of x."""
    size, axis = options["block_size"], options["axis"]
    return np.repeat(parameter, size, axis).take(range(x.shape[axis]), axis)


def quantize_linear(options, x, scale, zero_point=None):
    if options["block_size"]:
        return reference.quantize(x, *(of_blocks(each, options, x) for each in (scale, zero_point)))
    parameters = (along(each, options["axis"], x.ndim) for each in (scale, zero_point))
    return reference.element_wise_quantize_linear(x, *parameters)


def dequantize_linear(options, x, scale, zero_point=None):
    if options["block_size"]:
        return reference.dequantize(x, *(of_blocks(each, options, x) for each in (scale, zero_point)))
    parameters = (along(each, options["axis"], x.ndim) for each in (scale, zero_point))
    return reference.element_wise_dequantize_linear(x, *parameters)


def dynamic_quantize_linear(options, x):
    y, scale, zero_point = reference.dynamic_quantize_linear(x)
    return y, scale.reshape(()), zero_point.reshape(())


def convolution(options, *inputs):
    x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, bias = (*inputs, None)[:9]
    return reference.quantized_linear_convolution(
        x, x_scale, x_zero_point, w, w_scale, w_zero_point, bias, y_scale, y_zero_point,
        group_count=options["group_count"], **windows(options),
    )  # fmt: skip


def integer_convolution(options, x, w, x_zero_point=None, w_zero_point=None):
    grouped = {"group_count": options["group_count"], **windows(options)}
    return reference.convolution_integer(x, x_zero_point, w, w_zero_point, **grouped)


def integer_product(options, a, b, a_zero_point=None, b_zero_point=None):
    return reference.matrix_multiply_integer(a, a_zero_point, b, b_zero_point)


def float_product(options, a, b, a_scale, b_scale, a_zero_point=None, b_zero_point=None, bias=None):
    return reference.matrix_multiply_integer_to_float(a, a_scale, a_zero_point, b, b_scale, b_zero_point, bias)


def average_pool(options, *inputs):
    options = {"window_size": options["window"], "include_padding": options["count_include_pad"], **windows(options)}
    return reference.quantized_linear_average_pooling(*inputs, **options)


def global_average_pool(options, x, *parameters):
    return reference.quantized_linear_average_pooling(x, *parameters, window_size=x.shape[2:])


ORACLES = {
    "QuantizeLinear": quantize_linear,
    "DequantizeLinear": dequantize_linear,
    "DynamicQuantizeLinear": dynamic_quantize_linear,
    "QLinearConv": convolution,
    "QLinearMatMul": lambda options, *inputs: reference.quantized_linear_matrix_multiply(*inputs),
    "ConvInteger": integer_convolution,
    "MatMulInteger": integer_product,
    "MatMulIntegerToFloat": float_product,
    "QLinearAdd": lambda options, *inputs: reference.element_wise_quantized_linear_add(*inputs),
    "QLinearAveragePool": average_pool,
    "QLinearGlobalAveragePool": global_average_pool,
}


def in_blocks():
    """Twice from floats to integers and back, in blocks of 4 and of 5, the last of which is incomplete."""
    rng, nodes, tensors, value = np.random.default_rng(5), [], [], "x"
    for size in (4, 5):
        shape = (40, -(-24 // size))
        names = [f"{name}{size}" for name in ("scale", "zero_point", "steps", "floats")]
        parameters = rng.uniform(0.01, 0.02, shape).astype(np.float32), rng.integers(-20, 20, shape, np.int8)
        tensors += map(numpy_helper.from_array, parameters, names)
        options = {"axis": 1, "block_size": size}
        nodes += [
            helper.make_node("QuantizeLinear", [value, *names[:2]], [names[2]], **options),
            helper.make_node("DequantizeLinear", [names[2], *names[:2]], [names[3]], **options),
        ]
        value = names[3]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (40, 24)) for name in ("x", value)]
    graph = helper.make_graph(nodes, "blocks", ends[:1], ends[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def network(name, form, per_channel):
    if name == BLOCKS:
        return in_blocks()
    if name == FOR_FLOATS:
        return without_pair_behind(network("encoder", form, per_channel), "MatMul_12")
    return quantized(NETWORKS[name](), form, **PER_CHANNEL if per_channel else {})


def without_pair_behind(model, value):
    """The model without the nodes that quantize and dequantize a value."""
    readers = {name: node for node in model.graph.node for name in node.input}
    pair = readers[readers[value].output[0]]
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name == pair.output[0]:
                node.input[place] = value
    return model


def compared(proto, inputs):
    """How many nodes of each operator were compared, and how many elements; none differs."""
    model = jaxdml.onnx.load(proto, numerics="directml")
    nodes = [node for node in model._graph.nodes if node.operator.name in ORACLES]
    inside = {name for node in nodes for name in (*node.inputs, *node.outputs)}.intersection(model.value_names)
    values = {name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer for name in [tensor.name]}
    values |= model._graph.constants | {name: x for name, x in model.params.items() if ":prepared" not in name}
    values |= model.values(model.params, sorted(inside), **inputs)
    counts, elements = collections.Counter(), 0
    for node in nodes:
        names = (name.split(":prepared")[0] for name in node.inputs)  # the weights of the file
        arguments = [np.asarray(values[name]) if name else None for name in names]
        expected = ORACLES[node.operator.name](node.options, *arguments)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for name, value in zip(node.outputs, expected, strict=True):
            assert_same_bits(values[name], value, f"{node.name}: {name}")
            elements += value.size
        counts[node.operator.name] += 1
    return counts, elements


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case in QUICK else pytest.mark.rare, id="-".join(map(str, case)))
        for case in NODES
    ],
)
def test_every_node_computes_what_the_reference_says(case):
    proto = network(*case)
    counts, elements = compared(proto, random_inputs(proto, 2, seed=30))
    assert counts == NODES[case]
    assert elements > 50 * counts.total()


def test_every_operator_of_directml_is_in_some_network():
    total = functools.reduce(operator.add, map(collections.Counter, NODES.values()))
    assert total.keys() == ORACLES.keys()
    assert total.total() > 400


def test_every_operator_of_the_reference_is_asked():
    names = {name for name, each in vars(reference).items() if inspect.isfunction(each) and not name.startswith("_")}
    names.remove("matrix_multiply_blocks")  # an extension, which no ONNX model needs
    assert set(re.findall(r"\breference\.(\w+)\(", Path(__file__).read_text(encoding="utf-8"))) == names
    assert len(names) == 12
