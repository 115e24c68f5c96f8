"""Small quantized models, and mutations of their bytes and of their fields."""

import functools

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto

from _onnx.float_models import Graph, mlp
from _onnx.quantized_models import quantized

WORDS = (
    "Add", "Clip", "Concat", "Conv", "ConvInteger", "DequantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeLinear",
    "Expand", "Flatten", "Gemm", "Identity", "If", "LSTM", "MatMul", "MatMulInteger", "MaxPool", "Mul", "QGemm",
    "QLinearConv", "QLinearMatMul", "QuantizeLinear", "Relu", "Reshape", "Resize", "Softmax", "Sub", "Transpose",
    "Unknown",
)  # fmt: skip
NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 2**31 - 1, 2**40, 2**63 - 1)
FLOATS = (-np.inf, -1.0, 0.0, 1e-45, 0.5, 2.0, 1e30, np.nan)


def _network():
    """A convolution, a sum, a mean over images and a product: x [N, 2, 4, 4], y [N, 3]."""
    graph = Graph(17)
    x = graph.node("Relu", graph.conv("x", 2, 3, 3))
    x = graph.node("Add", x, graph.conv(x, 3, 3, 1))
    x = graph.node("Flatten", graph.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]))
    graph.gemm(x, 12, 3)
    return graph.model([2, 4, 4], [3])


_OF_PARTS = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float[2, 2, 4, 4] x) => (float[1, 2, 2] y)
<int64[4] sizes = {2, 2, 2, 3}, int64[3] rows = {2, 2, 6}, bool flag = {1}, float zero = {0}, float two = {2},
 float s = {0.05}, uint8 z = {120}>
{
    q = QuantizeLinear(x, s, z)
    d = DequantizeLinear(q, s, z)
    small = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel"> (d, , , sizes)
    steps = Reshape(small, rows)
    known = If(flag) <
        then_branch = a () => (float[2, 2, 6] then) { then = Mul(steps, two) },
        else_branch = b () => (float[2, 2, 6] other) { other = Sub(steps, two) }
    >
    all, last = LSTM <hidden_size = 2, direction = "forward"> (known, w, r, bias)
    largest = ReduceMax <keepdims = 0> (last)
    is_positive = Greater(largest, zero)
    y = If(is_positive) <
        then_branch = c () => (float[1, 2, 2] positive) { one = Add(last, two) positive = Relu(one) },
        else_branch = e () => (float[1, 2, 2] negative) { negative = Neg(last) }
    >
}
"""


def _of_parts():
    """A linear Resize, an LSTM, and two Ifs, of which one has a constant condition."""
    model, random = onnx.parser.parse_model(_OF_PARTS), np.random.default_rng(0)
    for name, shape in (("w", (1, 8, 6)), ("r", (1, 8, 2)), ("bias", (1, 16))):
        values = random.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.helper.make_tensor(name, TensorProto.FLOAT, shape, values.reshape(-1)))
    return model


@functools.cache
def models():
    """The bytes of a model of each form."""
    network = _network()
    made = {form: quantized(network, form, reduce_range=True) for form in ("qoperator", "qdq")}
    made["dynamic"] = quantized(mlp(4, 5, 3), "dynamic", reduce_range=True)
    made["parts"] = _of_parts()
    return {form: model.SerializeToString(deterministic=True) for form, model in made.items()}


def mutated(data, seed):
    """The bytes of a model with one to three mutations, and a text that describes them."""
    random = np.random.default_rng(seed)
    told = []
    for _ in range(random.choice((1, 1, 1, 1, 2, 3))):
        mutate = random.choice((_of_bytes, *[_of_model] * 4))
        data, what = mutate(data, random)
        told.append(what)
    return data, "; ".join(told)


# Bytes ---------------------------------------------------------------------------------------------------------------


def _of_bytes(data, random):
    kind = random.choice(("flip", "flip", "flip", "set", "set", "delete", "insert", "repeat"))
    start = int(random.integers(0, max(len(data), 1)))
    count = int(random.choice((1, 1, 1, 1, 2, 4, 16)))
    middle = data[start : start + count]
    if kind == "flip":
        middle = bytes(each ^ (1 << int(random.integers(0, 8))) for each in middle)
    elif kind in ("set", "insert"):
        middle = random.bytes(count) + (middle if kind == "insert" else b"")
    else:
        middle = b"" if kind == "delete" else middle * int(random.integers(2, 5))
    return data[:start] + middle + data[start + count :], f"{kind} {count} bytes at {start}"


# What the bytes say --------------------------------------------------------------------------------------------------


def _of_model(data, random):
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:  # an earlier mutation broke it
        return _of_bytes(data, random)
    mutate = random.choice(_MUTATIONS)
    try:
        what = mutate(model, random)
        return model.SerializeToString(deterministic=True), what
    except ValueError:  # earlier mutations left nothing to choose from, or text that is not UTF-8
        return _of_bytes(data, random)


def _one(random, values):
    values = list(values)
    if not values:
        raise ValueError("nothing to choose from")
    return values[int(random.integers(0, len(values)))]


def _names(model):
    graph = model.graph
    made = [name for node in graph.node for name in node.output]
    return [*made, *(each.name for each in (*graph.initializer, *graph.input, *graph.output)), "", "unknown"]


def _operator(model, random):
    node = _one(random, model.graph.node)
    before, node.op_type = node.op_type, _one(random, WORDS)
    return f"{before} {node.name} becomes {node.op_type}"


def _domain(model, random):
    node = _one(random, model.graph.node)
    node.domain = _one(random, ("", "ai.onnx", "com.microsoft", "unknown"))
    return f"the domain of {node.op_type} {node.name} becomes {node.domain!r}"


def _input(model, random):
    node = _one(random, (node for node in model.graph.node if node.input))
    place = int(random.integers(0, len(node.input)))
    same = [name for each in model.graph.node for name in each.input if each.op_type == node.op_type]
    node.input[place] = _one(random, _names(model) if random.integers(0, 2) else same)
    return f"input {place} of {node.op_type} {node.name} becomes {node.input[place]!r}"


def _swapped(model, random):
    node = _one(random, (node for node in model.graph.node if len(node.input) > 1))
    one, other = (int(place) for place in random.choice(len(node.input), 2, replace=False))
    node.input[one], node.input[other] = node.input[other], node.input[one]
    return f"inputs {one} and {other} of {node.op_type} {node.name} are swapped"


def _fewer(model, random):
    node = _one(random, (node for node in model.graph.node if node.input))
    place = int(random.integers(0, len(node.input)))
    del node.input[place:]
    return f"{node.op_type} {node.name} has {place} inputs"


def _more(model, random):
    node = _one(random, model.graph.node)
    node.input.append(_one(random, _names(model)))
    return f"{node.op_type} {node.name} has another input {node.input[-1]!r}"


def _output(model, random):
    node = _one(random, (node for node in model.graph.node if node.output))
    place = int(random.integers(0, len(node.output) + 1))
    name = _one(random, _names(model))
    if place == len(node.output):
        node.output.append(name)
    else:
        node.output[place] = name
    return f"output {place} of {node.op_type} {node.name} becomes {name!r}"


def _dimension(model, random):
    tensor = _one(random, model.graph.initializer)
    if tensor.dims and random.integers(0, 3):
        place = int(random.integers(0, len(tensor.dims)))
        tensor.dims[place] = _one(random, NUMBERS)
    elif tensor.dims and random.integers(0, 2):
        del tensor.dims[-1]
    else:
        tensor.dims.append(_one(random, NUMBERS))
    return f"the shape of {tensor.name} becomes {list(tensor.dims)}"


def _type(model, random):
    tensor = _one(random, model.graph.initializer)
    tensor.data_type = int(random.integers(0, 30))
    return f"the type of {tensor.name} becomes {tensor.data_type}"


def _values(model, random):
    tensor = _one(random, model.graph.initializer)
    if tensor.data_type == TensorProto.FLOAT and tensor.float_data:
        tensor.float_data[int(random.integers(0, len(tensor.float_data)))] = _one(random, FLOATS)
    elif tensor.int32_data:
        # Small numbers: onnxruntime subtracts int32 zero points in int32, and overflow is undefined in C++.
        tensor.int32_data[int(random.integers(0, len(tensor.int32_data)))] = _one(random, NUMBERS[2:9])
    else:
        tensor.raw_data = random.bytes(len(tensor.raw_data))
    return f"values of {tensor.name} change"


def _field(model, random):
    tensor = _one(random, model.graph.initializer)
    kind = _one(random, ("float_data", "int32_data", "int64_data", "raw_data", "location", "external"))
    if kind == "raw_data":
        tensor.raw_data = tensor.raw_data + b"\0"
    elif kind == "location":
        tensor.data_location = TensorProto.EXTERNAL
    elif kind == "external":
        tensor.external_data.add(key=_one(random, ("location", "length", "offset")), value="../../etc/passwd")
    else:
        getattr(tensor, kind).append(1)
    return f"{kind} of {tensor.name} changes"


def _dropped(model, random):
    kind = _one(random, ("node", "initializer", "input", "output", "opset"))
    values = model.opset_import if kind == "opset" else getattr(model.graph, kind)
    place = _one(random, range(len(values)))
    del values[place]
    return f"{kind} {place} is dropped"


def _doubled(model, random):
    kind = _one(random, ("node", "initializer", "input", "output"))
    values = getattr(model.graph, kind)
    values.append(_one(random, values))
    return f"{kind} {values[-1].name} comes twice"


def _moved(model, random):
    nodes = list(model.graph.node)
    node = nodes.pop(_one(random, range(len(nodes))))
    nodes.insert(int(random.integers(0, len(nodes) + 1)), node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return f"{node.op_type} {node.name} moves"


def _attribute(model, random):
    nodes = [node for node in model.graph.node if node.attribute]
    attribute = _one(random, _one(random, nodes).attribute)
    kind = _one(random, ("i", "f", "ints", "ints", "type", "name", "s", "g"))
    if kind == "i":
        attribute.i = _one(random, NUMBERS)
    elif kind == "f":
        attribute.f = _one(random, FLOATS)
    elif kind == "ints" and attribute.ints and random.integers(0, 2):
        attribute.ints[int(random.integers(0, len(attribute.ints)))] = _one(random, NUMBERS)
    elif kind == "ints":
        attribute.ints.append(_one(random, NUMBERS))
    elif kind == "type":
        attribute.type = _one(random, range(1, 15))
    elif kind == "name":
        attribute.name = _one(random, ("axis", "auto_pad", "alpha", "group", "unknown", ""))
    elif kind == "s":
        attribute.s = b"\xff\xfe"
    else:
        attribute.g.name = "graph"
    return f"attribute {attribute.name}: {kind} changes"


def _opset(model, random):
    entry = _one(random, model.opset_import)
    entry.version = _one(random, (*NUMBERS, *range(8, 31)))
    return f"opset {entry.domain!r} becomes {entry.version}"


def _declared(model, random):
    value = _one(random, (*model.graph.input, *model.graph.output))
    tensor = value.type.tensor_type
    kind = _one(random, ("type", "dimension", "more", "sequence", "name", "symbol"))
    if kind == "type":
        tensor.elem_type = int(random.integers(0, 30))
    elif kind == "dimension":
        _one(random, tensor.shape.dim).dim_value = _one(random, NUMBERS)
    elif kind == "more":
        tensor.shape.dim.add(dim_value=_one(random, NUMBERS))
    elif kind == "sequence":
        value.type.sequence_type.elem_type.tensor_type.elem_type = 1
    elif kind == "symbol":
        _one(random, tensor.shape.dim).dim_param = "N"
    else:
        value.name = _one(random, _names(model))
    return f"declared {value.name}: {kind} changes"


_MUTATIONS = (
    _operator, _operator, _domain, _input, _input, _swapped, _fewer, _more, _output, _dimension, _type, _field, _values,
    _values, _dropped, _doubled, _moved, _attribute, _attribute, _opset, _declared,
)  # fmt: skip
