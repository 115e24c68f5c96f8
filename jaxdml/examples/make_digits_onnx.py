"""Quantizes the float digits network with onnxruntime, and stores the quantized network and its logits.

`python -m jaxdml.examples.make_digits_onnx` needs onnx and onnxruntime, and writes two files next to this one:

- digits.onnx: float operators between QuantizeLinear and DequantizeLinear, with uint8 activations and per-channel int8
  weights, calibrated on the first `CALIBRATION` images.
- digits_onnx.npz: the arrays `logits`, float32 [N, 10], and `onnxruntime`, the version that computed the logits.

Weights have 7 bits (reduce_range), so that onnxruntime's sums are exact on every processor. Scales may differ in their
last bits between kinds of processors.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdml.examples import digits

OPSET, IR_VERSION = 17, 8
CALIBRATION = 120
NODES = {digits.CONVOLUTION: "Conv", digits.ADD: "Add", digits.MATRIX_MULTIPLY: "MatMul"}


def main(argv: Sequence[str] | None = None) -> None:
    """Writes both files and prints the accuracy."""
    import onnxruntime

    parser = argparse.ArgumentParser(prog="python -m jaxdml.examples.make_digits_onnx", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent, help="default: this package")
    folder = parser.parse_args(argv).folder
    held_out = digits.load()
    images, labels = np.asarray(held_out.images), np.asarray(held_out.labels)
    model = float_model({name: np.asarray(value) for name, value in held_out.float_parameters.items()})
    quantize(model, images[:CALIBRATION], folder / "digits.onnx")
    float_logits = run(model.SerializeToString(), images)
    logits = run((folder / "digits.onnx").read_bytes(), images)
    version = np.array(onnxruntime.__version__)
    np.savez_compressed(folder / "digits_onnx.npz", allow_pickle=False, logits=logits, onnxruntime=version)
    for kind, values in (("float", float_logits), ("quantized", logits)):
        print(f"{kind} accuracy: {100 * np.mean(values.argmax(1) == labels):.2f} % of {len(labels)} images")
    print(f"digits.onnx: {(folder / 'digits.onnx').stat().st_size:,} bytes, onnxruntime {version}")


def float_model(parameters: Mapping[str, np.ndarray]) -> Any:
    """The network of `digits.float_network` as an onnx.ModelProto: images [N, 1, 8, 8] to logits [N, 10]."""
    from onnx import TensorProto, helper, numpy_helper

    nodes = [node for layer in digits.NETWORK for node in _nodes(layer)]
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["N", 1, 8, 8])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 10])
    initializers = [numpy_helper.from_array(parameters[name], name) for name in sorted(parameters)]
    graph = helper.make_graph(nodes, "digits", [images], [logits], initializers)
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="jaxdml")


def _nodes(layer: digits.Layer) -> list[Any]:
    """The nodes of a layer; none for QUANTIZE and DEQUANTIZE, which are the identity in float."""
    from onnx import helper

    if layer.operator not in NODES:
        return []
    # The first and last layers are omitted: the layers next to them read the graph's input and write its output.
    inputs = [{"image": "images"}.get(name, name) for name in layer.inputs]
    output = {"head": "logits"}.get(layer.name, layer.name)
    nodes: list[Any] = []
    attributes: dict[str, Any] = {}
    if layer.operator == digits.CONVOLUTION:
        inputs += [f"{layer.name}.filter", f"{layer.name}.bias"]
        start, end = layer.padding
        pads, strides = [start, start, end, end], [layer.stride, layer.stride]
        attributes = {"kernel_shape": layer.weights[2:], "strides": strides, "pads": pads, "group": layer.group_count}
    elif layer.operator == digits.MATRIX_MULTIPLY:
        nodes.append(helper.make_node("Flatten", inputs, [f"{layer.name}.flat"], f"{layer.name}.flatten"))
        inputs = [f"{layer.name}.flat", f"{layer.name}.b"]
    result = f"{output}.before_relu" if layer.relu else output
    nodes.append(helper.make_node(NODES[layer.operator], inputs, [result], layer.name, **attributes))
    if layer.relu:
        nodes.append(helper.make_node("Relu", [result], [output], f"{layer.name}.relu"))
    return nodes


def quantize(model: Any, images: np.ndarray, path: Path) -> None:
    """Quantizes the model with onnxruntime, calibrated on the images, and writes the quantized model."""
    from onnxruntime.quantization import QuantFormat, QuantType, quant_pre_process, quantize_static

    quant_pre_process(model, path, skip_optimization=True, skip_symbolic_shape=True)
    quantize_static(
        path,
        path,
        _OneBatch(images),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        reduce_range=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )


class _OneBatch:
    """A CalibrationDataReader: an object with get_next."""

    def __init__(self, images: np.ndarray) -> None:
        self._batches = iter([{"images": images}])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._batches, None)


def run(model: bytes, images: np.ndarray) -> np.ndarray:
    """The logits that onnxruntime computes on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(["logits"], {"images": images})[0]


if __name__ == "__main__":
    main()
