"""The subjects of comparisons: a loaded model, or a quantized function whose file onnxruntime runs."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax

from jaxdml import ptq
from jaxdml._graph.evaluate import evaluate, evaluated_alone
from jaxdml._graph.floats import with_floats
from jaxdml._graph.graph import Node
from jaxdml._quantized.kinds import ONNXRUNTIME
from jaxdml.errors import ModelError
from jaxdml.onnx._load import load
from jaxdml.onnx._model import Model
from jaxdml.ptq._integers.operators import INTEGERS

Values = Mapping[str, Any]
OWN_FILE = "give the file that save wrote for this model"


@dataclass(frozen=True)
class Subject:
    """A model to compare with onnxruntime, and its results on some inputs. Values are named as in the file.

    Attributes:
      nodes: the nodes, in the order in which they run.
      outputs: the outputs.
      values: the results of the nodes, each computed from the results of earlier nodes.
      alone: maps given values to the results that each node computes from them.
      by_onnxruntime: like `alone`, with the formulas of numerics="onnxruntime".
    """

    nodes: Sequence[Node]
    outputs: Values
    values: Values
    alone: Callable[[Values], Values]
    by_onnxruntime: Callable[[Values], Values]


def of_model(model: Model, path: Any, inputs: Values, in_file: Container[str]) -> Subject:
    """A model that was loaded from the file, with the values whose names are in `in_file`."""
    names = [name for name in model.value_names if name in in_file]

    def by_onnxruntime(given: Values) -> Values:
        other = load(path, numerics=ONNXRUNTIME, floats=model.floats, limits=model.limits)
        return other.values_alone(other.params, given, **inputs)

    return Subject(
        model.nodes, model.apply(model.params, **inputs), model.values(model.params, names, **inputs),
        lambda given: model.values_alone(model.params, given, **inputs), by_onnxruntime,
    )  # fmt: skip


def of_function(model: ptq.Model, file: Model, inputs: Values) -> Subject:
    """A quantized function that `save` wrote to the file; integers have the same names in both.

    Raises:
      ModelError: if the file has a different number of inputs or outputs, or outputs of other shapes or types, or the
        function's input sizes are not known.
    """
    if model.calibrated is None:
        raise ModelError("the sizes of this model's inputs are not known: quantize the function again")
    leaves, structure = list(inputs.values()), jax.tree.structure(model.calibrated)
    count = len(jax.tree.leaves(model.calibrated))
    outputs = [output.name for output in file.outputs]
    if count != len(leaves):
        raise ModelError(f"the file has {len(leaves)} inputs, the function {count}: {OWN_FILE}")
    arguments = jax.tree.unflatten(structure, leaves)
    results = jax.tree.leaves(model.apply(model.params, *arguments))
    if len(results) != len(outputs):
        raise ModelError(f"the file has {len(outputs)} outputs, the function {len(results)}: {OWN_FILE}")
    sizes = dict[str, Any]()
    for tensor, array in zip((*file.inputs, *file.outputs), (*leaves, *results), strict=True):
        if tensor.mismatch(array, sizes):
            computed = f"{array.dtype}{list(array.shape)}"
            raise ModelError(f"the file has the output {tensor}, the function computes {computed}: {OWN_FILE}")
    flat = model.flat(*arguments)
    made = {name for node in flat.nodes for name in node.outputs}
    in_file = {name: given for name, given in zip(flat.outputs, outputs, strict=True) if name in made}

    def named(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(in_file.get(name, name) for name in names)

    nodes = [node.replace(inputs=named(node.inputs), outputs=named(node.outputs)) for node in flat.nodes]

    def alone(nodes: Sequence[Node]) -> Callable[[Values], Values]:
        @jax.jit
        @partial(with_floats, floats=model.floats)
        def run(leaves: list[Any], others: dict[str, Any]) -> dict[str, Any]:
            given = {**flat.constants, **dict(zip(flat.inputs, leaves, strict=True))}
            return evaluated_alone(nodes, given, others, [name for node in nodes for name in node.outputs])

        return lambda others: run(leaves, dict(others))

    @jax.jit
    @partial(with_floats, floats=model.floats)
    def values(leaves: list[Any]) -> dict[str, Any]:
        found = evaluate(nodes, {**flat.constants, **dict(zip(flat.inputs, leaves, strict=True))})
        return {name: found[name] for node in nodes for name in node.outputs if name}

    return Subject(
        nodes, dict(zip(outputs, results, strict=True)), values(leaves), alone(nodes),
        lambda given: alone([_by_onnxruntime(node) for node in nodes])(given),
    )  # fmt: skip


def _by_onnxruntime(node: Node) -> Node:
    """The node with onnxruntime's formula; a quantized node's operator keeps its name, which is the node's kind."""
    kind = node.operator.name
    other = INTEGERS[ONNXRUNTIME].get(kind) if node.operator.is_quantized else None
    return node if other is None else node.replace(operator=replace(other, name=kind))
