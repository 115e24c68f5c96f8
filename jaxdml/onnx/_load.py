"""Loads a model: reads it, converts it to a graph, folds constants, fuses operators and prepares weights."""

from typing import Any

import jax

from jaxdml._graph import fuse
from jaxdml._graph.evaluate import folded, unknown_shapes
from jaxdml._graph.floats import DEFAULT, Floats, wrong_floats
from jaxdml._graph.graph import without_dead
from jaxdml._graph.places import with_float64
from jaxdml._graph.signedness import of_one_signedness
from jaxdml._graph.weights import with_weights
from jaxdml._quantized.kinds import DIRECTML, ONNXRUNTIME, QUANTIZED
from jaxdml.errors import ArgumentTypeError, DescError, ModelError, api_boundary
from jaxdml.onnx import _operators  # noqa: F401 # adds the operators to the table
from jaxdml.onnx._convert.graphs import to_graph
from jaxdml.onnx._file import Reader
from jaxdml.onnx._limits import Budget, Limits, limited_by
from jaxdml.onnx._model import Model
from jaxdml.onnx._tensors import outputs, tensors

MOST_LISTED = 100


@api_boundary
def load(model: Any, *, numerics: str = DIRECTML, floats: Floats = DEFAULT, limits: Limits = Limits()) -> Model:  # noqa: B008 # it is frozen
    """Reads a quantized ONNX model as a JAX function.

    Quantized operators run on integers. Operators between DequantizeLinear and QuantizeLinear also run on integers if
    the fusing rules apply to them. All other operators run in floats.

    Args:
      model: a path, the bytes of a file, or an onnx.ModelProto.
      numerics: "directml": operators that exist in DirectML follow its formulas, and all other operators follow ONNX
        Runtime; "onnxruntime": all operators follow ONNX Runtime on x64. Only the results of QLinearAdd,
        QLinearAveragePool and QLinearGlobalAveragePool depend on this choice.
      floats: "exact", the default: floats between quantized operators have the same bits everywhere, by the rules of
        `jaxdml.exact`. Products that stay in floats have no rule: XLA computes them, and `print(model)` names them.
        "xla": XLA computes floats, and their bits depend on the processor and the program.
      limits: limits on the size and the loading time of the model.

    Returns:
      The model; its `apply` is a pure function of its `params` and inputs.

    Raises:
      DescError: if an argument is wrong; its subclass ArgumentTypeError if the argument's type is wrong.
      ModelError: if the model cannot be read or run. The error's attribute `problems` lists every problem, its text the
        first 100.

    Source: https://onnx.ai/onnx/operators and
    https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
    """
    if numerics not in (DIRECTML, ONNXRUNTIME):
        raise DescError(f"numerics is {numerics!r}, expected {DIRECTML!r} or {ONNXRUNTIME!r}")
    if wrong := wrong_floats(floats):
        raise DescError(wrong)
    if not isinstance(limits, Limits):
        raise ArgumentTypeError(f"limits is of type {type(limits).__name__}, expected jaxdml.onnx.Limits")
    budget = Budget(limits)
    reader = Reader(model, budget)
    with limited_by(limits):
        graph, inferred, problems = to_graph(reader, numerics)
        budget.count_computing()
        if not problems:
            graph = of_one_signedness(without_dead(folded(graph, check_result=budget.check_result)))
            graph = without_dead(fuse.fused(graph, QUANTIZED[numerics], check_result=budget.check_result))
            graph = with_float64(graph, {name: dtype for name, (dtype, _) in inferred.items()})
            problems = unknown_shapes(graph)
    if problems:
        raise ModelError(_listed(problems), tuple(problems))
    proto = reader.proto.graph
    initializers = {tensor.name for tensor in proto.initializer}
    inputs = tensors(value for value in proto.input if value.name not in initializers)
    budget.check_time()
    graph, params = with_weights(graph, budget.check_time)
    return Model(graph, params, inputs, outputs(proto.output, inferred), limits, floats)


@api_boundary
def check(model: Any, *, numerics: str = DIRECTML, limits: Limits = Limits()) -> list[str]:  # noqa: B008
    """Lists every problem that keeps a model from being loaded or run, in one sentence each.

    Constants are folded. If the model declares all input sizes, the remaining nodes are traced but not run.

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
            inputs = (jax.ShapeDtypeStruct(tensor.shape, tensor.computed_dtype) for tensor in loaded.inputs)
            jax.eval_shape(loaded.apply, loaded.params, *inputs)
    except ModelError as error:
        return list(error.problems)
    return []


def _is_size(size: Any) -> bool:
    return isinstance(size, int)


def _listed(problems: list[str]) -> str:
    """The text of the error: one line for each of the first MOST_LISTED problems."""
    count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = [f"the model has {count}:", *(f"- {text}" for text in problems[:MOST_LISTED])]
    if len(problems) > MOST_LISTED:
        lines.append(f"- and {len(problems) - MOST_LISTED} more, which jaxdml.onnx.check(model) lists")
    return "\n".join(lines)
