"""A quantized function."""

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import jax
import numpy as np

from jaxdml._graph.evaluate import evaluate
from jaxdml._graph.floats import EXACT, Floats, by_xla, sentence, with_floats
from jaxdml._graph.graph import Graph, Node
from jaxdml._graph.parameters import called_without_params, wrong_params
from jaxdml._graph.report import html, table
from jaxdml._shapes import is_integer
from jaxdml.errors import ModelError, PtqError, api_boundary, in_other_byte_order
from jaxdml.ptq._choose.checks import check_outside
from jaxdml.ptq._choose.equalize import multiplied
from jaxdml.ptq._choose.modes import FLOAT, Mode, modes_as, options_to_try
from jaxdml.ptq._choose.progress import Progress
from jaxdml.ptq._choose.rule import Rule
from jaxdml.ptq._choose.unit import Unit, unit_of
from jaxdml.ptq._integers.adapt import Adapted, adapted, unit_of_trace
from jaxdml.ptq._integers.changes import as_calibrated
from jaxdml.ptq._integers.flat import Flat, flat
from jaxdml.ptq._integers.fuse import explained, on_integers
from jaxdml.ptq._sqnr import Advice, Sqnr, sqnr_of
from jaxdml.ptq._trace.equations import Program
from jaxdml.ptq._trace.scans import bound
from jaxdml.ptq._trace.traced import Traced, leaves_of, other_params, shapes_of, structs_of


def _on_integers(unit: Unit) -> Iterator[tuple[str, Node, Mode]]:
    """Yields the scan or "", the node and the mode of each contraction that does not stay in floats."""
    for scan, each in unit.each():
        for node in each.graph.nodes:
            if (mode := each.modes.get(node.outputs[0], FLOAT)) != FLOAT:
                yield scan, node, mode


def _described(params: Any) -> Any:
    """The structure, shapes and types of parameters."""
    leaves, structure = jax.tree.flatten(dict(params) if isinstance(params, Mapping) else params)
    return structure, [(getattr(leaf, "shape", None), getattr(leaf, "dtype", None)) for leaf in leaves]


def _are_same(params: Any, own: Mapping[str, Any]) -> bool:
    """Whether params are the model's own objects, which is faster to check than shapes and types."""
    if type(params) is not dict or len(params) != len(own):
        return False
    return all(params.get(name) is value for name, value in own.items())


class Model:
    """A quantized function, made by `jaxdml.ptq.quantize` or read by `jaxdml.ptq.load`.

    `print(model)` shows which operator computes each equation, and why an equation stayed in floats.

    Attributes:
      params: maps names to parameters, which are arrays, or weights prepared by `jaxdml.prepare_convolution_filter`,
        `jaxdml.prepare_matrix_multiply_b` or `jaxdml.prepare_matrix_multiply_blocks`.
      traced: the float function and its signature.
      graph: the graph of float operators with quantize and dequantize nodes, before fusion to quantized operators.
      calibrated: shapes and types of the first calibration batch.
      floats: "exact" if floats are computed by the rules of `jaxdml.exact`, "xla" if XLA computes them.
      numerics: "directml" or "onnxruntime"; it selects the formulas for quantized sums and means.
      factors: maps the names of weights and biases of the float function to the factors from equalization.
      modes: maps "", which stands for the function, and the name of each scan to a dict. The dict maps the name of the
        result of each contraction, and of each sum in floats, to the way in which it is computed.
    """

    def __init__(
        self, traced: Traced, graph: Graph, calibrated: Any, modes: Mapping[str, Mapping[str, Mode]],
        floats: Floats, numerics: str, factors: Mapping[str, Any], by_xla: Sequence[str] = (),
        requantized: "Callable[[Any, Sequence[Any], Sequence[Rule]], Model] | None" = None,
    ) -> None:  # fmt: skip
        """`requantized` quantizes the function again, given params, a batch and further rules; None after `load`."""
        self._requantized = requantized
        self.floats, self._numerics, self.factors, self._by_xla = floats, numerics, factors, tuple(by_xla)
        self.traced, self.graph, self.calibrated, self.modes = traced, graph, shapes_of(calibrated, "calibrated"), modes
        self._fused, self.params = on_integers(graph, numerics)
        self._own, self._described = dict(self.params), _described(self.params)
        self._jitted = jax.jit(with_floats(self._computed, floats))

    @property
    def numerics(self) -> str:
        """The choice of formulas for quantized sums and means, as passed to `quantize`."""
        return self._numerics

    @property
    def fingerprint(self) -> str:
        """A digest of the float function's equations; sizes of inputs do not change it."""
        return self.traced.fingerprint

    @api_boundary
    def apply(self, params: Mapping[str, Any], /, *inputs: Any) -> Any:
        """Computes the function on integers.

        Args:
          params: the attribute `params`, or a pytree of the same structure, shapes and types.
          *inputs: inputs of the float function. Their sizes may differ from those in calibration.

        Returns:
          A pytree of the same structure, shapes and types as the float function's result. Derivatives through integers
          are 0; those through floats, such as a residual connection or the scales of dynamic products, need not be.

        Raises:
          PtqError: if params have the wrong structure, shape or type, if an input is not made of numbers, or if the
            function has different layers for inputs of these sizes.
        """
        if not _are_same(params, self._own) and _described(params) != self._described:
            if _described(params) == _described(self.traced.params):
                raise PtqError(
                    "params are those of the float function, expected model.params, which quantize made from them"
                )
            raise PtqError(wrong_params(self._own, params))
        if wrong := in_other_byte_order("inputs", inputs):
            raise PtqError(wrong)
        try:
            return self._jitted(dict(params), *inputs)
        except TypeError:
            for place, each in enumerate(inputs):
                structs_of((each,), f"input {place}")
            raise

    @api_boundary
    def __call__(self, *inputs: Any, **named: Any) -> NoReturn:
        """Raises an error that names the call to write.

        Raises:
          ArgumentTypeError: always, because params must be an argument. Under jit, the model's own weights would be
            constants, compiled into the program.
        """
        raise called_without_params()

    def __reduce__(self) -> Any:
        """Prevents pickling.

        Raises:
          PtqError: always, because a model holds a function.
        """
        raise PtqError("a model holds a function and cannot be pickled: write jaxdml.ptq.save(path, model)")

    def _computed(self, params: dict[str, Any], *inputs: Any) -> Any:
        program = self.traced.program(inputs)
        results = [program.avals[name] for name in program.outputs]
        if all(0 in aval.shape for aval in results):  # JAX traces different equations for some empty inputs
            return jax.tree.unflatten(program.structure, [jax.numpy.zeros(aval.shape, aval.dtype) for aval in results])
        fused = self._for(program).fused
        given = dict(zip(fused.inputs, leaves_of(inputs), strict=True))
        try:
            values = evaluate(bound(fused.nodes, program), {**fused.constants, **params, **given})
        except ModelError as error:
            raise PtqError(str(error)) from error
        results = [
            values[held].astype(program.avals[name].dtype)
            for held, name in zip(fused.outputs, program.outputs, strict=True)
        ]
        return jax.tree.unflatten(program.structure, results)

    def _for(self, program: Program) -> Adapted:
        """The quantized graphs for a program.

        Raises:
          PtqError: if the function has changed, or if it has different layers for inputs of these sizes.
        """
        is_equal = program.signature() == self.traced.signature
        sizes = [program.avals[name].shape for name in program.inputs]
        if is_equal and (self.calibrated is None or sizes == [x.shape for x in jax.tree.leaves(self.calibrated)]):
            return Adapted(None, self.graph, self._fused)
        if self.calibrated is None:
            text = "inputs of these sizes change the equations of apply"
            raise PtqError(
                f"{text}; a loaded model allows this only if inputs are arrays, or lists, tuples and "
                "dicts of arrays, with strings as keys"
            )
        quantized = as_calibrated(self.traced, self.calibrated, self.graph)
        with jax.ensure_compile_time_eval():
            unit = unit_of(quantized, functools.partial(modes_as, self.modes))
            if is_equal and not unit.bodies:
                unit_of_trace(unit, self.graph, program)
                return Adapted(None, self.graph, self._fused)
            return adapted(unit, self.graph, self.params, program, self.numerics)

    def has_own_params(self) -> bool:
        """Whether the attribute `params` has the values with which the model was made."""
        if _are_same(self.params, self._own):
            return True
        if _described(self.params) != self._described:
            return False
        pairs = zip(jax.tree.leaves(dict(self.params)), jax.tree.leaves(self._own), strict=True)
        return all(x is y or np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)

    def flat(self, *inputs: Any) -> Flat:
        """The quantized function as one list of nodes, from which `jaxdml.onnx.save` writes a file.

        Args:
          *inputs: inputs of the float function, or their shapes and types, which may be symbolic.

        Raises:
          PtqError: if the function has changed, if it has different layers for inputs of these sizes, or if the number
            of steps of a scan is not known.
        """
        if self.calibrated is not None:
            as_calibrated(self.traced, self.calibrated, self.graph)
        program = self.traced.program(inputs)
        model = self._for(program)
        unit = unit_of(program, functools.partial(modes_as, self.modes)) if model.unit is None else model.unit
        return flat(unit, model.graph, self.numerics)

    @api_boundary
    def sqnr(self, params: Any, /, *inputs: Any, advice: int = 0, progress: bool = True) -> Sqnr:
        """Measures which layers lose accuracy: each layer's own error, and the error of its result in the model.

        Args:
          params: parameters of the float function.
          *inputs: inputs of the float function.
          advice: the number of worst layers for which rules are tried. For each option of a `Rule` that can change such
            a layer, the function is quantized again with these inputs as the only calibration batch. The gain is the
            ratio of this model's outputs minus that of a model quantized in the same way without the rule.
          progress: whether to print the number of models that were quantized for the advice on stderr.

        Returns:
          The signal-to-quantization-noise ratios; `print` shows them as a table, and their method `plot` draws them.

        Raises:
          PtqError: if params differ from the float function's parameters in structure, shapes or types, if `advice` is
            not an integer of at least 0, if it is above 0 and `load` returned the model, or if JAX traces the call.
        """
        if not is_integer(advice) or advice < 0:
            raise PtqError(f"advice is {advice!r}, expected the number of layers to try rules for, such as 3")
        if not inputs and self.calibrated:
            raise PtqError("sqnr has no inputs: write model.sqnr(params, images), with the float function's params")
        check_outside("sqnr computes with the values of params and inputs", params, inputs)
        if wrong := in_other_byte_order("params", params):
            raise PtqError(wrong)
        given = shapes_of(params, "params")
        if jax.tree.flatten(given) != jax.tree.flatten(self.traced.params):
            text = "params are not those of the float function: sqnr compares the model with that function, and"
            raise PtqError(f"{text} {other_params(self.traced.params, given)}")
        program = self.traced.program(inputs)
        model = self._for(program)
        unit = unit_of(program, functools.partial(modes_as, self.modes)) if model.unit is None else model.unit
        floats, builder = unit.builder.graph(), unit.builder
        constants = {**floats.constants, **builder.constants(jax.tree.leaves(params))}
        constants = multiplied(constants, self.factors)
        nodes = bound(floats.nodes, program), bound(model.graph.nodes, program)
        given = dict(zip(program.inputs, leaves_of(inputs), strict=True))
        contractions = dict[str, list[str]]()
        for scan, node, _ in _on_integers(unit):
            contractions.setdefault(scan or node.outputs[0], []).append(node.name)
        found = sqnr_of(
            floats, model.graph, nodes, constants, given, jax.tree.leaves(self.apply(self.params, *inputs)),
            program.output_names(), contractions=contractions, alone=advice > 0,
        )  # fmt: skip
        if not advice:
            return found
        return replace(found, advice=self._advice(params, inputs, unit, found.worst(advice), progress))

    def _advice(
        self, params: Any, inputs: Sequence[Any], unit: Unit, names: Sequence[str], progress: bool
    ) -> tuple[Advice, ...]:  # fmt: skip
        """The gains from rules for the layers with these names.

        Raises:
          PtqError: if the model cannot be quantized again.
        """
        requantized = self._requantized
        if requantized is None:
            text = "load does not know the options with which the function was quantized"
            raise PtqError(f"advice tries other options, and {text}: call sqnr on the model that quantize returned")

        modes = {node.name: (node, mode) for _, node, mode in _on_integers(unit)}
        is_alone, can_read_wide = len(modes) == 1, unit.can_read_wide()
        options = {
            name: [*options_to_try(*modes[name], can_read_wide=name in can_read_wide, is_alone=is_alone)]
            for name in names
        }
        if not any(options.values()):  # the only layer on integers is dynamic and cannot read 16 bits
            return ()
        numbers, count = itertools.count(1), 1 + sum(map(len, options.values()))
        with Progress(progress) as line:

            def tried(*rules: Rule) -> tuple[float, bool]:
                model = requantized(params, inputs, rules)
                result = model.sqnr(params, *inputs).total, not model.by_xla
                line.show(f"advice: {next(numbers)} of {count} models")
                return result

            before, _ = tried()
            found = list[Advice]()
            for name, several in options.items():
                pattern, gains, one_answer = f"^{re.escape(name)}$", dict[str, float](), dict[str, bool]()
                for each in several:
                    words = ", ".join(f"{option}={value!r}" for option, value in each.items())
                    ratio, one_answer[words] = tried(Rule(pattern, **each))
                    gains[words] = ratio - before
                found.append(Advice(name, pattern, gains, one_answer))
        return tuple(found)

    @functools.cached_property
    def by_xla(self) -> tuple[str, ...]:
        """The names of the nodes whose floats XLA computes; none if the outputs have equal bits on all processors."""
        return (self._without_rule or ()) if self.floats == EXACT else by_xla(self._fused.nodes, self.floats)

    @functools.cached_property
    def _without_rule(self) -> tuple[str, ...] | None:
        if self.calibrated is None:  # loaded from a file without the shapes for tracing the function
            return self._by_xla if self.floats == EXACT else None
        return by_xla(bound(self._fused.nodes, as_calibrated(self.traced, self.calibrated, self.graph)), EXACT)

    @property
    def _sentence(self) -> str:
        return sentence(self.by_xla, self._without_rule, self.floats)

    def __str__(self) -> str:
        return f"{table(explained(self._fused), 'in apply')}\n{self._sentence}"

    def _repr_html_(self) -> str:
        titles = "jaxdml.ptq.Model", self._sentence
        return html(explained(self._fused), titles, "in apply")

    def __repr__(self) -> str:
        return f"<jaxdml.ptq.Model of {len(self._fused.nodes)} nodes, fingerprint {self.fingerprint}>"


def check_apply(apply: Any, expected: str) -> None:
    """Validates the argument `apply` of `quantize` and `load`.

    Raises:
      PtqError: if it is a model, or not callable.
    """
    if isinstance(apply, Model):
        raise PtqError("apply is a quantized model: pass the float function that the model was quantized from")
    if not callable(apply):
        raise PtqError(f"apply is of type {type(apply).__name__}, expected {expected}")
