"""A jaxpr without calls: each call is replaced by the equations of the jaxpr that it calls."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import Literal

from jaxdml._arithmetic.exact_calls import is_exact_call


class FlatVar:
    """A value of a flat jaxpr."""

    def __init__(self, aval: Any) -> None:
        self.aval = aval


def is_value(atom: Any) -> bool:
    """Whether an operand is a value, not a literal."""
    return not isinstance(atom, Literal)


class Operation(NamedTuple):
    """A step that is not a primitive of JAX, but has a name and a rule."""

    name: str


class FlatEqn(NamedTuple):
    """An equation; operands are values and literals.

    Attributes:
      is_exact: whether the primitive itself gives the results, without a rule.
    """

    primitive: Any
    params: Any
    invars: tuple[Any, ...]
    outvars: tuple[FlatVar, ...]
    scope: str
    is_exact: bool = False

    @property
    def result(self) -> FlatVar | None:
        """The result of an equation that has exactly one; None for other equations."""
        return self.outvars[0] if len(self.outvars) == 1 else None


class FlatJaxpr(NamedTuple):
    """A flat jaxpr. Each use of a float32 input, or of a part of one, reads the result of a `flush` equation.

    Quantized operators read inputs as they are, because they treat subnormals as zeros themselves.
    """

    invars: list[FlatVar]  # constants come first
    eqns: list[FlatEqn]
    outvars: list[Any]


FLUSH = Operation("flush")
# Results are elements of the first operand. They are flushed in its place: a gather of some rows then reads no others.
# Programs on rows flush what they read, so that views that they read need no pass of their own.
PARTS = frozenset(("gather", "slice", "dynamic_slice", "reshape", "squeeze", "expand_dims", "transpose"))


def flattened(jaxpr: Any, constants: Sequence[Any], called: Callable[[Any], Any]) -> tuple[FlatJaxpr, list[Any]]:
    """The flat jaxpr and all constants. `called` gives the jaxpr that an equation calls, or None."""
    invars: list[FlatVar] = []
    values: list[Any] = []
    eqns: list[FlatEqn] = []
    raw: set[FlatVar] = set()

    def given(var: Any) -> FlatVar:
        value = FlatVar(var.aval)
        if getattr(var.aval, "dtype", None) == np.float32:
            raw.add(value)
        return value

    def is_raw(value: Any) -> bool:
        return is_value(value) and value in raw

    def named(atom: Any, names: dict[Any, Any]) -> Any:
        return names[atom] if is_value(atom) else atom

    def used(atom: Any, names: dict[Any, Any], scope: str) -> Any:
        value = named(atom, names)
        if not is_raw(value):
            return value
        result = FlatVar(value.aval)
        eqns.append(FlatEqn(FLUSH, {}, (value,), (result,), scope))
        return result

    def walk(jaxpr: Any, constants: Sequence[Any], operands: Sequence[Any], scope: str) -> list[Any]:
        names = dict(zip(jaxpr.invars, operands, strict=True))
        for var, constant in zip(jaxpr.constvars, constants, strict=True):
            names[var] = given(var)
            invars.append(names[var])
            values.append(constant)
        for eqn in jaxpr.eqns:
            place = "/".join(filter(None, (scope, str(eqn.source_info.name_stack))))
            inner = called(eqn)
            if inner is not None:
                given_to = [named(atom, names) for atom in eqn.invars]
                results = walk(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), given_to, place)
            else:
                is_part = _is_part(eqn) and is_raw(named(eqn.invars[0], names))
                reads = named if is_part or _flushes(eqn) else partial(used, scope=place)
                read = tuple(reads(atom, names) for atom in eqn.invars)
                results = [FlatVar(var.aval) for var in eqn.outvars]
                if is_part:
                    raw.update(results)
                eqns.append(FlatEqn(eqn.primitive, eqn.params, read, tuple(results), place))
            names |= zip(eqn.outvars, results, strict=True)
        return [used(atom, names, scope) for atom in jaxpr.outvars]

    inputs = [given(var) for var in jaxpr.invars]
    outvars = walk(jaxpr, constants, inputs, "")
    return FlatJaxpr(invars + inputs, eqns, outvars), values


def _is_part(eqn: Any) -> bool:
    """Whether the result has elements of the first operand, each at most once."""
    if not eqn.invars:
        return False
    if eqn.primitive.name != "broadcast_in_dim":
        return eqn.primitive.name in PARTS
    return bool(eqn.invars[0].aval.size == eqn.outvars[0].aval.size)


def _flushes(eqn: Any) -> bool:
    """Whether an equation calls an exact function, which treats subnormals as zeros itself."""
    return is_exact_call(eqn.params)
