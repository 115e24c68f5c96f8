"""Random LSTM and DynamicQuantizeLSTM nodes with their inputs, and onnxruntime's outputs.

The gates are at most 1, because onnxruntime clips overflows to the largest float.
"""

from dataclasses import dataclass

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

NAMES = ("x", "w", "r", "bias", "lengths", "h", "c", "peephole", "ws", "wz", "rs", "rz")
TYPES = {"float32": TensorProto.FLOAT, "int32": TensorProto.INT32, "uint8": TensorProto.UINT8, "int8": TensorProto.INT8}
OUTPUTS = ("y", "last_h", "last_c")
OTHERS = (
    ("Sigmoid", "Tanh", "Relu"), ("HardSigmoid", "Softsign", "Affine"), ("HardSigmoid", "LeakyRelu", "Elu"),
    ("Sigmoid", "ThresholdedRelu", "ScaledTanh"), ("sigmoid", "Softplus", "TANH"),
)  # fmt: skip


@dataclass
class Case:
    """A node.

    Attributes:
      operator: its name.
      values: its inputs, keyed by the names in NAMES; those of `given` are inputs of the model, others are constants.
      attributes: its attributes.
      given: the names of the model's inputs.
    """

    operator: str
    values: dict
    attributes: dict
    given: tuple = ("x",)

    def model(self, opset=22):
        names = [name if name in self.values else "" for name in NAMES]
        while not names[-1]:
            names.pop()
        domain = "com.microsoft" if self.operator == "DynamicQuantizeLSTM" else ""
        node = helper.make_node(self.operator, names, OUTPUTS, domain=domain, **self.attributes)
        inputs = [
            helper.make_tensor_value_info(name, TYPES[self.values[name].dtype.name], self.values[name].shape)
            for name in self.given
        ]
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in OUTPUTS]
        constants = [
            numpy_helper.from_array(value, name) for name, value in self.values.items() if name not in self.given
        ]
        graph = helper.make_graph([node], "graph", inputs, outputs, constants)
        imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    @property
    def inputs(self):
        return {name: self.values[name] for name in self.given}

    def by_onnxruntime(self, threads=1):
        """onnxruntime's outputs. Each of its threads quantizes the hidden states of its own items."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        options.add_session_config_entry("session.x64quantprecision", "1")  # int8 weights do not saturate
        session = onnxruntime.InferenceSession(
            self.model().SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return dict(zip(OUTPUTS, session.run(OUTPUTS, self.inputs), strict=True))


def random_case(seed, *, is_quantized):
    """A case; every option of the node is in some of them."""
    rng = np.random.default_rng(seed)

    def either():
        return bool(rng.integers(2))

    def floats(*shape, scale=1.0):
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    direction = ("forward", "reverse", "bidirectional")[seed % 3]
    count, (steps, batch, size, hidden) = 1 + (direction == "bidirectional"), rng.integers(1, 9, 4).tolist()
    values = {"x": floats(steps, batch, size)}
    if is_quantized:
        dtype = np.int8 if either() else np.uint8
        for name, rows in (("w", size), ("r", hidden)):
            shape = (count, 4 * hidden) if either() else (count,)
            limits = np.iinfo(dtype)
            values[name] = rng.integers(limits.min, limits.max, (count, rows, 4 * hidden), dtype, endpoint=True)
            values[f"{name}s"] = rng.uniform(0.002, 0.02, shape).astype(np.float32)
            values[f"{name}z"] = np.full(shape, rng.integers(100, 150) if dtype == np.uint8 else 0, dtype)
    else:
        values |= {"w": floats(count, 4 * hidden, size), "r": floats(count, 4 * hidden, hidden)}
    if either():
        values["bias"] = floats(count, 8 * hidden)
    if either():
        values["lengths"] = rng.integers(0, steps, batch, np.int32, endpoint=True)
    if either():
        values |= {"h": floats(count, batch, hidden), "c": floats(count, batch, hidden)}
    if either():
        values["peephole"] = floats(count, 3 * hidden)
    attributes = {"direction": direction, "hidden_size": hidden}
    if either():
        attributes["clip"] = 1.5
    if either():
        attributes["input_forget"] = 1
    if either():
        kinds = OTHERS[:1] if is_quantized else OTHERS
        attributes["activations"] = [name for _ in range(count) for name in kinds[rng.integers(len(kinds))]]
        attributes |= {"activation_alpha": [0.3, 0.7], "activation_beta": [0.1]} if either() else {}
    given = ("x", *(name for name in ("lengths", "h", "c") if name in values and either()))
    return Case("DynamicQuantizeLSTM" if is_quantized else "LSTM", values, attributes, given)
