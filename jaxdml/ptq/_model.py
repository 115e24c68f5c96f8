"""A quantized function."""

from collections.abc import Mapping
from typing import Any

import jax

from jaxdml._graph.evaluate import evaluate
from jaxdml._graph.graph import Graph
from jaxdml._graph.parameters import wrong_params
from jaxdml._graph.report import html, table
from jaxdml.errors import ModelError, PtqError, api_boundary
from jaxdml.ptq._conversions import canonical
from jaxdml.ptq._integers import explained, on_integers
from jaxdml.ptq._sqnr import Sqnr, sqnr_of
from jaxdml.ptq._traced import Traced, bound, shapes_of


def _described(params: Any) -> Any:
    """The structure, shapes and types of parameters."""
    leaves, structure = jax.tree.flatten(dict(params) if isinstance(params, Mapping) else params)
    return structure, [(getattr(leaf, "shape", None), getattr(leaf, "dtype", None)) for leaf in leaves]


class Model:
    """A function on integers, made by `jaxdml.ptq.quantize` or read by `jaxdml.ptq.load`.

    `print(model)` shows what each equation became, and why an equation stayed in floats.

    Attributes:
      params: the weights by name, a pytree: what `jaxdml.prepare_convolution_filter` and
        `jaxdml.prepare_matrix_multiply_b` make of them, and arrays.
      traced: the float function, and its equations.
      graph: quantize and dequantize nodes around operators, of which the quantized operators are made.
      calibrated: shapes and types of the first calibration batch.
    """

    def __init__(self, traced: Traced, graph: Graph, calibrated: Any) -> None:
        self.traced, self.graph, self.calibrated = traced, graph, shapes_of(calibrated)
        self._fused, self.params = on_integers(graph)
        self._described = _described(self.params)
        self._jitted = jax.jit(self._computed)

    @property
    def fingerprint(self) -> str:
        """A digest of what the float function computes, whatever the sizes of its inputs."""
        return self.traced.fingerprint

    @api_boundary
    def apply(self, params: Mapping[str, Any], /, *inputs: Any) -> Any:
        """What the float function returns, computed on integers.

        Args:
          params: `params`, or a pytree of the same structure.
          *inputs: those of the float function; sizes may be others than in calibration, as far as the function then
            computes the same equations: a batch of another size does, an image whose mean is taken may not.

        Returns:
          A pytree of the same structure, shapes and types as the float function's. Its derivatives are 0.

        Raises:
          PtqError: if params are others, or the float function computes other equations for these inputs.
        """
        if _described(params) != self._described:
            raise PtqError(wrong_params(self.params, params))
        return self._jitted(dict(params), *inputs)

    def __reduce__(self) -> Any:
        """Refuses to be pickled.

        Raises:
          PtqError: always.
        """
        raise PtqError("a model holds a function, and is not pickled: write jaxdml.ptq.save(path, model)")

    def _computed(self, params: dict[str, Any], *inputs: Any) -> Any:
        program = self.traced.program(inputs)
        given = dict(zip(self._fused.inputs, jax.tree.leaves(inputs), strict=True))
        try:
            values = evaluate(bound(self._fused.nodes, program), {**self._fused.constants, **params, **given})
        except ModelError as error:
            raise PtqError(str(error)) from error
        results = [
            values[held].astype(program.avals[name].dtype)
            for held, name in zip(self._fused.outputs, program.outputs, strict=True)
        ]
        return jax.tree.unflatten(program.structure, results)

    @api_boundary
    def sqnr(self, params: Any, /, *inputs: Any) -> Sqnr:
        """Which layer hurts: the error of each layer by itself, and all errors so far.

        Args:
          params: the parameters of the float function.
          *inputs: those of the float function.

        Returns:
          The ratios, which print as a table and which `plot` draws.

        Raises:
          PtqError: if params are not those of the float function.
        """
        if jax.tree.flatten(shapes_of(params)) != jax.tree.flatten(self.traced.params):
            raise PtqError("params are not those of the float function: sqnr compares the model with that function")
        program = self.traced.program(inputs)
        made = canonical(program)
        floats, leaves = made.graph(), jax.tree.leaves(params)
        constants = {**floats.constants, **made.weights(leaves), **dict(zip(program.params, leaves, strict=True))}
        nodes = bound(floats.nodes, program), bound(self.graph.nodes, program)
        given = dict(zip(program.inputs, jax.tree.leaves(inputs), strict=True))
        return sqnr_of(floats, self.graph, nodes, constants, given)

    def __str__(self) -> str:
        return table(explained(self._fused), "in apply")

    def _repr_html_(self) -> str:
        return html(explained(self._fused), ("jaxdml.ptq.Model",), "in apply")

    def __repr__(self) -> str:
        return f"<jaxdml.ptq.Model of {len(self._fused.nodes)} nodes, fingerprint {self.fingerprint}>"
