"""An elementwise function of one 8-bit tensor runs as one table, with the bits of onnxruntime, and of the nodes."""

import re

import jax
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.compilations import compiled_programs
from helpers.marks import on_both_kernels
from helpers.native_calls import needs_native
from jaxdml._graph.graph import Operator
from jaxdml._graph.join import joined
from jaxdml._quantized.onnxruntime.lookup import looked_up
from jaxdml.errors import ModelError

TYPES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "uint16": TensorProto.UINT16}
SHAPE = 2, 3, 5, 5


def loaded(nodes, dtype="uint8", outputs=("y",), floats=(), shape=SHAPE, **constants):
    """A model of x, uint8 by default, whose nodes are (operator, inputs, output) and may have attributes."""
    zero_point = 3 if dtype == "int8" else 120
    constants = {"s": np.float32(0.04), "z": np.asarray(zero_point, dtype), "t": np.float32(0.03)} | constants
    made = [
        helper.make_node(
            operator, names.split(), [output], domain="com.microsoft" if operator.startswith("QLinear") else "",
            **(more[0] if more else {}),
        )
        for operator, names, output, *more in nodes
    ]  # fmt: skip
    graph = helper.make_graph(
        made,
        "graph",
        [helper.make_tensor_value_info("x", TYPES[dtype], shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT if name in floats else TYPES[dtype], None)
         for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return proto, dml.onnx.load(proto, numerics="onnxruntime")


def operators(model, *names):
    """The operators that compute the outputs, or the named values."""
    return [node.operator.name for node in joined(model._graph, names or model._graph.outputs, looked_up)]


def images(dtype):
    return np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8).astype(dtype)


SIGMOID = "QLinearSigmoid", "x s z t z", "g"
BETWEEN = ("DequantizeLinear", "x s z", "f"), ("QuantizeLinear", "h t z", "y")
JOINED = {
    "sigmoid and product": [SIGMOID, ("QLinearMul", "x s z g t z s z", "y")],
    "hard swish": [BETWEEN[0], ("HardSwish", "f", "h"), BETWEEN[1]],
    "hard sigmoid": [BETWEEN[0], ("HardSigmoid", "f", "h", {"alpha": 1 / 6}), BETWEEN[1]],
    "hard swish in parts": [
        BETWEEN[0],
        ("Add", "f three", "a"),
        ("Clip", "a zero six", "b"),
        ("Mul", "f b", "c"),
        ("Div", "c six", "h"),
        BETWEEN[1],
    ],
    "twice": [("QLinearLeakyRelu", "x s z t z", "a"), ("QLinearSigmoid", "a t z s z", "y")],
    "a sum with itself": [("QLinearLeakyRelu", "x s z t z", "a"), ("QLinearAdd", "a t z x s z s z", "y")],
}
NUMBERS = {"three": np.float32(3), "zero": np.float32(0), "six": np.float32(6)}


@pytest.mark.sampled(2)
@on_both_kernels
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("name", JOINED)
def test_a_table_has_the_bits_of_onnxruntime(name, dtype):
    proto, model = loaded(JOINED[name], dtype, **NUMBERS)
    assert operators(model) == ["table"]
    x = images(dtype)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    assert_same_bits(model.apply(model.params, x)["y"], session.run(None, {"x": x})[0])


def computed(proto, model):
    """The outputs, after they were compared with onnxruntime's."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    made = model.apply(model.params, images("uint8"))["y"]
    assert_same_bits(made, session.run(None, {"x": images("uint8")})[0])
    return np.asarray(made)


def test_tables_of_one_function_share_a_program(caplog):
    """The scales, zero points and bounds are its arguments."""

    def clipped(scale, high):
        nodes = [BETWEEN[0], ("Clip", "f zero high", "c"), ("HardSwish", "c", "h"), BETWEEN[1]]
        return loaded(nodes, zero=np.float32(0), high=np.float32(high), t=np.float32(scale))

    pairs = [clipped(0.01 * (1 + i), 1 + i) for i in range(4)]
    programs = []
    for _, model in pairs:
        with compiled_programs(caplog) as found:
            jax.jit(model.apply).trace(model.params, images("uint8"))
        programs.append(len(found))
    assert programs[0] > 0
    assert programs[1:] == [0, 0, 0]
    assert len({computed(*pair).tobytes() for pair in pairs}) == 4


def test_other_functions_are_other_programs():
    alphas = 1 / 6, np.nextafter(np.float32(1 / 6), np.float32(1)).item(), 0.25
    pairs = [loaded([BETWEEN[0], ("HardSigmoid", "f", "h", {"alpha": each}), BETWEEN[1]]) for each in alphas]
    first, _, last = (computed(*pair) for pair in pairs)
    assert (first != last).any()
    swapped = [("Sub", "f three", "a"), ("Sub", "three f", "a")]
    one, other = (
        computed(*loaded([BETWEEN[0], each, ("HardSwish", "a", "h"), BETWEEN[1]], **NUMBERS)) for each in swapped
    )
    assert (one != other).any()


def test_a_number_of_more_than_32_bits_is_refused():
    _, model = loaded([BETWEEN[0], ("Mul", "f big", "h"), BETWEEN[1]], big=np.int64(2**40))
    with pytest.raises(ModelError, match="tensor 'big' has integers of more than 32 bits"):
        model.apply(model.params, images("uint8"))


@needs_native
def test_a_table_is_one_kernel():
    _, model = loaded(JOINED["hard swish"])
    hlo = jax.jit(model.apply).lower(model.params, images("uint8")).compile().as_text()
    assert re.findall(r'custom_call_target="jaxdml_cpu_(\w+)"', hlo) == ["looked_up"]


def test_values_inside_are_computed_where_they_are_wanted():
    _, model = loaded(JOINED["sigmoid and product"])
    assert operators(model, "g", "y") == ["QLinearSigmoid", "table"]
    x = images("uint8")
    values = model.values(model.params, ["g", "y"], x)
    assert_same_bits(values["y"], model.apply(model.params, x)["y"])
    assert model.operators == ("QLinearSigmoid", "QLinearMul")  # the operators of the file's nodes


KEPT = {  # nodes that are not an elementwise function of one 8-bit tensor, or that a table would not speed up
    "one node": ([("QLinearSigmoid", "x s z t z", "y")], {}),
    "two tensors": (
        [SIGMOID, ("Transpose", "x", "w"), ("QLinearMul", "w s z g t z s z", "y")],
        {},
    ),
    "a vector": ([*BETWEEN, ("Mul", "f v", "h")], {"v": np.ones(5, np.float32)}),
    "scales along an axis": (
        [("DequantizeLinear", "x u w", "f"), ("HardSwish", "f", "h"), BETWEEN[1]],
        {"u": np.full(3, 0.1, np.float32), "w": np.full(3, 7, np.uint8)},
    ),
    "a transcendental function": ([BETWEEN[0], ("Softplus", "f", "h"), BETWEEN[1]], {}),
    "floats": ([("DequantizeLinear", "x s z", "f"), ("HardSwish", "f", "y")], {"floats": ["y"]}),
}


@pytest.mark.parametrize("name", KEPT)
def test_other_nodes_stay(name):
    nodes, constants = KEPT[name]
    order = {"f": 0, "g": 0, "w": 0, "h": 1, "y": 2}
    _, model = loaded(sorted(nodes, key=lambda node: order[node[2]]), **constants)
    assert "table" not in operators(model)


def test_a_vector_that_is_known_while_tracing_makes_no_table():
    """Most vectors are parameters, and count as tensors; a vector that also determines a shape is a constant."""
    _, model = loaded([BETWEEN[0], ("Mul", "f v", "m"), ("HardSwish", "m", "h"), BETWEEN[1]], v=np.ones(5, np.float32))
    graph = model._graph.replace(constants={**model._graph.constants, "v": np.ones(5, np.float32)})
    assert "table" not in [node.operator.name for node in joined(graph, graph.outputs, looked_up)]


def test_a_function_of_floats_is_no_table():
    """The nodes that read a float sum of several tensors would be a function of one tensor if the sum were integers."""
    nodes = [BETWEEN[0], ("Mul", "f v", "m"), ("HardSwish", "m", "h"), BETWEEN[1]]
    _, model = loaded(nodes, v=np.ones(5, np.float32))
    assert "table" not in operators(model)


COMPUTED = {  # dtype, shape, and a constant by which the nodes multiply
    "sixteen bits": ("uint16", SHAPE, np.float32(1)),
    "more dimensions": ("uint8", SHAPE, np.ones((1,) * 5, np.float32)),
    "no dimensions": ("uint8", (), np.ones(1, np.float32)),
}


@pytest.mark.sampled(1)
@on_both_kernels
@pytest.mark.parametrize("name", COMPUTED)
def test_what_has_no_table_is_computed_node_by_node(name):
    """Types and shapes are known at trace time. A constant with more dimensions than x adds them to the result."""
    dtype, shape, one = COMPUTED[name]
    proto, model = loaded([BETWEEN[0], ("Mul", "f one", "m"), ("HardSwish", "m", "h"), BETWEEN[1]],
                          dtype, shape=shape, one=one)  # fmt: skip
    x = np.asarray(images(dtype).reshape(-1)[0] if shape == () else images(dtype))
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    assert_same_bits(model.apply(model.params, x)["y"], session.run(None, {"x": x})[0])


def test_operators_of_tables_see_no_values():
    """The numbers of a table's function are arguments of a compiled program."""
    with pytest.raises(AssertionError, match="it may not see values of inputs"):
        Operator("seeing", abs, is_pointwise=True, known=(1,))
