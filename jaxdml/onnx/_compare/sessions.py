"""Runs onnxruntime."""

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from jaxdml.errors import ModelError

FILTER, FILTER_ZERO_POINT = 3, 5  # positions of QLinearConv's inputs
QUIET = 4  # the log level at which onnxruntime is silent


@dataclass(frozen=True)
class Settings:
    """How onnxruntime runs a file.

    Attributes:
      options: options of `SessionOptions.add_session_config_entry`.
      level: the level of optimization, one of `GraphOptimizationLevel` without "ORT_".
      threads: the number of threads that compute a node; 0 means that onnxruntime chooses.
      has_unsigned_filters: whether int8 filters with channels last become uint8 filters of the same values, which do
        not saturate. The option `session.x64quantprecision` has this effect on all other int8 weights.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    level: str = "ENABLE_ALL"
    threads: int = 0
    has_unsigned_filters: bool = False


DEFAULT = Settings()
JOINED = Settings(level="ENABLE_EXTENDED")  # fuses all nodes that the default fuses, but keeps the channels' layout


class Peer:
    """A file that onnxruntime runs on the CPU.

    Attributes:
      version: onnxruntime's version.
      inputs, outputs: the names of the file's inputs and outputs.
      computed: the names of all values that nodes of the file compute.
    """

    def __init__(self, path: Path) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise ModelError("compare needs the package onnxruntime: pip install onnxruntime") from error
        self._onnxruntime, self.version = onnxruntime, onnxruntime.__version__
        try:
            self._proto = onnx.load(str(path), load_external_data=False)
        except DecodeError as error:
            raise ModelError(f"the model is not an ONNX file, or is truncated: {error}") from error
        self._folder, graph = str(path.parent.absolute()), self._proto.graph
        constants = {tensor.name for tensor in graph.initializer}
        self.inputs = [value.name for value in graph.input if value.name not in constants]
        self.outputs = [value.name for value in graph.output]
        self.computed = {name for node in graph.node for name in node.output if name}

    def run(
        self, inputs: Mapping[str, Any], names: Iterable[str], settings: Settings = DEFAULT
    ) -> dict[str, np.ndarray]:  # fmt: skip
        """Computes values of the file.

        Args:
          inputs: the inputs, keyed by name.
          names: names of outputs, or of values inside the file, which become outputs.
          settings: the settings of the session.

        Raises:
          ModelError: if onnxruntime rejects the file or the inputs.
        """
        names = list(names)
        try:
            session = self._session(names, settings)
            values = session.run(names, {name: np.asarray(value) for name, value in inputs.items()})
        except Exception as error:  # onnxruntime's exceptions have no common class
            raise ModelError(f"onnxruntime does not run the model: {error}") from error
        return dict(zip(names, values, strict=True))

    def operators(self, names: Iterable[str]) -> dict[str, str]:
        """Maps values to the operators with which onnxruntime computes them after its optimizations.

        Values inside fused operators are missing; all are missing if onnxruntime cannot write the optimized graph.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "optimized.onnx"
            try:
                self._session(names, JOINED, path)
            except Exception:  # onnxruntime cannot write every graph that it computes
                return {}
            nodes = onnx.load(str(path), load_external_data=False).graph.node
            return {name: node.op_type for node in nodes for name in node.output}

    def _session(self, names: Iterable[str], settings: Settings, optimized: Path | None = None) -> Any:
        proto = onnx.ModelProto()
        proto.CopyFrom(self._proto)
        if settings.has_unsigned_filters:
            _make_filters_unsigned(proto.graph)
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in self.outputs)
        options = self._onnxruntime.SessionOptions()
        options.log_severity_level = QUIET
        options.intra_op_num_threads = settings.threads
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", self._folder)
        for key, value in settings.options.items():
            options.add_session_config_entry(key, value)
        levels = self._onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = getattr(levels, f"ORT_{settings.level}")
        if optimized is not None:
            options.optimized_model_filepath = str(optimized)
        return self._onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )


def _make_filters_unsigned(graph: onnx.GraphProto) -> None:
    """Gives com.microsoft's QLinearConv uint8 filters in place of int8 ones, if the file itself contains them."""
    tensors = {
        each.name: each for each in graph.initializer
        if each.data_type == onnx.TensorProto.INT8 and each.data_location != onnx.TensorProto.EXTERNAL
    }  # fmt: skip
    added = set[str]()
    for node in graph.node:
        names = [node.input[place] for place in (FILTER, FILTER_ZERO_POINT) if place < len(node.input)]
        if (node.domain, node.op_type) != ("com.microsoft", "QLinearConv") or not tensors.keys() >= set(names):
            continue
        for place in (FILTER, FILTER_ZERO_POINT):
            name = node.input[place]
            node.input[place] = unsigned = f"{name}:unsigned"
            if unsigned not in added:
                added.add(unsigned)
                values = numpy_helper.to_array(tensors[name]).view(np.uint8) ^ np.uint8(128)
                graph.initializer.append(numpy_helper.from_array(values, unsigned))
