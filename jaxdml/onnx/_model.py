"""A model as a function of its parameters and inputs."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._graph.evaluate import described, evaluate
from jaxdml._graph.graph import Graph
from jaxdml._graph.parameters import difference, listed, wrong_params
from jaxdml._graph.report import html, table
from jaxdml.errors import ModelError, api_boundary
from jaxdml.onnx._arrays import limited
from jaxdml.onnx._file import Limits
from jaxdml.onnx._limit import check_result
from jaxdml.onnx._tensors import Tensor


class Model:
    """A quantized ONNX model as a JAX function, made by `jaxdml.onnx.load`.

    `print(model)` shows what each node became, and why a node stayed in floats.

    Attributes:
      params: the constants of the model by name, a pytree: what `jaxdml.prepare_convolution_filter` and
        `jaxdml.prepare_matrix_multiply_b` make of weights, and arrays.
      inputs: name, shape and type of each input.
      outputs: name, shape and type of each output.
    """

    def __init__(
        self,
        graph: Graph,
        params: dict[str, Any],
        inputs: tuple[Tensor, ...],
        outputs: tuple[Tensor, ...],
        limits: Limits,
    ) -> None:
        self.params, self.inputs, self.outputs = params, inputs, outputs
        self._graph, self._limits = graph, limits
        self._jitted = jax.jit(self._computed, static_argnums=2)

    @api_boundary
    def apply(self, params: Mapping[str, Any], /, *arrays: Any, **named: Any) -> dict[str, jax.Array]:
        """The outputs by name.

        Args:
          params: `params`, or a pytree of the same structure.
          *arrays: inputs in the order of `inputs`.
          **named: inputs by name.

        Returns:
          Each output's array by its name.

        Raises:
          ModelError: if an input is missing, unknown, or of another type or shape.
        """
        return self._given(params, arrays, named, tuple(output.name for output in self.outputs))

    def values(
        self, params: Mapping[str, Any], names: str | Sequence[str], /, *arrays: Any, **named: Any
    ) -> dict[str, jax.Array]:
        """Values inside the model by name, such as those that two models are compared by.

        Args:
          params: as for `apply`.
          names: those of the values, or one of them; `value_names` lists what there is.
          *arrays: as for `apply`.
          **named: as for `apply`.
        """
        names = (names,) if isinstance(names, str) else names
        unknown = set(names) - set(self.value_names)
        if unknown:
            text = "model.value_names lists those that it has; fused operators have none inside"
            raise ModelError(f"the model has no values {listed(unknown)}; {text}")
        return self._given(params, arrays, named, tuple(names))

    @property
    def value_names(self) -> tuple[str, ...]:
        """The names of the inputs and of all that nodes compute, in order."""
        made = (name for node in self._graph.nodes for name in node.outputs if name)
        others = (name for name in self._graph.outputs if name in self.params or name in self._graph.constants)
        return tuple(dict.fromkeys((*self._graph.inputs, *made, *others)))

    @property
    def operators(self) -> tuple[str, ...]:
        """The names of the operators that run, in order."""
        return tuple(node.operator.name for node in self._graph.nodes)

    def makers(self) -> Iterator[tuple[str, str]]:
        """Each value that a node makes, and what the node is called, in order."""
        return ((name, described(node)) for node in self._graph.nodes for name in node.outputs if name)

    def __str__(self) -> str:
        inputs, outputs = (", ".join(map(str, each)) for each in (self.inputs, self.outputs))
        return f"{table(self._graph)}\n\ninputs   {inputs}\noutputs  {outputs}"

    def _repr_html_(self) -> str:
        inputs, outputs = (", ".join(map(str, each)) for each in (self.inputs, self.outputs))
        return html(self._graph, ("jaxdml.onnx.Model", f"inputs {inputs}", f"outputs {outputs}"))

    def __repr__(self) -> str:
        return f"<jaxdml.onnx.Model of {len(self._graph.nodes)} nodes: {', '.join(map(str, self.inputs))}>"

    def _given(
        self, params: Mapping[str, Any], arrays: tuple[Any, ...], named: dict[str, Any], names: tuple[str, ...]
    ) -> dict[str, Any]:
        wrong = wrong_params(self.params, params)
        if wrong:
            raise ModelError(wrong)
        inputs = self._checked(arrays, named)
        try:
            computed = self._jitted(dict(params), inputs, names)
            return {name: computed[name] for name in names}  # jax.jit sorts them
        except ModelError:
            raise
        except Exception as error:  # whatever a malformed file makes JAX or XLA say
            raise ModelError(f"the model cannot be compiled or run: {error}") from error

    def _computed(self, params: Mapping[str, Any], inputs: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
        given = {**self._graph.constants, **params, **inputs}
        with limited(self._limits.tensor_bytes):
            values = evaluate(self._graph.nodes, given, limit=partial(check_result, limits=self._limits))
        made = {name: _as_jax(values[name]) for name in names}
        for tensor in self.outputs:
            if tensor.name in made and made[tensor.name].dtype != jax.dtypes.canonicalize_dtype(tensor.dtype):
                raise ModelError(
                    f"output {tensor} is computed as {made[tensor.name].dtype}; the model contradicts itself"
                )
        return made

    def _checked(self, arrays: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        expected = ", ".join(map(str, self.inputs)) or "none"
        if any(isinstance(array, Mapping) for array in arrays):
            raise ModelError("an input was given a dict; pass inputs by name: apply(params, **inputs)")
        if len(arrays) > len(self.inputs):
            raise ModelError(f"apply was given {len(arrays)} inputs, expected {expected}")
        given = dict(zip((tensor.name for tensor in self.inputs), arrays, strict=False))
        twice = given.keys() & named.keys()
        if twice:
            raise ModelError(f"apply was given {sorted(twice)} by position and by name")
        given |= named
        told = difference("apply", [tensor.name for tensor in self.inputs], given)
        if told:
            raise ModelError(f"{told}; its inputs are {expected}")
        sizes: dict[str, Any] = {}
        return {tensor.name: tensor.checked(given[tensor.name], sizes) for tensor in self.inputs}


def _as_jax(value: Any) -> Any:
    """An output that is known may hold symbolic dimensions."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        return jnp.stack([jnp.asarray(each) for each in value.reshape(-1)]).reshape(value.shape)
    return jnp.asarray(value)
