"""onnxruntime's DirectML provider registers every operator of a file, in its version and with its types.

The list is that of the provider's own documentation. No file has been run with the provider here.
"""

import functools
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import helper

import jaxdml as dml
from _onnx import reports
from _onnx.saved import NETWORKS, has_int8_products, inputs_of, kinds, quantized, run, saved, session
from _onnx.test_saved_equations import GROUPS, SIZES, written
from helpers.compare import assert_same_bits
from jaxdml.onnx._save import FIRST, LAST
from jaxdml.ptq import Rule

# The words for the types of the first input and of the result; the package onnx has no schemas of these operators.
OF_MICROSOFT = {
    **{f"QLinear{kind}": ("T", "T") for kind in ("Add", "AveragePool", "GlobalAveragePool")},
    "QLinearConcat": ("TF", "T8"), "DequantizeLinear": ("T1", "T2"),
}  # fmt: skip
VECTORS = Path(__file__).parents[1] / "vectors"


@functools.cache
def registered():
    return json.loads((VECTORS / "directml_operators.json").read_text(encoding="utf-8"))["operators"]


def not_registered(proto):
    """One sentence for each node that the provider does not support."""
    opsets = {entry.domain: entry.version for entry in proto.opset_import}
    inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    types = {tensor.name: tensor.data_type for tensor in inferred.initializer}
    types |= {
        value.name: value.type.tensor_type.elem_type
        for value in (*inferred.value_info, *inferred.input, *inferred.output)
    }
    found = []
    for node in proto.graph.node:
        versions = registered()[node.domain].get(node.op_type, {})
        schema = None if node.domain else onnx.defs.get_schema(node.op_type, opsets[""])
        version = "1" if schema is None else str(schema.since_version)
        if version not in versions:
            found.append(f"{node.op_type}-{version} is not registered")
            continue
        if schema is None:
            words = zip((node.input[0], node.output[0]), OF_MICROSOFT[node.op_type], strict=True)
        else:
            words = [*typed(node.input, schema.inputs), *typed(node.output, schema.outputs)]
        for value, word in words:
            name = helper.tensor_dtype_to_string(types[value]).removeprefix("TensorProto.").lower()
            if name not in versions[version].get(word, [name]):
                found.append(f"{node.op_type}-{version} has {name} for {word}")
    return found


def typed(values, formal):
    """The present values, each with the name of its type in the schema; the last one may be repeated."""
    for place, value in enumerate(values):
        if value:
            yield value, formal[min(place, len(formal) - 1)].type_str


@pytest.mark.rare
@pytest.mark.parametrize("numerics", ["onnxruntime", "directml"])
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_networks_have_operators_that_are_registered(form, numerics, tmp_path):
    for name in NETWORKS:
        for tables in ("float", "gather"):
            options = {"products": "dynamic"} if name == "block" and tables == "gather" else {}
            model = quantized(name, numerics=numerics, **options)
            proto = saved(model, tmp_path / "model.onnx", form, tables=tables)
            assert not_registered(proto) == [], (name, tables)


@pytest.mark.rare
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("name", ["block", "CNN"])
def test_weights_of_4_bits_are_registered(name, form, tmp_path):
    """Convolutions keep 8-bit weights, and biases of 32 bits; the opset is 21."""
    proto = saved(quantized(name, weights=jnp.int4, block_size=16), tmp_path / "model.onnx", form)
    types = {tensor.data_type for tensor in proto.graph.initializer}
    assert types >= {onnx.TensorProto.INT4} | ({onnx.TensorProto.INT32} if name == "CNN" else set())
    assert not_registered(proto) == []


@pytest.mark.rare
@pytest.mark.parametrize("weights", ["uint8", "int8"])
def test_biases_of_later_opsets_are_registered_and_have_the_same_bits(weights, tmp_path):
    """onnxruntime and jaxdml fuse the DequantizeLinear of the bias, which is ONNX Runtime's own."""
    model, x = quantized("CNN", numerics="onnxruntime"), inputs_of("CNN", 64)
    proto = saved(model, tmp_path / "model.onnx", weights=weights, opset=21)
    assert not_registered(proto) == []
    expected = np.asarray(model.apply(model.params, x))
    for level in ("EXTENDED", "ENABLE") if weights == "uint8" or has_int8_products() else ():
        (received,) = run(tmp_path / "model.onnx", x, level=level).values()
        assert_same_bits(received, expected, level)
    session(tmp_path / "model.onnx", optimized=tmp_path / "optimized.onnx")
    assert "Conv" not in kinds(onnx.load(tmp_path / "optimized.onnx"))
    loaded = dml.onnx.load(tmp_path / "model.onnx", numerics="onnxruntime")
    assert_same_bits(loaded.apply(loaded.params, x)["output"], expected)
    assert reports.of_file(loaded, model) == reports.of_function(model)
    proto = saved(model, tmp_path / "model.onnx", weights=weights, opset=20)
    assert {node.domain for node in proto.graph.node} == {""}


@pytest.mark.rare
@pytest.mark.parametrize("group", GROUPS)
def test_equations_have_operators_that_are_registered(group, tmp_path):
    """docs/onnx_saving.md names the updates of parts of arrays as an exception from opset 18 on."""
    model, options = written(group, tmp_path), {"weights": "uint8", "shapes": SIZES.get(group, "batch")}
    for opset in range(FIRST, LAST + 1):
        found = not_registered(saved(model, tmp_path / "model.onnx", opset=opset, **options))
        updates = {f"Scatter{kind}-18 is not registered" for kind in ("ND", "Elements")}
        assert set(found) == (updates if group == "updates" and opset > FIRST else set()), opset


@pytest.mark.rare
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_integers_of_16_bits_are_not_registered(form, tmp_path):
    """docs/onnx_saving.md says so."""
    model = quantized("CNN", rules=(Rule("", activations=jnp.uint16),))
    found = not_registered(saved(model, tmp_path / "model.onnx", form))
    assert set(found) == {"QuantizeLinear-21 has uint16 for T2", "DequantizeLinear-21 has uint16 for T1"}


@pytest.mark.rare
def test_gelu_of_later_opsets_is_not_registered(tmp_path):
    """docs/onnx_saving.md says so. The same model without the argument opset has other operators."""
    proto = saved(quantized("block"), tmp_path / "model.onnx", opset=20)
    assert not_registered(proto) == ["Gelu-20 is not registered"]
