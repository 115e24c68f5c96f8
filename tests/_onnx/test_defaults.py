"""Attributes and optional inputs that a node omits have the defaults of its operator's schema."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

import jaxdml.onnx
from helpers.compare import assert_same_bits
from helpers.hostile_models import constant, model, node
from jaxdml.onnx._table import MICROSOFT, ROWS

THEIRS = {(schema.domain, schema.name): schema for schema in get_all_operator_schema()}
WITHOUT_SCHEMA = {"SimplifiedLayerNormalization of com.microsoft"}  # onnxruntime has it in ONNX's own domain
UNSAID = {
    "Constant value": "one of several attributes that say the same",
    "ConstantOfShape value": "the default is a tensor, 0 of float32",
    "QuantizeLinear axis": "onnxruntime's own has none in its schema, and 1 in its kernel",
    "DequantizeLinear axis": "onnxruntime's own has none in its schema, and 1 in its kernel",
    **{
        f"{name} mask_filter_value": "none in onnxruntime's schema, and -10000 in its description and its kernel"
        for name in ("Attention", "MultiHeadAttention", "QAttention")
    },
}
BOTH = {"QuantizeLinear", "DequantizeLinear"}  # one function computes ONNX's own and onnxruntime's
LACKING = {"sparse_value", "value_strings", "value_string"}


def shown(row):
    return f"{row.name} of {row.domain or 'ai.onnx'} from {row.since} by {row.numerics}"


ALL = [row for rows in ROWS.values() for row in rows]


def schemas(row):
    """ONNX's schemas for each opset of a row, or onnxruntime's schema of an operator that ONNX does not have."""
    if row.domain == "" and onnx.defs.has(row.name):
        last = {}
        for opset in range(row.since, row.until + 1):
            if onnx.defs.has(row.name, opset, ""):
                schema = onnx.defs.get_schema(row.name, opset, "")
                last[schema.since_version] = schema
        return list(last.values())
    return [THEIRS[row.domain, row.name]] if (row.domain, row.name) in THEIRS else []


def default(attribute):
    """The default that a schema gives an attribute, as a Python value; None if it gives none."""
    proto = getattr(attribute, "default_value", None)
    if proto is None:
        proto = onnx.AttributeProto()
        proto.ParseFromString(attribute._default_value)
    value = helper.get_attribute_value(proto) if proto.type else None
    return value.decode() if isinstance(value, bytes) else tuple(value) if isinstance(value, list) else value


@pytest.mark.parametrize("row", ALL, ids=shown)
def test_attributes_have_the_defaults_of_the_schema(row):
    """No other attribute has a default; onnxruntime's schemas are of one version."""
    found = schemas(row)
    assert found or f"{row.name} of {row.domain}" in WITHOUT_SCHEMA
    if found:
        more = {"block_size", "output_dtype", "precision", "saturate"} if row.domain and row.name in BOTH else set()
        assert row.attributes.keys() - more <= {name for schema in found for name in schema.attributes}
    for schema in found:
        assert schema.attributes.keys() - row.attributes.keys() <= LACKING
        for name, attribute in schema.attributes.items():
            own = row.attributes.get(name)
            if own is None or f"{row.name} {name}" in UNSAID:
                continue
            assert attribute.required == (own.default is own.empty), name
            if not attribute.required:
                expected = default(attribute)
                assert np.float32(own.default) == expected if isinstance(expected, float) else own.default == expected


@pytest.mark.parametrize("row", ALL, ids=shown)
def test_inputs_that_may_be_absent_may_be_absent(row):
    for schema in schemas(row):
        may_be_absent = [parameter.option.name == "Optional" for parameter in schema.inputs]
        for place, (is_needed, may_be) in enumerate(zip(row.required, may_be_absent, strict=False)):
            assert not (is_needed and may_be), place
        assert row.input_counts[0] <= schema.min_input
        assert row.input_counts[1] >= min(schema.max_input, 2**31 - 1)


# Runs ----------------------------------------------------------------------------------------------------------------

RANDOM = np.random.default_rng(0)
X, Y, W = (RANDOM.integers(0, 256, shape, np.uint8) for shape in ((2, 4, 6, 6), (2, 4, 6, 6), (3, 4, 3, 3)))
A, B = (RANDOM.integers(0, 256, shape, np.uint8) for shape in ((5, 7), (7, 3)))
FLOATS = RANDOM.normal(size=(5, 7)).astype(np.float32)
S, T, U, Z = np.float32(0.02), np.float32(0.01), np.float32(0.03), np.uint8(0)

# By operator: its domain, the inputs, and the attributes that a node must have; "" stands for a zero point of 0.
NODES = {
    "QLinearAdd": (MICROSOFT, (X, S, "", Y, T, "", U, ""), {}),
    "QLinearMul": (MICROSOFT, (X, S, "", Y, T, "", U, ""), {}),
    "QLinearSigmoid": (MICROSOFT, (X, S, "", T, ""), {}),
    "QLinearLeakyRelu": (MICROSOFT, (X, S, "", T, ""), {}),
    "QLinearSoftmax": (MICROSOFT, (X, S, "", T, Z), {"opset": 13}),
    "QLinearAveragePool": (MICROSOFT, (X, S, "", T, ""), {"kernel_shape": [2, 3]}),
    "QLinearGlobalAveragePool": (MICROSOFT, (X, S, Z, T, Z), {}),
    "QLinearConcat": (MICROSOFT, (U, Z, X, S, Z, Y, T, Z), {"axis": 1}),
    "QGemm": (MICROSOFT, (A, S, Z, B, T, Z, np.arange(3, dtype=np.int32), U, Z), {}),
    "MatMulIntegerToFloat": (MICROSOFT, (A, B, S, T, "", ""), {}),
    "QLinearConv": ("", (X, S, Z, W, T, Z, np.float32(2), Z), {}),
    "ConvInteger": ("", (X, W, "", ""), {}),
    "MatMulInteger": ("", (A, B, "", ""), {}),
    "QuantizeLinear": ("", (FLOATS, S, ""), {}),
    "DequantizeLinear": ("", (A, S, ""), {}),
    "QuantizeLinear of com.microsoft": (MICROSOFT, (FLOATS, np.full(7, S), np.zeros(7, np.uint8)), {}),
    "DequantizeLinear of com.microsoft": (MICROSOFT, (A, np.full(7, S), np.zeros(7, np.uint8)), {}),
    "LeakyRelu": ("", (FLOATS,), {}),
    "HardSigmoid": ("", (FLOATS,), {}),
    "Elu": ("", (FLOATS,), {}),
    "Softmax": ("", (FLOATS,), {}),
    "Flatten": ("", (FLOATS,), {}),
    "Transpose": ("", (FLOATS,), {}),
    "Clip": ("", (FLOATS, "", np.float32(0.5)), {}),
    "Gemm": ("", (FLOATS, FLOATS.T.copy()), {}),
    "QuickGelu": (MICROSOFT, (FLOATS,), {}),
}
OUTPUTS = {
    "MatMulIntegerToFloat": 1, "ConvInteger": 6, "MatMulInteger": 6, "QuantizeLinear": 2, "DequantizeLinear": 1
}  # fmt: skip


def made(name, inputs, attributes):
    """A model of a node, and its first input."""
    operator, (domain, given, required) = name.split()[0], NODES[name]
    kinds = [helper.np_dtype_to_tensor_dtype(np.asarray(x).dtype) for x in given if not isinstance(x, str)]
    names = ["" if isinstance(x, str) else f"i{place}" for place, x in enumerate(inputs)]
    constants = [constant(x, names[place]) for place, x in enumerate(inputs) if place and names[place]]
    kind = OUTPUTS.get(operator, 2 if operator[0] == "Q" and operator != "QuickGelu" else kinds[0])
    constants, first = (constants, inputs[0])
    if operator == "QLinearConcat":  # its first input is a scale
        constants = [constant(x, f"i{place}") for place, x in enumerate(inputs) if place != 2]
        names[0], first = "i0", inputs[2]
    x = ("i2" if operator == "QLinearConcat" else "i0", helper.np_dtype_to_tensor_dtype(first.dtype), first.shape)
    each = node(operator, names, ["y"], domain=domain, **required, **attributes)
    return model([each], constants, inputs=[x], outputs=[("y", kind, None)]), first


def zeros(name, inputs):
    """The inputs with 0 in place of zero points that are absent."""
    return tuple(Z if isinstance(x, str) and name != "Clip" else x for x in inputs)


def written(name, proto):
    """The attributes of a node that have defaults in the schema, at these defaults."""
    domain, _, required = NODES[name]
    operator = name.split()[0]
    schema = THEIRS[domain, operator] if domain else onnx.defs.get_schema(operator, 17, "")
    found = {each: default(attribute) for each, attribute in schema.attributes.items() if each not in required}
    return {each: list(value) if isinstance(value, tuple) else value for each, value in found.items()
            if value is not None}  # fmt: skip


def run(proto, x):
    loaded = jaxdml.onnx.load(proto, numerics="onnxruntime")
    return np.asarray(loaded.apply(loaded.params, x)["y"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NODES)
def test_what_is_left_out_is_as_if_written(name):
    inputs = NODES[name][1]
    while isinstance(inputs[-1], str):
        inputs = inputs[:-1]
    proto, x = made(name, inputs, {})
    received = run(proto, x)
    with_zeros, _ = made(name, zeros(name, NODES[name][1]), {})
    # Absent zero points are written out, because onnxruntime aborts at some operators with constants and without them.
    session = onnxruntime.InferenceSession(with_zeros.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {session.get_inputs()[0].name: x})
    assert received.dtype == expected.dtype
    if expected.dtype.kind == "f" and name not in ("DequantizeLinear", "Transpose", "Flatten", "Clip"):
        np.testing.assert_allclose(received, expected, rtol=1e-5, atol=1e-6)
    else:
        assert_same_bits(received, expected)
    assert_same_bits(received, run(with_zeros, x))
    with_attributes, _ = made(name, inputs, written(name, proto))
    assert_same_bits(received, run(with_attributes, x))


# Between dequantize and quantize -------------------------------------------------------------------------------------

FUSED = {  # by operator: its attributes, with the defaults written out
    "LeakyRelu": {"alpha": 0.01},
    "Softmax": {"axis": -1},
    "Sigmoid": {},
    "GlobalAveragePool": {},
    "AveragePool": {"kernel_shape": [2, 2], "strides": [1, 1], "pads": [0, 0, 0, 0], "ceil_mode": 0,
                    "count_include_pad": 0, "auto_pad": "NOTSET"},
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("operator", FUSED)
def test_what_is_fused_is_as_if_written(operator):
    def between(attributes):
        nodes = [
            ("DequantizeLinear", ["x", "s", "z"], ["a"]),
            node(operator, ["a"], ["b"], **attributes),
            ("QuantizeLinear", ["b", "t", "z"], ["y"]),
        ]
        constants = [constant(S, "s"), constant(T, "t"), constant(np.uint8(7), "z")]
        return model(nodes, constants, inputs=[("x", 2, X.shape)], outputs=[("y", 2, None)])

    least = {name: value for name, value in FUSED[operator].items() if name == "kernel_shape"}
    loaded = [jaxdml.onnx.load(between(attributes)) for attributes in (least, FUSED[operator])]
    assert loaded[0].operators == loaded[1].operators == (f"QLinear{operator}",)
    received, expected = (each.apply(each.params, X)["y"] for each in loaded)
    assert_same_bits(received, expected)


@pytest.mark.parametrize("attributes", [{}, {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}])
def test_a_product_without_a_bias_is_fused(attributes):
    nodes = [
        ("DequantizeLinear", ["x", "s", "z"], ["a"]),
        ("DequantizeLinear", ["w", "t", "z"], ["b"]),
        node("Gemm", ["a", "b"], ["c"], **attributes),
        ("QuantizeLinear", ["c", "u", "z"], ["y"]),
    ]
    constants = [constant(S, "s"), constant(T, "t"), constant(U, "u"), constant(Z, "z"), constant(B, "w")]
    proto = model(nodes, constants, inputs=[("x", 2, A.shape)], outputs=[("y", 2, None)])
    loaded = jaxdml.onnx.load(proto)
    assert loaded.operators == ("QGemm",)
    expected = np.clip(np.rint((A.astype(np.float64) @ B) * (float(S) * float(T)) / float(U)), 0, 255)
    assert np.abs(np.asarray(loaded.apply(loaded.params, A)["y"]) - expected).max() <= 1


def test_no_operator_is_accepted_before_onnx_has_it():
    first = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        name = schema.domain, schema.name
        first[name] = min(schema.since_version, first.get(name, schema.since_version))
    early = [shown(row) for row in ALL if row.since < first.get((row.domain, row.name), 0)]
    assert not early
