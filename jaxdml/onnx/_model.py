"""A model as a function of its parameters and inputs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._graph.evaluate import described, evaluate
from jaxdml._graph.graph import Graph
from jaxdml._graph.report import table
from jaxdml.errors import ModelError
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
        limit: Callable[..., None],
    ) -> None:
        self.params, self.inputs, self.outputs = params, inputs, outputs
        self._graph, self._limit = graph, limit
        self._jitted = jax.jit(self._computed, static_argnums=2)

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

    def values(self, params: Mapping[str, Any], /, *arrays: Any, names: Sequence[str], **named: Any) -> dict[str, Any]:
        """Values inside the model by name, such as those that two models are compared by; arguments as of `apply`.

        Args:
          names: those of the values; `value_names` lists what there is.
        """
        unknown = set(names) - set(self.value_names)
        if unknown:
            raise ModelError(f"the model has no values {sorted(unknown)}; fused operators have none inside")
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

    def __repr__(self) -> str:
        return f"<jaxdml.onnx.Model of {len(self._graph.nodes)} nodes: {', '.join(map(str, self.inputs))}>"

    def _given(
        self, params: Mapping[str, Any], arrays: tuple[Any, ...], named: dict[str, Any], names: tuple[str, ...]
    ) -> dict[str, Any]:
        self._check_params(params)
        inputs = self._checked(arrays, named)
        try:
            return self._jitted(dict(params), inputs, names)
        except ModelError:
            raise
        except Exception as error:  # whatever a malformed file makes JAX or XLA say
            raise ModelError(f"the model cannot be compiled or run: {error}") from error

    def _check_params(self, params: Any) -> None:
        if not isinstance(params, Mapping):
            raise ModelError(f"params is of type {type(params).__name__}, expected model.params, or a dict like it")
        differing = sorted(self.params.keys() ^ params.keys())
        if differing:
            raise ModelError(f"params has not the names of model.params, but lacks or adds {differing}")
        for name, own in self.params.items():
            if _shapes(params[name]) != _shapes(own):
                raise ModelError(f"params has in {name!r} {_shown(params[name])}, expected {_shown(own)}")

    def _computed(self, params: Mapping[str, Any], inputs: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
        given = {**self._graph.constants, **params, **inputs}
        values = evaluate(self._graph.nodes, given, limit=self._limit)
        made = {name: _as_jax(values[name]) for name in names}
        for tensor in self.outputs:
            if tensor.name in made and made[tensor.name].dtype != jax.dtypes.canonicalize_dtype(tensor.dtype):
                raise ModelError(
                    f"output {tensor} is computed as {made[tensor.name].dtype}; the model contradicts itself"
                )
        return made

    def _checked(self, arrays: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        expected = ", ".join(map(str, self.inputs)) or "no inputs"
        if len(arrays) > len(self.inputs):
            raise ModelError(f"apply was given {len(arrays)} inputs, expected {expected}")
        given = dict(zip((tensor.name for tensor in self.inputs), arrays, strict=False))
        twice = given.keys() & named.keys()
        if twice:
            raise ModelError(f"apply was given {sorted(twice)} by position and by name")
        given |= named
        missing = [tensor.name for tensor in self.inputs if tensor.name not in given]
        unknown = sorted(given.keys() - {tensor.name for tensor in self.inputs})
        if missing or unknown:
            text = f"lacks {missing}" if missing else f"was given {unknown}, which the model has not"
            raise ModelError(f"apply {text}; its inputs are {expected}")
        sizes: dict[str, Any] = {}
        return {tensor.name: tensor.checked(given[tensor.name], sizes) for tensor in self.inputs}


def _shapes(tree: Any) -> tuple[Any, list[Any]]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(getattr(leaf, "shape", None), getattr(leaf, "dtype", None)) for leaf in leaves]


def _shown(tree: Any) -> str:
    structure, leaves = _shapes(tree)
    arrays = " and ".join("no array" if shape is None else f"{dtype}{list(shape)}" for shape, dtype in leaves)
    return arrays if jax.tree_util.treedef_is_leaf(structure) else f"{type(tree).__name__} of {arrays}"


def _as_jax(value: Any) -> Any:
    """An output that is known may hold symbolic dimensions."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        return jnp.stack([jnp.asarray(each) for each in value.reshape(-1)]).reshape(value.shape)
    return jnp.asarray(value)
