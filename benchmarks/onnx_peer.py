"""onnxruntime sessions for the same operators, on as many threads as XLA uses."""

import os
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

TYPES = {
    np.dtype(np.uint8): TensorProto.UINT8,
    np.dtype(np.int8): TensorProto.INT8,
    np.dtype(np.uint16): TensorProto.UINT16,
    np.dtype(np.int16): TensorProto.INT16,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.float32): TensorProto.FLOAT,
}


def threads() -> int:
    return len(os.sched_getaffinity(0))


class Graph:
    """A graph in the making: nodes, and constants by name."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}

    def constant(self, value: Any) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def node(self, operator: str, *inputs: Any, domain: str = "", **attributes: Any) -> str:
        """Adds a node; arrays among the inputs become constants, names stay."""
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        output = f"value_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [output], domain=domain, **attributes))
        return output

    def session(self, inputs: dict[str, np.ndarray], output: str) -> Any:
        """A call without arguments that runs the graph on the inputs."""
        graph = helper.make_graph(
            self.nodes,
            "graph",
            [helper.make_tensor_value_info(name, TYPES[x.dtype], x.shape) for name, x in inputs.items()],
            [onnx.ValueInfoProto(name=output)],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads()
        options.inter_op_num_threads = 1
        # Its idle threads would spin for milliseconds after each run, on the cores of whoever is timed next. In a loop
        # of its own it loses nothing: 0.86 ms with spinning, 0.75 to 0.94 without, for 64 channels at 56x56, 3x3.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, inputs)[0]
