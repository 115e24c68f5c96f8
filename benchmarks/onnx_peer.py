"""onnxruntime sessions for the same operators, on as many threads as XLA uses.

onnx and onnxruntime are imported when a session is made, so that a run on a GPU needs neither.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np


def threads() -> int:
    return len(os.sched_getaffinity(0))


class Graph:
    """Builds a graph: nodes, and constants by name."""

    def __init__(self) -> None:
        self.nodes: list[tuple[str, list[str], list[str], dict[str, Any]]] = []
        self.constants: dict[str, np.ndarray] = {}

    def constant(self, value: Any) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def node(self, operator: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> str:
        """Adds a node; inputs are names, or arrays, which become constants. Returns the name of the first output."""
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        output = f"value_{len(self.nodes)}"
        others = [f"{output}_{number}" for number in range(1, outputs)]
        self.nodes.append((operator, names, [output, *others], attributes))
        return output

    def model(self, inputs: dict[str, np.ndarray], output: str, dtype: Any = None) -> Any:
        """The graph as an onnx.ModelProto; the output's type is optional, because onnxruntime infers it."""
        import onnx
        from onnx import helper, numpy_helper

        def typed(name: str, x: np.ndarray) -> Any:
            return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)

        graph = helper.make_graph(
            [helper.make_node(*node, **attributes) for *node, attributes in self.nodes],
            "graph",
            [typed(name, x) for name, x in inputs.items()],
            [
                onnx.ValueInfoProto(name=output)
                if dtype is None
                else helper.make_tensor_value_info(output, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)
            ],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def session(self, inputs: dict[str, np.ndarray], output: str) -> Any:
        """A call without arguments that runs the graph on the inputs."""
        return session_of(self.model(inputs, output).SerializeToString(), inputs)


def session_of(file: bytes, inputs: dict[str, np.ndarray], **entries: str) -> Callable[[], Any]:
    """A call without arguments that runs the file on the inputs, and returns the first output.

    `entries` are further configuration entries of the session, without the prefix "session.".
    """
    import onnxruntime

    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(file, session_options(**entries), providers=providers)
    return lambda: session.run(None, inputs)[0]


def session_options(**entries: str) -> Any:
    """Options for as many threads as XLA has, which do not spin; `entries` are those of `session_of`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    options.inter_op_num_threads = 1
    # Idle threads of onnxruntime would spin for milliseconds after each run, on the cores of the call that is timed
    # next. Without spinning, it is not slower in a loop of its own: a 3x3 convolution of 64 channels at 56x56 takes
    # 0.86 ms with spinning, and 0.75 to 0.94 without.
    for name, value in {"intra_op.allow_spinning": "0", **entries}.items():
        options.add_session_config_entry(f"session.{name}", value)
    return options


def moved(weights: np.ndarray) -> np.ndarray:
    """int8 weights as uint8 ones with zero point 128: the same answer, in a type with which onnxruntime is exact."""
    return (weights.astype(np.int16) + 128).astype(np.uint8)
