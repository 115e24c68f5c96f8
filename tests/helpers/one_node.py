"""Models of one operator for onnxruntime, without graph optimisation."""

import platform

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

# On other processors, onnxruntime's kernels have other formulas, which jaxdml does not follow.
on_x64_alone = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="onnxruntime has other formulas on other processors"
)
TYPES = {name: getattr(TensorProto, name.upper()) for name in ("uint8", "int8", "int32", "float16", "int4", "uint4")}
TYPES |= {"float32": TensorProto.FLOAT, "bool": TensorProto.BOOL, "int64": TensorProto.INT64}
BYTES = {"int4": "int8", "uint4": "uint8"}


def run(operator, arguments, outputs, *, domain="", opset=21, **attributes):
    """The outputs of an operator, with these types; all arguments but the first are initializers."""
    names = ["" if argument is None else f"x{i}" for i, argument in enumerate(arguments)]
    first, *others = zip(names, arguments, strict=True)
    is_input = first[1].dtype.itemsize > 1 or first[1].dtype.kind in "iu"  # onnxruntime rejects 4-bit NumPy arrays
    initializers = [_initializer(name, value) for name, value in (others if is_input else [first, *others]) if name]
    inputs = [helper.make_tensor_value_info(first[0], TYPES[first[1].dtype.name], first[1].shape)] if is_input else []
    # Elements of 4 bits are cast to bytes, because onnxruntime returns no 4-bit NumPy arrays.
    results = [helper.make_tensor_value_info(f"y{i}", TYPES[BYTES.get(name, name)], None)
               for i, name in enumerate(outputs)]  # fmt: skip
    names_of_results = [f"x_y{i}" if name in BYTES else f"y{i}" for i, name in enumerate(outputs)]
    nodes = [helper.make_node(operator, names, names_of_results, domain=domain, **attributes)]
    nodes += [helper.make_node("Cast", [f"x_y{i}"], [f"y{i}"], to=TYPES[BYTES[name]])
              for i, name in enumerate(outputs) if name in BYTES]  # fmt: skip
    return _session(nodes, inputs, results, initializers, opset).run(None, dict([first]) if is_input else {})


def fed(operator, arguments, output, *, domain="com.microsoft", **attributes):
    """A function of all arguments that returns an operator's output; `arguments` and `output` give the types."""
    names = ["" if argument is None else f"x{i}" for i, argument in enumerate(arguments)]
    inputs = [helper.make_tensor_value_info(name, TYPES[np.asarray(argument).dtype.name], None)
              for name, argument in zip(names, arguments, strict=True) if name]  # fmt: skip
    nodes = [helper.make_node(operator, names, ["y"], domain=domain, **attributes)]
    session = _session(nodes, inputs, [helper.make_tensor_value_info("y", TYPES[output], None)])

    def call(*arguments):
        given = zip(names, arguments, strict=True)
        return session.run(None, {name: np.asarray(argument) for name, argument in given if name})[0]

    return call


def _session(nodes, inputs, results, initializers=(), opset=21):
    graph = helper.make_graph(nodes, "one", inputs, results, initializers)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _initializer(name, value):
    return helper.make_tensor(name, TYPES[value.dtype.name], value.shape, _bytes(value), raw=True)


def _bytes(value):
    """The bytes as ONNX stores them: 4-bit elements two to a byte, the first in the low bits."""
    if value.dtype.name not in ("int4", "uint4"):
        return value.tobytes()
    nibbles = value.astype(np.int8).ravel().view(np.uint8) & 15
    nibbles = np.append(nibbles, np.zeros(nibbles.size % 2, np.uint8))
    return (nibbles[::2] | nibbles[1::2] << 4).tobytes()
