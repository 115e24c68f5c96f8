"""Names layers after the parameters that are their weights."""

from collections import Counter

from jaxdml.ptq._trace.equations import CONTRACTION_PRIMITIVES, Equation, Program
from jaxdml.ptq._trace.fixed import FixedValues


class LayerNames:
    """The names of a program's layers, before numbers make them unique."""

    def __init__(self, program: Program, fixed: FixedValues) -> None:
        self._program, self._fixed = program, fixed
        contractions = (each for each in program.equations if each.name in CONTRACTION_PRIMITIVES)
        weights = {leaf for each in contractions for name in each.inputs for leaf in fixed.leaves(name)[:1]}
        self._weights_in = Counter(self._path(leaf)[:-1] for leaf in weights)

    def of(self, equation: Equation, weight: str) -> str:
        """A layer's name: the path of its weights in the params, or its name scope.

        The last key of the path, such as "kernel", is dropped if no other layer's weights have the same parent. The
        scope is used if there is no path, or if the path has only list indices, which say nothing about the layer.
        """
        leaves = self._fixed.leaves(weight)
        path = self._path(leaves[0]) if leaves else ()
        if all(key.isdecimal() for key in path):
            return equation.scope or "/".join(path) or equation.outputs[0]
        return "/".join(path if self._weights_in[path[:-1]] > 1 else path[:-1] or path)

    def _path(self, leaf: str) -> tuple[str, ...]:
        """The path of a parameter, without the keys that frameworks add at its ends."""
        path = self._program.params[leaf] or ("weight",)
        path = path[1:] if path[0] == "params" and len(path) > 1 else path  # flax.linen
        return path[:-1] if path[-1] == "value" and len(path) > 1 else path  # flax.nnx
