"""A loaded model: a function of its parameters and inputs."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._graph.evaluate import check_fits_32_bits, evaluate, evaluated_alone
from jaxdml._graph.floats import EXACT, Floats, by_xla, on_float64, sentence, with_floats
from jaxdml._graph.graph import Graph, Node
from jaxdml._graph.join import joined
from jaxdml._graph.parameters import called_without_params, difference, listed, wrong_params
from jaxdml._graph.report import html, table
from jaxdml._quantized.onnxruntime.lookup import looked_up
from jaxdml.errors import ModelError, api_boundary, in_other_byte_order
from jaxdml.onnx._limits import Limits, check_result, limited_by
from jaxdml.onnx._tensors import Tensor


class Model:
    """A quantized ONNX model as a JAX function, which `jaxdml.onnx.load` returns.

    `print(model)` shows which operator runs for each node, and why a node stayed in floats.

    Attributes:
      params: the constants of the model, keyed by name: a pytree of arrays and of weights prepared by
        `jaxdml.prepare_convolution_filter`, `jaxdml.prepare_matrix_multiply_b` or
        `jaxdml.prepare_matrix_multiply_blocks`.
      inputs: name, shape and type of each input.
      outputs: name, shape and type of each output.
      limits: the limits with which the model was loaded.
      floats: "exact" if floats are computed by the rules of `jaxdml.exact`, "xla" if XLA computes them.
    """

    def __init__(
        self,
        graph: Graph,
        params: dict[str, Any],
        inputs: tuple[Tensor, ...],
        outputs: tuple[Tensor, ...],
        limits: Limits,
        floats: Floats,
    ) -> None:
        self.params, self.inputs, self.outputs = params, inputs, outputs
        self._graph, self.limits, self.floats = graph, limits, floats
        self._jitted = jax.jit(self._computed, static_argnums=2)
        self._jitted_alone = jax.jit(with_floats(self._evaluated_alone, floats))

    @property
    def by_xla(self) -> tuple[str, ...]:
        """The names of the nodes whose floats XLA computes; empty if outputs have the same bits on every processor."""
        return by_xla(self._graph.nodes, self.floats)

    @api_boundary
    def apply(self, params: Mapping[str, Any], /, *arrays: Any, **named: Any) -> dict[str, jax.Array]:
        """Runs the model.

        Args:
          params: the attribute `params`, or a pytree of the same structure.
          *arrays: inputs in the order of the attribute `inputs`.
          **named: inputs as keyword arguments.

        Returns:
          The outputs, keyed by name.

        Raises:
          ModelError: if an input is missing or unknown, or has the wrong type or shape.
        """
        return self._run(params, arrays, named, tuple(output.name for output in self.outputs))

    @api_boundary
    def __call__(self, *inputs: Any, **named: Any) -> NoReturn:
        """Raises an error that names the call to write.

        Raises:
          ArgumentTypeError: always, because params must be an argument. Under jit, the model's own weights would be
            constants, compiled into the program.
        """
        raise called_without_params()

    def values(
        self, params: Mapping[str, Any], names: str | Sequence[str], /, *arrays: Any, **named: Any
    ) -> dict[str, jax.Array]:
        """Values inside the model, keyed by name, for example to compare two models.

        Args:
          params: as for `apply`.
          names: names from `value_names`, or a single name.
          *arrays: as for `apply`.
          **named: as for `apply`.
        """
        names = (names,) if isinstance(names, str) else names
        unknown = set(names) - set(self.value_names)
        if unknown:
            text = "model.value_names lists its values; intermediate results of fused operators are not among them"
            raise ModelError(f"the model has no values {listed(unknown)}; {text}")
        return self._run(params, arrays, named, tuple(names))

    @api_boundary
    def values_alone(
        self, params: Mapping[str, Any], given: Mapping[str, Any], /, *arrays: Any, **named: Any
    ) -> dict[str, jax.Array]:
        """The results of each node alone, computed from given values in place of the model's own.

        Args:
          params: as for `apply`.
          given: values by name, for example those of another runtime. Nodes read a given value in place of the model's
            own value if both have the same shape and type. Values that are known while JAX traces, such as the result
            of Shape, are never replaced.
          *arrays: as for `apply`.
          **named: as for `apply`.

        Returns:
          All computed values, keyed by name.

        Raises:
          ModelError: as for `apply`.
        """
        inputs = self._checked(params, arrays, named)
        if wrong := in_other_byte_order("given", dict(given)):
            raise ModelError(wrong)
        return _tried(lambda: self._jitted_alone(dict(params), inputs, dict(given)))

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of the graph after fusion, in the order in which they run."""
        return self._graph.nodes

    @property
    def value_names(self) -> tuple[str, ...]:
        """The names of the inputs, of all computed values, and of outputs that are constants, in this order."""
        constants = (name for name in self._graph.outputs if name in self.params or name in self._graph.constants)
        return tuple(dict.fromkeys((*self._graph.inputs, *self._graph.producers(), *constants)))

    @property
    def operators(self) -> tuple[str, ...]:
        """The names of the operators, in the order in which they run."""
        return tuple(node.operator.name for node in self._graph.nodes)

    @property
    def _sentence(self) -> str:
        nodes = self._graph.nodes
        return sentence(self.by_xla, by_xla(nodes, EXACT), self.floats, on_float64(nodes))

    def __str__(self) -> str:
        inputs, outputs = (", ".join(map(str, each)) for each in (self.inputs, self.outputs))
        return f"{table(self._graph)}\n{self._sentence}\n\ninputs   {inputs}\noutputs  {outputs}"

    def _repr_html_(self) -> str:
        inputs, outputs = (", ".join(map(str, each)) for each in (self.inputs, self.outputs))
        titles = "jaxdml.onnx.Model", self._sentence, f"inputs {inputs}", f"outputs {outputs}"
        return html(self._graph, titles)

    def __repr__(self) -> str:
        return f"<jaxdml.onnx.Model of {len(self._graph.nodes)} nodes: {', '.join(map(str, self.inputs))}>"

    def _run(
        self, params: Mapping[str, Any], arrays: tuple[Any, ...], named: dict[str, Any], names: tuple[str, ...]
    ) -> dict[str, Any]:
        inputs = self._checked(params, arrays, named)
        values = _tried(lambda: self._jitted(dict(params), inputs, names))
        return {name: values[name] for name in names}  # jax.jit sorts the keys

    def _computed(self, params: Mapping[str, Any], inputs: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
        return with_floats(partial(self._evaluated, names=names), self.floats)(params, inputs)

    def _evaluated(self, params: Mapping[str, Any], inputs: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
        with limited_by(self.limits):
            nodes = joined(self._graph, names, looked_up)
            given = {**self._graph.constants, **params, **inputs}
            values = evaluate(nodes, given, names, check_result=check_result)
        for name in names:
            if isinstance(values[name], np.ndarray):
                check_fits_32_bits(name, values[name])
        results = {name: _as_jax(values[name]) for name in names}
        for tensor in self.outputs:
            if tensor.name in results and tensor.computed_dtype not in (None, results[tensor.name].dtype):
                text = f"is computed as {results[tensor.name].dtype}; the model contradicts itself"
                raise ModelError(f"output {tensor} {text}")
        return results

    def _evaluated_alone(
        self, params: Mapping[str, Any], inputs: dict[str, Any], given: dict[str, Any]
    ) -> dict[str, Any]:  # fmt: skip
        values = {**self._graph.constants, **params, **inputs}
        with limited_by(self.limits):
            graph = self._graph
            found = evaluated_alone(graph.nodes, values, given, graph.outputs, check_result=check_result)
        return {name: _as_jax(value) for name, value in found.items()}

    def _checked(self, params: Any, arrays: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """Checks params and inputs, and returns the inputs keyed by name."""
        wrong = wrong_params(self.params, params)
        if wrong:
            raise ModelError(wrong)
        return self._validated(arrays, named)

    def _validated(self, arrays: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """Checks the inputs, and returns them keyed by name."""
        expected = ", ".join(map(str, self.inputs)) or "none"
        if any(isinstance(array, Mapping) for array in arrays):
            raise ModelError("an input was given a dict; pass inputs by name: apply(params, **inputs)")
        if len(arrays) > len(self.inputs):
            raise ModelError(f"apply was given {len(arrays)} inputs, expected {expected}")
        names = [tensor.name for tensor in self.inputs]
        inputs = dict(zip(names, arrays, strict=False))
        twice = inputs.keys() & named.keys()
        if twice:
            raise ModelError(f"apply was given {sorted(twice)} by position and by name")
        inputs |= named
        wrong = difference("apply", names, inputs)
        if wrong:
            raise ModelError(f"{wrong}; its inputs are {expected}")
        sizes: dict[str, Any] = {}
        return {tensor.name: tensor.validated(inputs[tensor.name], sizes) for tensor in self.inputs}


def _tried(compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The computed values; every error is a ModelError."""
    try:
        return compute()
    except ModelError:
        raise
    except Exception as error:  # JAX and XLA raise many kinds of exceptions for a malformed file
        raise ModelError(f"the model cannot be compiled or run: {error}") from error


def _as_jax(value: Any) -> Any:
    """Converts an output to a JAX array. A NumPy array of dtype object holds symbolic dimensions."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        return jnp.stack([jnp.asarray(each) for each in value.reshape(-1)]).reshape(value.shape)
    return jnp.asarray(value)
