"""Models that onnxruntime's quantizer writes, onnxruntime's outputs of models, and the nodes that it runs.

In onnxruntime, sums of int8 weights saturate on x64 processors without VNNI. Comparisons with it use uint8 weights,
which are the default, or reduce_range. The form "qoperator" per channel needs reduce_range, because the weights of its
convolutions are always int8. With quantprecision, onnxruntime rejects models of that form that have int8 activations
and no reduce_range.
"""

import collections
import functools
import logging
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnxruntime import GraphOptimizationLevel as Level
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

FORMS = ("qoperator", "qdq", "dynamic")
_FORMATS = {"qoperator": QuantFormat.QOperator, "qdq": QuantFormat.QDQ}
_TYPES = {"uint8": QuantType.QUInt8, "int8": QuantType.QInt8}


def quantized(model, form, *, per_channel=False, activation="uint8", weight="uint8", reduce_range=False):
    """A float model as onnxruntime quantizes it; calibrated on the seeds 1 to 8 of `random_inputs`.

    Activations of int8 need weights of int8, and are uint8 in the form "dynamic".
    """
    assert (activation, weight) != ("int8", "uint8")
    assert form != "dynamic" or activation == "uint8"
    options = {"per_channel": per_channel, "reduce_range": reduce_range, "weight_type": _TYPES[weight]}
    if form != "dynamic":
        options |= {"quant_format": _FORMATS[form], "activation_type": _TYPES[activation]}
    return onnx.load_from_string(_quantized(model.SerializeToString(deterministic=True), **options))


@functools.cache
def _quantized(model, **options):
    """From bytes to bytes, so that no test can change another test's model."""
    model = onnx.load_from_string(model)
    with tempfile.TemporaryDirectory() as folder, _silence():
        path = Path(folder) / "quantized.onnx"
        if "quant_format" in options:
            quantize_static(model, path, _Random(model), **options)
        else:
            quantize_dynamic(model, path, **options)
        return path.read_bytes()


class _Random(CalibrationDataReader):
    def __init__(self, model):
        self.batches = (random_inputs(model, 8, seed) for seed in range(1, 9))

    def get_next(self):
        return next(self.batches, None)


@contextmanager
def _silence():
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)


def random_inputs(model, batch, seed=0):
    """Normal float32 by input name; elements that share their first two indices share a normal offset, too.

    Without the offset, a mean over an image would be the same for all images.
    """
    random = np.random.default_rng([seed, 1])  # other numbers than those of the weights
    inputs = {}
    for value in model.graph.input:
        shape = [batch if size.dim_param == "N" else size.dim_value for size in value.type.tensor_type.shape.dim]
        offset = random.normal(size=shape[:2] + [1] * len(shape[2:]))
        inputs[value.name] = (random.normal(size=shape) + offset).astype(np.float32)
    return inputs


def onnxruntime_outputs(model, inputs, *, optimized, quantprecision=False):
    """onnxruntime's outputs on the CPU, by name; `quantprecision` keeps int8 sums from saturating."""
    options = _options(Level.ORT_ENABLE_ALL if optimized else Level.ORT_DISABLE_ALL)
    options.add_session_config_entry("session.x64quantprecision", str(int(quantprecision)))
    session = _session(model, options)
    return dict(zip((output.name for output in session.get_outputs()), session.run(None, inputs), strict=True))


def node_types(model):
    """How many nodes a model has of each domain and type."""
    return collections.Counter((node.domain.replace("ai.onnx", ""), node.op_type) for node in model.graph.node)


def optimized_node_types(model, level=Level.ORT_ENABLE_EXTENDED):
    """The node types of a model that onnxruntime has optimized.

    ORT_ENABLE_EXTENDED includes all fusions; ORT_ENABLE_ALL also reorders channels, for which it adds and renames
    nodes, depending on the processor.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = _options(level)
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        _session(model, options)
        return node_types(onnx.load(options.optimized_model_filepath))


def _options(level):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3  # it warns that files are for this processor alone
    return options


def _session(model, options):
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
