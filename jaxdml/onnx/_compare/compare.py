"""Compares a model with onnxruntime, node by node."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxdml import ptq
from jaxdml.errors import ArgumentTypeError, ModelError, api_boundary
from jaxdml.onnx._compare.differences import Difference
from jaxdml.onnx._compare.inputs import named
from jaxdml.onnx._compare.reasons import Differences, experiments, output_reasons, own_reasons
from jaxdml.onnx._compare.report import Comparison, NodeDifference
from jaxdml.onnx._compare.sessions import DEFAULT, Peer, Settings
from jaxdml.onnx._compare.subjects import Subject, Values, of_function, of_model
from jaxdml.onnx._load import load
from jaxdml.onnx._model import Model

UNREADABLE = frozenset({"bfloat16", "int4", "uint4"})  # types that onnxruntime does not return as arrays
NUDGED = frozenset(map(np.dtype, ("float16", "float32", "float64")))  # types of inputs that have a next float
MOST = 2  # a node's own error is most of its error if it is more than the latter over this number
EQUAL = "equal"
ABSENT = "the file has no such value: rows that read it include its error"
UNREAD = "onnxruntime gives this value in another type, or not at all: rows that read it include its error"
XLA = "XLA's floats differ between two programs compiled from the model; floats='exact' gives one answer"
AS_OUTPUTS = "to read the nodes' values, onnxruntime runs a copy of the file with additional outputs"


@api_boundary
def compare(path: str | os.PathLike[str], inputs: Any = None, model: Model | ptq.Model | None = None) -> Comparison:
    """Compares a model with onnxruntime, and says how each node differs and why.

    Each node is compared twice: with onnxruntime's values as its inputs, which shows the node's own error, and with the
    inputs that it has in the model, which shows the error so far. Experiments, such as a run with other session
    options, find the reasons. onnxruntime runs on the CPU with its default options.

    Args:
      path: path of the ONNX file.
      inputs: a dict of arrays, keyed by the names of the file's inputs; or a tuple of arrays, or of pytrees of arrays,
        in the order of the file's inputs; or a single array. None: random inputs.
      model: the model to compare: one that `load` returned for the file, or the model of `jaxdml.ptq` that `save` wrote
        to the file, which is compared layer by layer. None: the model that `load` returns by default.

    Returns:
      The comparison; `print` shows it as a table.

    Raises:
      ArgumentTypeError: if an argument has the wrong type.
      ModelError: if the package onnxruntime is not installed, onnxruntime rejects the file, the file cannot be read, or
        the inputs or the model do not belong to the file.
      PtqError: if the function of a `jaxdml.ptq` model has changed, or has different layers for these sizes.

    Source: https://onnxruntime.ai/docs
    """
    if not isinstance(path, str | os.PathLike):
        raise ArgumentTypeError(f"path is of type {type(path).__name__}, expected the path of an ONNX file")
    if not isinstance(model, Model | ptq.Model | None):
        text = "expected what jaxdml.onnx.load or jaxdml.ptq.quantize returned"
        raise ArgumentTypeError(f"model is of type {type(model).__name__}, {text}")
    path = Path(path)
    if isinstance(model, Model):
        file = model
    else:
        file = load(path) if model is None else load(path, numerics=model.numerics, floats=model.floats)
    peer = Peer(path)
    _check_belongs(file, peer, path)
    given, said = named(inputs, file)
    # A 64-bit input may have been given as the 32-bit array that JAX computes with.
    typed = {tensor.name: np.asarray(given[tensor.name]).astype(tensor.dtype) for tensor in file.inputs}
    of_ptq = of_function(model, file, given) if isinstance(model, ptq.Model) else None
    try:
        subject = of_ptq or of_model(file, path, given, peer.computed)
        return _Comparing(subject, peer, typed).comparison(said)
    except ModelError as error:
        if inputs is not None:
            raise
        raise ModelError(f"{error}. It ran {said[0]}: if the sizes do not fit, give inputs (--run)") from error


class _Comparing:
    """Compares a subject with onnxruntime on some inputs."""

    def __init__(self, subject: Subject, peer: Peer, inputs: Values) -> None:
        self._subject, self._peer, self._inputs = subject, peer, inputs
        self._made = {
            name: value for name, value in subject.values.items()
            if name in peer.computed and str(value.dtype) not in UNREADABLE
        }  # fmt: skip

    def comparison(self, said: Sequence[str]) -> Comparison:
        subject, peer = self._subject, self._peer
        expected = peer.run(self._inputs, peer.outputs)
        outputs = self._outputs(expected)
        theirs = self._theirs()
        own, errors = self._own(subject.alone, theirs), self._by_value(subject.values, theirs)
        so_far = self._by_node(errors)
        tried = experiments(
            lambda settings: self._own(subject.alone, self._theirs(settings)),
            lambda: self._own(subject.by_onnxruntime, theirs),
        )
        reasons = own_reasons(subject.nodes, own, tried, self._made, lambda: peer.operators(self._made))
        texts = self._reasons(own, so_far, errors, reasons)
        rows = tuple(
            NodeDifference(node.name or node.outputs[0], node.operator.name, alone, after, text)
            for node, alone, after, text in zip(subject.nodes, own, so_far, texts, strict=True)
        )
        moved = sum(Difference.of(theirs[name], value).differing for name, value in expected.items() if name in theirs)
        changes = f"changes {moved:,} elements of" if moved else "does not change"
        notes = [*said, f"{AS_OUTPUTS}, which {changes} the model's outputs"]
        total = self._total(expected)
        if total and total.differing:
            notes += output_reasons(
                total, lambda settings: self._total(peer.run(self._inputs, peer.outputs, settings)),
                lambda: self._nudged(expected),
            )  # fmt: skip
        return Comparison(rows, outputs, peer.version, tuple(notes))

    def _outputs(self, expected: Values) -> dict[str, Difference]:
        return {name: Difference.of(self._subject.outputs[name], value) for name, value in expected.items()}

    def _total(self, expected: Values) -> Difference | None:
        return Difference.joined(self._outputs(expected).values())

    def _nudged(self, expected: Values) -> Difference | None:
        """How far onnxruntime's outputs move if float inputs move to their next floats; None without such inputs."""
        floats = {name: value for name, value in self._inputs.items() if value.dtype in NUDGED}
        moved = list[Difference]()
        for direction in (np.inf, -np.inf) if floats else ():
            near = {name: _next(value, direction) for name, value in floats.items()}
            found = self._peer.run({**self._inputs, **near}, self._peer.outputs)
            moved += (Difference.of(found[name], value) for name, value in expected.items())
        return Difference.joined(moved)

    def _theirs(self, settings: Settings = DEFAULT) -> dict[str, np.ndarray]:
        """onnxruntime's values that have the subject's types, keyed by name."""
        found = self._peer.run(self._inputs, self._made, settings)
        types = {name: jax.dtypes.canonicalize_dtype(value.dtype) for name, value in found.items()}
        return {name: value for name, value in found.items() if types[name] == self._made[name].dtype}

    def _own(self, alone: Callable[[Values], Values], theirs: Values) -> Differences:
        return self._by_node(self._by_value(alone(theirs), theirs))

    def _by_value(self, ours: Values, theirs: Values) -> dict[str, Difference]:
        """The difference of each value that onnxruntime has."""
        names = (name for node in self._subject.nodes for name in node.outputs if name in theirs)
        return {name: Difference.of(ours[name], theirs[name]) for name in names}

    def _by_node(self, found: Mapping[str, Difference]) -> Differences:
        """The difference of each node; None if onnxruntime has none of the node's values."""
        return [
            Difference.joined(found[name] for name in node.outputs if name in found) for node in self._subject.nodes
        ]

    def _reasons(
        self, own: Differences, so_far: Differences, errors: Mapping[str, Difference], found: Mapping[int, str]
    ) -> Iterator[str]:  # fmt: skip
        """The reason for each node's difference."""
        begins = dict[str, tuple[float, int]]()  # maps each differing value to its error, and where most of it begins
        for place, node in enumerate(self._subject.nodes):
            alone, after = own[place], so_far[place]
            error, first = max((begins[name] for name in node.inputs if name in begins), default=(0.0, None))
            if alone and alone.differing and (first is None or after is None or MOST * alone.relative > after.relative):
                first = place
            if first is not None:
                for name in filter(None, node.outputs):
                    if name not in errors:
                        begins[name] = error, first
                    elif errors[name].differing:
                        begins[name] = errors[name].relative, first
            if alone is None or after is None:
                yield UNREAD if self._peer.computed.intersection(node.outputs) else ABSENT
            elif place in found:
                yield found[place]
            elif not after.differing:
                yield EQUAL
            elif first is not None:
                yield f"its inputs differ: most of the error begins at {self._subject.nodes[first].name!r}"
            else:
                yield XLA


def _next(value: np.ndarray, end: float) -> np.ndarray:
    """The next floats in the direction of an infinity; a largest finite float stays, as infinities and NaN do."""
    with np.errstate(over="ignore", under="ignore"):
        near = np.nextafter(value, value.dtype.type(end))
    return np.where(np.isfinite(value) & np.isfinite(near), near, value)


def _check_belongs(file: Model, peer: Peer, path: Path) -> None:
    """Raises ModelError if the model's inputs or outputs are not those of the file."""
    for kind, tensors, names in (("inputs", file.inputs, peer.inputs), ("outputs", file.outputs, peer.outputs)):
        own = [tensor.name for tensor in tensors]
        if own != names:
            text = f"the model has the {kind} {own}, the file {str(path)!r} has {names}"
            raise ModelError(f"{text}: give the file from which the model was loaded")
