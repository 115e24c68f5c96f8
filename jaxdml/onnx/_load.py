"""From a model to a graph: read, checked as a whole, folded, fused; its weights repacked."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import onnx

from jaxdml._graph import fuse
from jaxdml._graph.evaluate import folded, unknown_shapes
from jaxdml._graph.graph import Graph, without_dead
from jaxdml._graph.weights import with_weights
from jaxdml._quantized.kinds import DIRECTML, ONNXRUNTIME, QUANTIZED
from jaxdml.errors import ModelError, api_boundary
from jaxdml.onnx import _operators  # noqa: F401 # fills the table
from jaxdml.onnx._arrays import limited
from jaxdml.onnx._file import Limits, Reader
from jaxdml.onnx._infer import known_types
from jaxdml.onnx._limit import Limit
from jaxdml.onnx._model import Model
from jaxdml.onnx._nodes import Nodes, domain_of
from jaxdml.onnx._tensors import tensors

MOST_LISTED = 100
NOTHING = "no input, initializer or node makes"
BEHIND = "the node itself or one behind it makes: nodes are to be sorted, and have no cycle"


@api_boundary
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
    limit = Limit(reader)
    if graph is not None:
        with limited(limits.tensor_bytes):
            graph = without_dead(folded(graph, limit=limit))
            graph = without_dead(fuse.fused(graph, QUANTIZED[numerics], limit=limit))
        problems = unknown_shapes(graph)
    if graph is None or problems:
        raise ModelError(_listed(problems), tuple(problems))
    proto = reader.proto.graph
    constants = {tensor.name for tensor in proto.initializer}
    inputs = tensors(value for value in proto.input if value.name not in constants)
    reader.check_time()
    graph, params = with_weights(graph, reader.check_time)
    return Model(graph, params, inputs, tensors(proto.output), limits)


@api_boundary
def check(model: Any, *, numerics: str = DIRECTML, limits: Limits = Limits()) -> list[str]:  # noqa: B008
    """Every problem that keeps a model from being loaded or run, a sentence each.

    What constants give is computed; the rest is traced where the model says the size of each input, and not run.

    Args:
      model: a path, the bytes of a file, or an onnx.ModelProto.
      numerics: as for `load`.
      limits: as for `load`.

    Returns:
      The problems; an empty list if there are none.
    """
    try:
        loaded = load(model, numerics=numerics, limits=limits)
        if all(tensor.shape is not None and all(map(_is_size, tensor.shape)) for tensor in loaded.inputs):
            inputs = (
                jax.ShapeDtypeStruct(tensor.shape, jax.dtypes.canonicalize_dtype(tensor.dtype))
                for tensor in loaded.inputs
            )
            jax.eval_shape(loaded.apply, loaded.params, *inputs)
    except ModelError as error:
        return list(error.problems)
    return []


def _is_size(size: Any) -> bool:
    return isinstance(size, int)


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
    constants, wrong = _constants(reader)
    problems += wrong
    problems += [text for value in (*proto.input, *proto.output) if (text := _problem_of(value))]
    if not proto.output:
        problems.append("the model has no outputs")
    problems += _twice("input", proto.input) + _twice("output", proto.output)
    made = {tensor.name for tensor in proto.initializer} | {value.name for value in proto.input}
    later = {value for node in proto.node for value in node.output}
    nodes, of = [], Nodes(reader, numerics, known_types(reader.proto))
    wrong_opsets = of.wrong_opsets(proto.node)
    problems += wrong_opsets.values()
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
            if domain_of(each) not in wrong_opsets:
                nodes.append(of.node(each, name))
        except ModelError as error:
            problems.append(str(error))
    problems += [f"output {value.name!r} is made by no node" for value in proto.output if value.name not in made]
    if problems:
        return None, problems
    inputs = tuple(value.name for value in proto.input if value.name not in constants)
    return Graph(tuple(nodes), inputs, tuple(value.name for value in proto.output), constants), []


def _constants(reader: Reader) -> tuple[dict[str, np.ndarray], list[str]]:
    """The arrays of the model by name, and the problems with them."""
    constants, problems, elsewhere = dict[str, np.ndarray](), list[str](), list[str]()
    names = Counter(tensor.name for tensor in reader.proto.graph.initializer)
    problems += [f"tensor {name!r} is given twice" for name, count in names.items() if count > 1]
    for tensor in reader.proto.graph.initializer:
        if reader.is_out_of_reach(tensor):
            elsewhere.append(tensor.name)
            continue
        try:
            constants[tensor.name] = reader.array(tensor)
        except ModelError as error:
            problems.append(str(error))
    if elsewhere:
        rest = f" and {len(elsewhere) - 1} more lie in other files" if elsewhere[1:] else " lies in another file"
        problems.append(f"tensor {elsewhere[0]!r}{rest}; load the model from its path")
    return constants, problems


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
