"""onnxruntime's DirectML provider registers every operator of a file, in its version and with its types.

The list is that of the provider's own documentation. No file has been run with the provider here.
"""

import functools
import json
from pathlib import Path

import jax.numpy as jnp
import onnx
import pytest
from onnx import helper

from _onnx.saved import NETWORKS, quantized, saved
from _onnx.test_saved_equations import GROUPS, written

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
        if schema is None:  # the package onnx has no schema of it
            words = [(node.input[0], "T"), (node.output[0], "T")] if "T" in versions["1"] else []
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
def test_weights_of_4_bits_are_registered(form, tmp_path):
    proto = saved(quantized("block", weights=jnp.int4, block_size=32), tmp_path / "model.onnx", form)
    assert onnx.TensorProto.INT4 in {tensor.data_type for tensor in proto.graph.initializer}
    assert not_registered(proto) == []


@pytest.mark.rare
@pytest.mark.parametrize("group", GROUPS)
def test_equations_have_operators_that_are_registered(group, tmp_path):
    written(group, tmp_path)
    assert not_registered(onnx.load(tmp_path / f"{group}.onnx")) == []


@pytest.mark.rare
def test_what_is_not_registered_would_be_seen(tmp_path):
    proto = saved(quantized("block"), tmp_path / "model.onnx", opset=20)
    assert not_registered(proto) == ["Gelu-20 is not registered"]
    proto = saved(quantized("CNN"), tmp_path / "model.onnx", opset=21)
    assert set(not_registered(proto)) == {"DequantizeLinear-21 has int32 for T1"}
