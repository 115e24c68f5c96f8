"""From a model to a graph: read, checked as a whole, folded, fused; its weights repacked."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx

from jaxdml._graph import fuse
from jaxdml._graph.evaluate import described, folded
from jaxdml._graph.graph import Graph, Node, without_dead
from jaxdml._graph.numerics import DIRECTML, ONNXRUNTIME, QUANTIZED
from jaxdml._graph.weights import with_weights
from jaxdml.errors import ModelError
from jaxdml.onnx import _operators  # noqa: F401 # fills the table
from jaxdml.onnx._file import Limits, Reader
from jaxdml.onnx._infer import known_types
from jaxdml.onnx._model import Model
from jaxdml.onnx._nodes import Nodes
from jaxdml.onnx._tensors import tensors

MOST_LISTED = 100
NOTHING = "no input, initializer or node makes"
BEHIND = "the node itself or one behind it makes: nodes are to be sorted, and have no cycle"


def load(model: Any, *, numerics: str = DIRECTML, limits: Limits = Limits()) -> Model:  # noqa: B008 # it is frozen
    """Reads a quantized ONNX model as a JAX function.

    Quantized operators, and pairs of QuantizeLinear and DequantizeLinear around operators, become operators on
    integers; the rest is computed in floats.

    Args:
      model: a path, the bytes of a file, or an onnx.ModelProto.
      numerics: "directml": operators that DirectML has compute by DirectML's formulas, the others by ONNX Runtime's;
        "onnxruntime": all compute by those of ONNX Runtime on x64. The two differ in QLinearAdd,
        QLinearAveragePool and QLinearGlobalAveragePool.
      limits: what the model may take.

    Returns:
      The model; its `apply` is a pure function of its `params` and inputs.

    Raises:
      ModelError: if the model cannot be read or run; the error lists every problem at once.

    Source: https://onnx.ai/onnx/operators and
    https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
    """
    reader = _reader(model, numerics, limits)
    graph, problems = _graph(reader, numerics)
    if graph is None:
        raise ModelError(_listed(problems), tuple(problems))
    limit = Limit(reader)
    graph = without_dead(folded(graph, limit=limit))
    graph = without_dead(fuse.fused(graph, QUANTIZED[numerics], limit=limit))
    proto = reader.proto.graph
    constants = {tensor.name for tensor in proto.initializer}
    inputs = tensors(value for value in proto.input if value.name not in constants)
    reader.check_time()
    graph, params = with_weights(graph, reader.check_time)
    return Model(graph, params, inputs, tensors(proto.output), limit.check_size)


def check(model: Any, *, numerics: str = DIRECTML, limits: Limits = Limits()) -> list[str]:  # noqa: B008
    """Every problem that keeps a model from being loaded, a sentence each; nothing is run.

    Args:
      model: a path, the bytes of a file, or an onnx.ModelProto.
      numerics: as for `load`.
      limits: as for `load`.

    Returns:
      The problems; an empty list if there are none.
    """
    try:
        return _graph(_reader(model, numerics, limits), numerics)[1]
    except ModelError as error:
        return list(error.problems)


class Limit:
    """Refuses results that are larger than the limit of the reader, and work that takes longer."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._arrays: dict[int, np.ndarray] = {}  # by id, those that own memory
        self._total = 0

    def __call__(self, node: Node, value: Any) -> None:
        """Raises ModelError where a node's result is beyond the limits."""
        self._reader.check_time()
        self.check_size(node, value)
        while isinstance(value, np.ndarray) and isinstance(value.base, np.ndarray):
            value = value.base
        if isinstance(value, np.ndarray) and id(value) not in self._arrays:
            self._arrays[id(value)] = value
            self._total += value.nbytes
        if self._total > self._reader.limits.file_bytes:
            text = f"{self._total} bytes are computed from constants, {self._reader.limits.exceeded('file_bytes')}"
            raise ModelError(f"{described(node)}: {text}")

    def check_size(self, node: Node, value: Any) -> None:
        """Raises ModelError where a node's result has too many bytes."""
        sizes = [size for size in np.shape(value) if isinstance(size, int)]
        size = np.prod(sizes, dtype=object) * np.dtype(value.dtype).itemsize
        if size > self._reader.limits.tensor_bytes:
            text = f"its result has {size} bytes, {self._reader.limits.exceeded('tensor_bytes')}"
            raise ModelError(f"{described(node)}: {text}")


def _reader(model: Any, numerics: str, limits: Limits) -> Reader:
    if numerics not in (DIRECTML, ONNXRUNTIME):
        raise ValueError(f"numerics is {numerics!r}, expected {DIRECTML!r} or {ONNXRUNTIME!r}")
    if not isinstance(limits, Limits):
        raise TypeError(f"limits is of type {type(limits).__name__}, expected jaxdml.onnx.Limits")
    return Reader(model, limits)


def _listed(problems: list[str]) -> str:
    """The problems as lines of one text; if there are very many, the first of them."""
    count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = [f"the model has {count}:", *(f"- {text}" for text in problems[:MOST_LISTED])]
    if len(problems) > MOST_LISTED:
        lines.append(f"- and {len(problems) - MOST_LISTED} more, which jaxdml.onnx.check(model) lists")
    return "\n".join(lines)


def _graph(reader: Reader, numerics: str) -> tuple[Graph | None, list[str]]:
    """The graph as the model has it; None, and every problem, where there are some."""
    proto, problems = reader.proto.graph, []
    if proto.sparse_initializer:
        problems.append("the model has sparse initializers, which are not supported")
    constants: dict[str, np.ndarray] = {}
    for tensor in proto.initializer:
        if tensor.name in constants:
            problems.append(f"tensor {tensor.name!r} is given twice")
        try:
            constants[tensor.name] = reader.array(tensor)
        except ModelError as error:
            problems.append(str(error))
    problems += [text for value in (*proto.input, *proto.output) if (text := _problem_of(value))]
    if not proto.output:
        problems.append("the model has no outputs")
    problems += _twice("input", proto.input) + _twice("output", proto.output)
    made = {tensor.name for tensor in proto.initializer} | {value.name for value in proto.input}
    later = {value for node in proto.node for value in node.output}
    nodes, of = [], Nodes(reader, numerics, known_types(reader.proto))
    for place, each in enumerate(proto.node):
        reader.check_time()
        name = each.name or each.op_type.lower() + f"_{place}"
        problems += [
            f"node {name!r} reads {value!r}, which {BEHIND if value in later else NOTHING}"
            for value in dict.fromkeys(each.input)
            if value and value not in made
        ]
        for value in filter(None, each.output):
            if value in made:
                problems.append(f"node {name!r} makes {value!r}, which is made already")
            made.add(value)
        try:
            nodes.append(of.node(each, name))
        except ModelError as error:
            problems.append(str(error))
    problems += [f"output {value.name!r} is made by no node" for value in proto.output if value.name not in made]
    if problems:
        return None, problems
    inputs = tuple(value.name for value in proto.input if value.name not in constants)
    return Graph(tuple(nodes), inputs, tuple(value.name for value in proto.output), constants), []


def _twice(kind: str, values: Iterable[onnx.ValueInfoProto]) -> list[str]:
    """A sentence for each name that several inputs or outputs have."""
    counts = Counter(value.name for value in values)
    return [f"{kind} {name!r} is declared {count} times" for name, count in counts.items() if count > 1]


def _problem_of(value: onnx.ValueInfoProto) -> str | None:
    """What is wrong with the declaration of an input or output."""
    try:
        tensors([value])
    except ModelError as error:
        return str(error)
    return None
