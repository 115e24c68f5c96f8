"""The calls of native kernels among the equations of a flat jaxpr, which may lie inside exact calls.

Quantized operators are exact calls. The passes that join their kernels with programs on rows look into these calls.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.extend.core import Literal

from jaxdml._arithmetic.exact_calls import OPERAND, is_exact_call
from jaxdml._arithmetic.kernel_call import Kernel, Spec, spec_of
from jaxdml._exact.flat import FlatEqn, FlatVar
from jaxdml._exact.rows import is_reshape


def opened(eqn: FlatEqn, kernels: Sequence[Kernel]) -> list[FlatEqn]:
    """The equations of an exact call that calls one of the kernels; any other equation itself."""
    closed = eqn.params["jaxpr"] if is_exact_call(eqn.params) else None
    if closed is None or closed.consts or not _calls_kernel(closed.jaxpr, kernels):
        return [eqn]
    made = {var for inner in closed.jaxpr.eqns if inner.primitive is not OPERAND for var in inner.outvars}
    if not all(is_value(atom) and atom in made for atom in closed.jaxpr.outvars):
        return [eqn]  # a result is an operand or a number
    names: dict[Any, Any] = dict(zip(closed.jaxpr.invars, eqn.invars, strict=True))
    results = dict(zip(closed.jaxpr.outvars, eqn.outvars, strict=True))
    eqns: list[FlatEqn] = []
    for inner in closed.jaxpr.eqns:
        read = tuple(names[atom] if is_value(atom) else atom for atom in inner.invars)
        if inner.primitive is OPERAND:
            names[inner.outvars[0]] = read[0]
            continue
        values = tuple(results.get(var) or FlatVar(var.aval) for var in inner.outvars)
        names |= zip(inner.outvars, values, strict=True)
        eqns += opened(FlatEqn(inner.primitive, inner.params, read, values, eqn.scope, is_exact=True), kernels)
    return eqns


def _calls_kernel(jaxpr: Any, kernels: Sequence[Kernel]) -> bool:
    return any(
        kernel_call(eqn, *kernels) is not None
        or (is_exact_call(eqn.params) and _calls_kernel(eqn.params["jaxpr"].jaxpr, kernels))
        for eqn in jaxpr.eqns
    )


def kernel_call(eqn: Any, *kernels: Kernel) -> Spec | None:
    """The static part of an equation that calls one of the kernels; None for others."""
    spec = spec_of(eqn.primitive, eqn.params)
    return spec if spec and spec.kernel in kernels else None


class Uses:
    """Which equations compute and read each value."""

    def __init__(self, eqns: Sequence[FlatEqn], outvars: Iterable[Any]) -> None:
        self._makers = {value: eqn for eqn in eqns for value in eqn.outvars}
        self._readers: dict[Any, list[FlatEqn | None]] = defaultdict(list)  # None for the results of all equations
        for eqn in eqns:
            for atom in filter(is_value, eqn.invars):
                self._readers[atom].append(eqn)
        for atom in filter(is_value, outvars):
            self._readers[atom].append(None)

    def maker(self, atom: Any) -> list[FlatEqn]:
        """The equation that computes a value, and the views that follow; empty if anything else reads one of them."""
        views: list[FlatEqn] = []
        while is_value(atom) and len(self._readers[atom]) == 1 and (eqn := self._makers.get(atom)):
            if not is_view(eqn):
                return [eqn, *views]
            views.insert(0, eqn)
            (atom,) = eqn.invars
        return []

    def reader(self, value: FlatVar) -> list[FlatEqn]:
        """The views of a value, and the only equation that reads them; empty if there are several."""
        views: list[FlatEqn] = []
        while len(self._readers[value]) == 1 and (eqn := self._readers[value][0]):
            if not is_view(eqn):
                return [*views, eqn]
            views.append(eqn)
            (value,) = eqn.outvars
        return []


def is_value(atom: Any) -> bool:
    return not isinstance(atom, Literal)


def is_view(eqn: FlatEqn) -> bool:
    """Whether the result of an equation has the elements of its operand, in the same order."""
    return is_reshape(eqn) or (eqn.primitive.name == "optimization_barrier" and len(eqn.invars) == 1)


def arguments_of(eqn: FlatEqn, spec: Spec) -> list[Any]:
    """The arguments of the function that an equation calls."""
    return list(jax.tree.unflatten(spec.tree, eqn.invars))
