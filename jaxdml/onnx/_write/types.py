"""The types that operators of a file may have: those of ONNX that onnxruntime's CPU provider also registers."""

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from jaxdml.onnx._table import MICROSOFT

COMPUTED = {
    getattr(TensorProto, name)
    for name in ("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FLOAT", "DOUBLE")
}
AT_THE_ENDS = {TensorProto.FLOAT16, TensorProto.BFLOAT16}  # types of inputs and outputs, but of no other values
# ONNX's types that the provider does not support, by operator and type parameter, in all opsets that `save` writes.
LACKS = {
    **dict.fromkeys(
        (f"{kind}.T" for kind in (
            "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "AveragePool", "Conv", "Cosh", "Erf", "Gelu",
            "GlobalAveragePool", "Sinh", "Tan",
        )), "double",
    ),
    **dict.fromkeys(
        ("CumSum.T", "ReduceMax.T", "ReduceMean.T", "ReduceMin.T", "ReduceProd.T", "ReduceSum.T"), "uint32 uint64"
    ),
    **dict.fromkeys(("ArgMax.T", "ArgMin.T"), "int16 uint16 uint32 uint64"),
    **dict.fromkeys(("Clip.T", "Max.T", "Min.T", "Pad.T"), "int16 uint16"),
    **dict.fromkeys(("Einsum.T", "Pow.T1"), "int8 int16 uint8 uint16 uint32 uint64"),
    "Gemm.T": "int32 int64 uint32 uint64", "QuantizeLinear.T1": "int32", "Relu.T": "int16 int64",
    "TopK.T": "uint16 uint32 uint64", "Where.T": "bool int16 uint16 uint64",
}  # fmt: skip


def wrong_types(
    graph: onnx.GraphProto, initializers: Mapping[str, np.ndarray], opset: int
) -> Iterator[tuple[str, str]]:
    """Yields the name of each node whose operator does not take the type of a value, and a sentence that says so."""
    types = _types(graph, initializers, opset)
    computed = {name: kind for name, kind in types.items() if name not in initializers}
    for node in graph.node:
        schema = None if node.domain else onnx.defs.get_schema(node.op_type, opset)
        wrong = "" if schema is None else _wrong(node, schema, computed)
        if wrong:
            yield node.name, f"the operator {node.op_type} of opset {opset} does not take {wrong} in onnxruntime"


def _wrong(node: onnx.NodeProto, schema: onnx.defs.OpSchema, types: Mapping[str, int]) -> str:
    """The first type of a node's values that its operator does not take; empty if there is none."""
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    computed = COMPUTED | AT_THE_ENDS if node.op_type == "Cast" else COMPUTED
    for values, formal in ((node.input, schema.inputs), (node.output, schema.outputs)):
        for place, value in enumerate(values):
            if value not in types:
                continue
            word = formal[min(place, len(formal) - 1)].type_str
            name = helper.tensor_dtype_to_string(types[value]).removeprefix("TensorProto.").lower()
            is_registered = name not in LACKS.get(f"{node.op_type}.{word}", "").split()
            if types[value] not in computed or f"tensor({name})" not in allowed.get(word, [word]) or not is_registered:
                return name
    return ""


def _types(graph: onnx.GraphProto, initializers: Mapping[str, np.ndarray], opset: int) -> dict[str, int]:
    """The types of a graph's values, as far as the package onnx infers them or the graph declares them."""
    known = onnx.GraphProto()
    known.CopyFrom(graph)
    known.input.extend(
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in initializers.items()
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    inferred = onnx.shape_inference.infer_shapes(helper.make_model(known, opset_imports=opsets)).graph
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    return {value.name: value.type.tensor_type.elem_type for value in values}
