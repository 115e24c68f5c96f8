"""torch's PT2E quantization, with its quantizer for x86 processors, of a network from a float ONNX file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch.nn import functional
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

Operator = Callable[..., torch.Tensor]
# torch's functions for operators whose inputs are all data.
BINARY: dict[str, Operator] = {"Add": torch.add, "Mul": torch.mul, "Div": torch.div, "Sub": torch.sub, "Pow": torch.pow}
BINARY |= {"Max": torch.maximum, "Min": torch.minimum}
UNARY: dict[str, Operator] = {"Relu": functional.relu, "Tanh": torch.tanh, "Sqrt": torch.sqrt}


class Network(torch.nn.Module):
    """An ONNX graph with one input and one output, computed node by node; it supports the operators of our networks."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        graph = onnx.load(path).graph
        self.nodes, self.input, self.output = list(graph.node), graph.input[0].name, graph.output[0].name
        self.constants = {each.name: np.array(numpy_helper.to_array(each)) for each in graph.initializer}
        for name, value in self.constants.items():
            self.register_parameter(_attribute(name), torch.nn.Parameter(torch.from_numpy(value), requires_grad=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values: dict[str, Any] = {"": None, self.input: x}
        values |= {name: getattr(self, _attribute(name)) for name in self.constants}
        uses = [name for node in self.nodes for name in node.input]
        adds = {node.input[0]: node for node in self.nodes if node.op_type == "Add"}
        joined = set()
        for node in self.nodes:
            if node.name in joined:
                continue
            inputs = [values[name] for name in node.input]
            options = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
            (name, *_), bias = node.output, None
            add = adds.get(name)
            if node.op_type == "MatMul" and add and uses.count(name) == 1 and add.input[1] in self.constants:
                name, bias = add.output[0], values[add.input[1]].reshape(-1)
                joined.add(add.name)
            made = self.computed(node, inputs, options, bias)
            values |= {name: made} if len(node.output) == 1 else {each: made[at] for at, each in enumerate(node.output)}
        return values[self.output]

    def computed(self, node: Any, inputs: list[Any], options: dict[str, Any], bias: Any) -> Any:
        """The outputs of a node."""
        kind, (x, *rest) = node.op_type, inputs
        known = [self.constants.get(name) for name in node.input]
        if kind in BINARY:
            return BINARY[kind](x, *rest)
        if kind in UNARY:
            return UNARY[kind](x)
        match kind:
            case "Conv":
                top, left, bottom, right = options.get("pads", [0, 0, 0, 0])
                if (top, left) != (bottom, right):
                    x, top, left = functional.pad(x, (left, right, top, bottom)), 0, 0
                return functional.conv2d(
                    x, *rest, options.get("strides", 1), (top, left), groups=options.get("group", 1)
                )
            case "Gemm":
                return functional.linear(x, rest[0] if options.get("transB") else rest[0].T, *rest[1:])
            case "MatMul":
                return functional.linear(x, rest[0].T, bias) if known[1] is not None else torch.matmul(x, *rest)
            case "Clip":
                return functional.hardtanh(x, float(known[1]), float(known[2]))
            case "LayerNormalization":
                return functional.layer_norm(x, x.shape[-1:], *rest, options["epsilon"])
            case "Softmax":
                return functional.softmax(x, options.get("axis", -1))
            case "ReduceMean":
                axes = options["axes"] if "axes" in options else known[1].tolist()
                return torch.mean(x, axes, keepdim=bool(options.get("keepdims", 1)))
            case "Transpose":
                return x.permute(options["perm"])
            case "Reshape":
                return x.reshape([x.shape[at] if size == 0 else size for at, size in enumerate(known[1].tolist())])
            case "Split":
                return torch.split(x, known[1].tolist(), options.get("axis", 0))
            case "Gather":
                return functional.embedding(rest[0], x)
            case "Where":
                return torch.where(x, *rest)
        raise ValueError(f"node {node.name!r} is {kind}, which this reader of ONNX files lacks")


def _attribute(name: str) -> str:
    return "constant_" + "".join(c if c.isalnum() else "_" for c in name)


def of_torch(
    file: Path, batches: list[np.ndarray], dynamic: bool = False, attention: bool = False
) -> Callable[[np.ndarray], np.ndarray]:
    """uint8 activations, per-channel int8 weights, with the default settings of the quantizer.

    The defaults leave products of two computed values in floats; `attention` quantizes these products, too.
    """
    example = (torch.from_numpy(batches[0]),)
    sizes = ({0: torch.export.Dim("batch", min=2)},)
    network = torch.fx.symbolic_trace(Network(file).eval())
    module = torch.export.export(network, example, dynamic_shapes=sizes, strict=True).module()
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_dynamic=dynamic))
    if attention:
        quantizer.set_function_type_qconfig(torch.matmul, quantizer.get_global_quantization_config())
    with torch.no_grad():
        prepared = prepare_pt2e(module, quantizer)
        for batch in batches:
            prepared(torch.from_numpy(batch))
        converted = convert_pt2e(prepared)

    def call(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return converted(torch.from_numpy(x)).numpy()

    return call
