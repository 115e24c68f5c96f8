"""Looks into the exact calls of quantized operators for calls of native kernels that may be joined into one.

Joining calls changes no bit.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax

from jaxdml._arithmetic.exact_calls import OPERAND, is_exact_call
from jaxdml._arithmetic.kernel_call import Kernel, Spec, spec_of
from jaxdml._arithmetic.native import DOT, FLOAT_DOT
from jaxdml._arithmetic.native_elementwise import QUANTIZE, QUANTIZE_ROWS
from jaxdml._arithmetic.native_rows import RowProgram
from jaxdml._exact.flat import FlatEqn, FlatVar, Operation, is_value
from jaxdml._exact.rows import ROW_PROGRAM, is_reshape

Shape = tuple[int, ...]
JOINED = Operation("joined_calls")  # the parameter `compute` is a function of the operands
Joined = tuple[FlatEqn, list[FlatEqn]]
KERNELS = DOT, FLOAT_DOT, QUANTIZE, QUANTIZE_ROWS  # that are joined with programs on rows between them


def with_joined_calls(
    eqns: Sequence[FlatEqn], outvars: Iterable[Any], joined: Callable[[FlatEqn, "Uses"], Iterator[Joined]]
) -> list[FlatEqn]:
    """The equations; those that an equation of `joined` replaces are replaced.

    `joined` yields, for a program on rows, equations that may run in its place, each with the equations that it
    replaces. Such an equation computes the results of the program, or the result of the last equation that it replaces.
    """
    if not any(eqn.primitive is ROW_PROGRAM for eqn in eqns):
        return list(eqns)
    all_eqns = [each for eqn in eqns for each in opened(eqn, KERNELS)]
    uses = Uses(all_eqns, outvars)
    # Maps the first result of each replaced equation to the equation in its place.
    joined_of: dict[FlatVar, FlatEqn] = {}
    for eqn in all_eqns:
        for new, replaced in joined(eqn, uses) if eqn.primitive is ROW_PROGRAM else ():
            results = [each.outvars[0] for each in replaced]
            if not joined_of.keys() & set(results):
                joined_of |= dict.fromkeys(results, new)
    if not joined_of:
        return list(eqns)
    kept = []
    for eqn in all_eqns:
        found = joined_of.get(eqn.outvars[0]) if eqn.outvars else None
        if found is None or found.outvars[0] is eqn.outvars[0]:
            kept.append(found or eqn)
    return kept


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
        spec_in(eqn, *kernels) is not None
        or (is_exact_call(eqn.params) and _calls_kernel(eqn.params["jaxpr"].jaxpr, kernels))
        for eqn in jaxpr.eqns
    )


def spec_in(eqn: Any, *kernels: Kernel) -> Spec | None:
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
            if not _is_view(eqn):
                return [eqn, *views]
            views.insert(0, eqn)
            (atom,) = eqn.invars
        return []

    def reader(self, value: FlatVar) -> list[FlatEqn]:
        """The views of a value, and the only equation that reads them; empty if there are several."""
        views: list[FlatEqn] = []
        while len(self._readers[value]) == 1 and (eqn := self._readers[value][0]):
            if not _is_view(eqn):
                return [*views, eqn]
            views.append(eqn)
            (value,) = eqn.outvars
        return []


def _is_view(eqn: FlatEqn) -> bool:
    """Whether the result of an equation has the elements of its operand, in the same order."""
    return is_reshape(eqn) or (eqn.primitive.name == "optimization_barrier" and len(eqn.invars) == 1)


def arguments_of(eqn: FlatEqn, spec: Spec) -> list[Any]:
    """The arguments of the function that an equation calls."""
    return list(jax.tree.unflatten(spec.tree, eqn.invars))


def with_shape(program: RowProgram, shape: Shape) -> RowProgram | None:
    """The program with a first result of this shape, whose dimensions its view may join; None if it has another.

    The program may read only whole rows of arrays.
    """
    left, groups, view = list(shape), [], program.results[0].view
    for size in view:
        group: list[int] = []
        while left and (math.prod(group) < size or left[0] == 1):
            group.append(left.pop(0))
        if math.prod(group) != size:
            return None
        groups.append(group)
    if left or (program.reduces and view[-1] != shape[-1]):
        return None
    if any(size not in (1, whole) for each in program.views for size, whole in zip(each, view, strict=True)):
        return None  # an array has longer rows than the result

    def split(view: Shape) -> Shape:
        """A view with each dimension split into those that it joins."""
        parts = (group if size != 1 else [1] * len(group) for size, group in zip(view, groups, strict=True))
        return tuple(size for part in parts for size in part)

    results = tuple(result._replace(view=split(result.view)) for result in program.results)
    views = tuple(map(split, program.views))
    return program._replace(views=views, results=results, columns=shape[-1], overwritten=None)
