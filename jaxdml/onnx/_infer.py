"""Types and shapes of a model's values, as far as onnx infers them; errors show them, nothing relies on them."""

from typing import Any

import onnx

from jaxdml.errors import ModelError
from jaxdml.onnx._tensors import tensors
from jaxdml.onnx._types import DTYPES

SMALL = 1024  # elements; shapes depend on small tensors alone


def known_types(proto: onnx.ModelProto) -> dict[str, tuple[str | None, tuple[Any, ...] | None]]:
    """The type and shape of values by name; what onnx does not infer is not there."""
    without_data = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    graph = without_data.graph
    graph.name = "graph"
    graph.node.extend(node for node in proto.graph.node if not any(a.HasField("g") for a in node.attribute))
    graph.input.extend(proto.graph.input)
    graph.output.extend(proto.graph.output)
    declared = {value.name for value in proto.graph.input}
    for tensor in proto.graph.initializer:
        size = 1
        for extent in tensor.dims:
            size *= extent
        if size <= SMALL and tensor.data_location != onnx.TensorProto.EXTERNAL:
            graph.initializer.append(tensor)
        elif tensor.name not in declared:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    try:
        inferred = onnx.shape_inference.infer_shapes(without_data).graph
    except Exception:  # a malformed model, whose problems others tell
        inferred = graph
    found: dict[str, Any] = {}
    for value in (*inferred.value_info, *inferred.input, *inferred.output):
        try:
            tensor = tensors([value])[0]
        except ModelError:  # a sequence, or a type that has no name here
            continue
        found[value.name] = (tensor.dtype.name, tensor.shape)
    for tensor in inferred.initializer:
        dtype = DTYPES.get(tensor.data_type)
        found[tensor.name] = (dtype.name if dtype else None, tuple(tensor.dims))
    return found
