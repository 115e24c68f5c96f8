"""QuantizeLinear and DequantizeLinear of every type and form against onnxruntime: no output differs.

Blocks are compared with `jaxdml.reference` too, by the scale and zero point of each element.
"""

import itertools

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import jaxdml.onnx
from helpers.compare import assert_same_bits, assert_same_values
from helpers.marks import rest_rarely
from jaxdml import reference
from jaxdml.errors import ModelError
from jaxdml.reference import operators

TYPES = {"float32": TensorProto.FLOAT}
TYPES |= {name: getattr(TensorProto, name.upper()) for name in ("float16", "uint8", "int8", "uint16", "int16", "int32")}
TYPES |= {"uint4": TensorProto.UINT4, "int4": TensorProto.INT4}
BYTES = {"uint4": "uint8", "int4": "int8"}  # NumPy's stand-ins
# By name: shapes of the input and of its parameters, and attributes.
FORMS = {
    "one": ((12, 35), (), {}),
    "one element": ((12, 35), (1,), {"axis": 0}),
    "no dimensions": ((), (), {}),
    "rows": ((12, 35), (12,), {"axis": 0}),
    "columns": ((12, 35), (35,), {"axis": -1}),
    "line": ((40,), (40,), {"axis": 0}),
    "blocks": ((6, 12, 5), (6, 3, 5), {"axis": 1, "block_size": 4}),
    "cut": ((6, 13, 5), (6, 4, 5), {"axis": -2, "block_size": 4}),
    "cut, and their number divides the size": ((30, 6), (30, 2), {"axis": 1, "block_size": 4}),
    "longer than the axis": ((30, 6), (1, 6), {"axis": 0, "block_size": 64}),
    "blocks of a line": ((80,), (20,), {"axis": 0, "block_size": 4}),
    "cut blocks of a line": ((78,), (20,), {"axis": 0, "block_size": 4}),
}
BLOCKED = [name for name, (*_, attributes) in FORMS.items() if "block_size" in attributes]
QUANTIZED = ("int8", "uint4", "uint8", "int4", "uint16", "int16")
CASES = [
    *[("blocks", "int8", "float32", True), ("cut", "uint4", "float16", True), ("one", "int16", "float16", False)],
    *itertools.product(FORMS, QUANTIZED, ("float32", "float16"), (True, False)),
]
QUICK = 3


def onnxruntimes(proto, inputs):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def one_node(operator, types, output, shapes, **attributes):
    """A model of one operator; elements of 4 bits come in and go out as bytes."""
    nodes, names = [], [f"x{i}" for i in range(len(types))]
    for i, kind in enumerate(types):
        if kind in BYTES:
            nodes.append(helper.make_node("Cast", [names[i]], [f"{names[i]}_narrow"], to=TYPES[kind]))
    inside = [f"{name}_narrow" if kind in BYTES else name for name, kind in zip(names, types, strict=True)]
    result = "narrow" if output in BYTES else "y"
    nodes.append(helper.make_node(operator, inside, [result], **attributes))
    if output in BYTES:
        nodes.append(helper.make_node("Cast", ["narrow"], ["y"], to=TYPES[BYTES[output]]))
    inputs = [
        helper.make_tensor_value_info(name, TYPES[BYTES.get(kind, kind)], shape)
        for name, kind, shape in zip(names, types, shapes, strict=True)
    ]
    outputs = [helper.make_tensor_value_info("y", TYPES[BYTES.get(output, output)], None)]
    graph = helper.make_graph(nodes, "one", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def both(operator, types, output, arguments, **attributes):
    """The outputs of jaxdml and of onnxruntime."""
    proto = one_node(operator, types, output, [x.shape for x in arguments], **attributes)
    inputs = {f"x{i}": np.asarray(x) for i, x in enumerate(arguments)}
    model = jaxdml.onnx.load(proto)
    return np.asarray(model.apply(model.params, **inputs)["y"]), onnxruntimes(proto, inputs)


def integers(rng, kind, shape):
    low, high = operators.LIMITS[kind]
    return rng.integers(low, high, shape, endpoint=True).astype(BYTES.get(kind, kind))


def parameters(rng, form, kind, real):
    """A scale and a zero point."""
    shape = FORMS[form][1]
    return np.asarray(rng.uniform(0.01, 0.1, shape)).astype(real), integers(rng, kind, shape)


def each(parameter, form):
    """A parameter's value for each element of the input."""
    shape, _, attributes = FORMS[form]
    axis, size = attributes["axis"], attributes["block_size"]
    return np.repeat(parameter, size, axis).take(range(shape[axis]), axis)


def floats(rng, form, kind, scale):
    """Steps of a scale, a quarter of them halves, some beyond the range of the type."""
    shape, (low, high) = FORMS[form][0], operators.LIMITS[kind]
    steps = rng.uniform(low - high, high - low, shape)
    steps = np.where(rng.random(shape) < 0.25, np.floor(steps) + 0.5, steps)
    return (steps * (each(scale, form) if form in BLOCKED else scale.max())).astype(scale.dtype)


def with_zero_point(arguments, types, has_zero_point):
    return (arguments, types) if has_zero_point else (arguments[:2], types[:2])


@pytest.mark.parametrize("case", rest_rarely(CASES, QUICK))
def test_to_integers(case):
    form, kind, real, has_zero_point = case
    rng, attributes = np.random.default_rng(0), FORMS[form][2]
    if not has_zero_point:
        attributes = attributes | {"output_dtype": TYPES[kind]}
    for _ in range(3):
        scale, zero_point = parameters(rng, form, kind, real)
        given = with_zero_point((floats(rng, form, kind, scale), scale, zero_point), (real, real, kind), has_zero_point)
        ours, theirs = both("QuantizeLinear", given[1], kind, given[0], **attributes)
        assert_same_bits(ours, theirs)
        assert ours.size < 20 or len(np.unique(ours)) > 5


@pytest.mark.parametrize("case", rest_rarely(CASES, QUICK))
def test_to_floats(case):
    form, kind, real, has_zero_point = case
    rng, attributes = np.random.default_rng(1), FORMS[form][2]
    for _ in range(3):
        scale, zero_point = parameters(rng, form, kind, real)
        x = integers(rng, kind, FORMS[form][0])
        given = with_zero_point((x, scale, zero_point), (kind, real, kind), has_zero_point)
        ours, theirs = both("DequantizeLinear", given[1], real, given[0], **attributes)
        assert_same_bits(ours, theirs)


@pytest.mark.rare
@pytest.mark.parametrize("real", ["float32", "float16"])
@pytest.mark.parametrize("kind", QUANTIZED)
def test_a_million_outputs(kind, real):
    """In blocks of 32, the last of which is incomplete."""
    rng, shape, scales = np.random.default_rng(2), (500, 1050), (500, 33)
    attributes = {"axis": 1, "block_size": 32}
    scale, zero_point = rng.uniform(0.01, 0.1, scales).astype(real), integers(rng, kind, scales)
    low, high = operators.LIMITS[kind]
    x = (rng.uniform(1.2 * low, 1.2 * high, shape) * np.repeat(scale, 32, 1)[:, :1050]).astype(real)
    arguments = x, scale, zero_point
    assert_same_values(*both("QuantizeLinear", (real, real, kind), kind, arguments, **attributes))
    arguments = integers(rng, kind, shape), scale, zero_point
    assert_same_values(*both("DequantizeLinear", (kind, real, kind), real, arguments, **attributes))


def narrow(x, kind):
    return x.astype(getattr(ml_dtypes, kind)) if kind in BYTES else x


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", BLOCKED)
def test_blocks_as_the_reference_has_them(form):
    rng, attributes = np.random.default_rng(3), FORMS[form][2]
    for kind in QUANTIZED[:4]:
        scale, zero_point = parameters(rng, form, kind, "float32")
        of_each = each(scale, form), narrow(each(zero_point, form), kind)
        x = floats(rng, form, kind, scale)
        expected = reference.quantize(x, *of_each).astype(zero_point.dtype)
        ours, _ = both("QuantizeLinear", ("float32", "float32", kind), kind, (x, scale, zero_point), **attributes)
        assert_same_bits(ours, expected)
        x = integers(rng, kind, FORMS[form][0])
        expected = reference.dequantize(narrow(x, kind), *of_each)
        ours, _ = both("DequantizeLinear", (kind, "float32", kind), "float32", (x, scale, zero_point), **attributes)
        assert_same_bits(ours, expected)


WRONG = {  # shapes of the input and of its scales, and attributes
    "too few blocks": ((4, 8), (4, 2), {"axis": 1, "block_size": 3}),
    "too many blocks": ((4, 8), (4, 4), {"axis": 1, "block_size": 4}),
    "other rows": ((4, 8), (2, 2), {"axis": 1, "block_size": 4}),
    "one number for blocks": ((4, 8), (), {"axis": 1, "block_size": 4}),
    "no block size": ((4, 8), (4, 2), {"axis": 1}),
    "no such axis": ((8, 8), (8,), {"axis": 2}),
    "no such axis from the end": ((8, 8), (8,), {"axis": -3}),
    "no such axis of a line": ((8,), (8,), {}),
    "no such axis of blocks": ((4, 8), (4, 2), {"axis": 2, "block_size": 4}),
}


@pytest.mark.parametrize("form", WRONG)
@pytest.mark.parametrize("kind", ["uint8", "int4"])
def test_what_onnxruntime_refuses_is_refused(form, kind):
    shape, scales, attributes = WRONG[form]
    for operator, types, output in (
        ("QuantizeLinear", ("float32", "float32", kind), kind),
        ("DequantizeLinear", (kind, "float32", kind), "float32"),
    ):
        proto = one_node(operator, types, output, (shape, scales, scales), **attributes)
        sizes = (shape, scales, scales)
        inputs = {
            f"x{i}": np.ones(size, BYTES.get(each, each))
            for i, (each, size) in enumerate(zip(types, sizes, strict=True))
        }
        with pytest.raises(Exception, match=r"(?i)scale|axis|block|shape"):
            onnxruntimes(proto, inputs)
        model = jaxdml.onnx.load(proto)
        with pytest.raises(ModelError, match=r"axis|block_size|expected"):
            model.apply(model.params, **inputs)


def test_an_axis_beside_one_number_is_not_looked_at():
    arguments = np.ones((2, 2), np.int8), np.float32(3), np.int8(1)
    for got in both("DequantizeLinear", ("int8", "float32", "int8"), "float32", arguments, axis=7):
        assert got.tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("kind", ["int8", "uint4", "int16"])
@pytest.mark.parametrize("form", ["one", "rows", "blocks"])
def test_nothing(form, kind):
    scales, attributes = {"one": ((), {}), "rows": ((3,), {"axis": 1}), "blocks": ((0, 2), {"block_size": 2})}[form]
    scale, zero_point = np.ones(scales, np.float32), np.ones(scales, BYTES.get(kind, kind))
    x = np.ones((0, 3), np.float32)
    ours, theirs = both("QuantizeLinear", ("float32", "float32", kind), kind, (x, scale, zero_point), **attributes)
    assert_same_bits(ours, theirs)
    arguments = x.astype(zero_point.dtype), scale, zero_point
    ours, theirs = both("DequantizeLinear", (kind, "float32", kind), "float32", arguments, **attributes)
    assert_same_bits(ours, theirs)
