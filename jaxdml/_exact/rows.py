"""Joins equations into programs on rows: softmax, norms, gelu and anything else that is elementwise or reduces rows.

A program has one result. An equation joins a program if all equations that use its result belong to that program and
see the same rows. Without the native kernel, the equations of a program are computed by their rules: joining equations
changes no bit.

The rows lie along the last dimension of the largest arrays. A value is wide if it has an element for each element of
the rows, and narrow if it has one for each row, with or without a last dimension of 1.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Literal

from jaxdml._arithmetic.kernel_call import with_kernel
from jaxdml._arithmetic.native_rows import MOST_REDUCED, REDUCTIONS, ROWS, RowProgram, RowResult
from jaxdml._exact.flat import FLUSH, FlatEqn, FlatJaxpr, FlatVar, Operation
from jaxdml._exact.row_code import RowCode
from jaxdml._exact.rules import RULES, as_it_is

Array = jax.Array
Shape = tuple[int, ...]
LEAST_ELEMENTS = 256  # the least number of elements in a program's rows; for fewer, XLA's loops are as fast
ROW_PROGRAM = Operation("row_program")
RESHAPES = ("reshape", "squeeze", "expand_dims")
ON_FLOATS = (
    "abs", "neg", "sign", "floor", "ceil", "sqrt", "rsqrt", "exp", "exp2", "expm1", "logistic", "tanh", "log", "log1p",
    "erf", "erfc", "square", "is_finite", "add", "sub", "mul", "div", "max", "min", "eq", "ne", "lt", "le", "gt", "ge",
    "clamp",
)  # fmt: skip
CODES_OF: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in (*ON_FLOATS, *REDUCTIONS, "not", "and", "or", "select_n")},
    **dict.fromkeys(("flush", "copy", "stop_gradient", "broadcast_in_dim", *RESHAPES), ()),  # the kernel flushes
    "add_any": ("add",),
}


class Space(NamedTuple):
    """The rows that an equation sees, and whether its result is narrow."""

    outer: Shape
    columns: int
    is_narrow: bool

    @property
    def view(self) -> Shape:
        """The shape of the result, with a last dimension of 1 if it is narrow."""
        return (*self.outer, 1 if self.is_narrow else self.columns)


# Which equations may join --------------------------------------------------------------------------------------------


def _codes_of(eqn: FlatEqn) -> tuple[str, ...] | None:
    """The instructions that compute an equation; None if it cannot join.

    The first instruction reads the operands of the equation. Each of the others reads the result of the instruction
    before it, then these operands.
    """
    name, params, of_bools = eqn.primitive.name, eqn.params, eqn.invars[0].aval.dtype == np.bool_
    if name in RESHAPES and not is_reshape(eqn):
        return None
    if name in CODES_OF:
        return None if of_bools and name in (*ON_FLOATS, *REDUCTIONS) else CODES_OF[name]
    if name == "round" and params["rounding_method"] == jax.lax.RoundingMethod.TO_NEAREST_EVEN:
        return ("round",)
    if name == "integer_pow" and params["y"] in (2, 3):
        return ("square", "mul")[: params["y"] - 1]
    if name == "convert_element_type" and params["new_dtype"] == np.float32:
        return ("to_float",) if of_bools else ()
    return None


def _space_of(eqn: FlatEqn, spaces: Mapping[Any, Space]) -> Space | None:
    """The rows that an equation sees; None if it cannot join."""
    if not eqn.invars or len(eqn.outvars) != 1 or not all(map(_is_known, (*eqn.invars, *eqn.outvars))):
        return None
    if _codes_of(eqn) is None:
        return None
    shape, name = eqn.outvars[0].aval.shape, eqn.primitive.name
    if name in REDUCTIONS:
        full = eqn.invars[0].aval.shape
        is_row = tuple(eqn.params["axes"]) == (len(full) - 1,) and 1 < full[-1] <= MOST_REDUCED
        return Space(full[:-1], full[-1], True) if is_row else None
    for space in (spaces[atom] for atom in eqn.invars if _is_value(atom) and atom in spaces):
        if space.is_narrow and shape in (space.outer, (*space.outer, 1)):
            return space
    return Space(shape[:-1], shape[-1], False) if shape and name not in RESHAPES else None


def _is_known(atom: Any) -> bool:
    """Whether an array is float32 or bool, and all its sizes are known and positive."""
    aval = atom.aval
    is_typed = getattr(aval, "dtype", None) in (np.float32, np.bool_)
    return is_typed and all(isinstance(size, int) and size > 0 for size in aval.shape)


def _is_value(atom: Any) -> bool:
    return not isinstance(atom, Literal)


def is_reshape(eqn: FlatEqn) -> bool:
    """Whether an equation keeps the order of the elements. A reshape with `dimensions` transposes its operand."""
    return eqn.primitive.name in RESHAPES and (eqn.primitive.name != "reshape" or eqn.params["dimensions"] is None)


def _view(eqn: FlatEqn, atom: Any, space: Space) -> Shape:
    """An operand's shape, extended to the rank of the rows; each size is 1 or the rows' size along that axis."""
    shape, result, name = atom.aval.shape, eqn.outvars[0].aval.shape, eqn.primitive.name
    if name in REDUCTIONS:
        return shape
    if name in RESHAPES:
        return space.view
    if name == "broadcast_in_dim":
        sizes = dict(zip(eqn.params["broadcast_dimensions"], shape, strict=True))
        shape = tuple(sizes.get(axis, 1) for axis in range(len(result)))
    shape = shape or (1,) * len(result)
    return shape if len(result) > len(space.outer) else (*shape, 1)


# Joining -------------------------------------------------------------------------------------------------------------


def joined(flat: FlatJaxpr) -> list[FlatEqn]:
    """The equations of a flat jaxpr, with those that can run on rows joined into programs."""
    spaces: dict[Any, Space] = {}
    users: dict[Any, list[FlatEqn]] = defaultdict(list)
    for eqn in flat.eqns:
        if space := _space_of(eqn, spaces):
            spaces[eqn.result] = space
        for atom in filter(_is_value, eqn.invars):
            users[atom].append(eqn)
    kept = set(filter(_is_value, flat.outvars))
    last_of: dict[Any, FlatVar] = {}  # maps the result of each equation that joins to the result of its program
    members: dict[FlatVar, list[FlatEqn]] = defaultdict(list)
    for eqn in reversed(flat.eqns):
        value = eqn.result
        if value is None or value not in spaces:
            continue
        lasts = {last_of.get(user.result) for user in users[value]}
        only = lasts.pop() if len(lasts) == 1 and value not in kept else None
        if only is None or not all(_sees(user, value, spaces) for user in users[value]):
            if value.aval.dtype != np.float32:
                continue
            only = value
        last_of[value] = only
        members[only].insert(0, eqn)
    raw = {eqn.result: eqn.invars[0] for eqn in flat.eqns if eqn.primitive is FLUSH}
    programs = {last: _program(eqns, spaces, raw) for last, eqns in members.items()}
    result = []
    for eqn in flat.eqns:
        last = last_of.get(eqn.result)
        program = programs[last] if last else None
        if program is None:
            result.append(eqn)
        elif last is eqn.result:
            result.append(program)
    return result


def _sees(eqn: FlatEqn, value: FlatVar, spaces: Mapping[Any, Space]) -> bool:
    """Whether an equation reads a value in the same rows and shape in which another equation computes the value."""
    made, space = spaces[value], spaces.get(eqn.result)
    return space is not None and made[:2] == space[:2] and _view(eqn, value, space) == made.view


def _program(eqns: Sequence[FlatEqn], spaces: Mapping[Any, Space], raw: Mapping[Any, Any]) -> FlatEqn | None:
    """The equation that replaces others; None if there are too few elements, or the kernel cannot run the program.

    `raw` maps results of flushing to what is flushed: the kernel flushes what it reads.
    """
    last = eqns[-1].outvars[0]
    inside = {eqn.outvars[0]: ~place for place, eqn in enumerate(eqns)}
    operands: dict[tuple[Any, Shape], tuple[int, Any]] = {}  # each operand's place and atom
    # For each equation, the place of each operand among the program's operands, or ~ the place of the equation that
    # computes the operand.
    places: list[list[int]] = []
    flushed = set[Any]()
    for eqn in eqns:
        space, of_eqn = spaces[eqn.result], []
        for atom in eqn.invars:
            if _is_value(atom) and atom in inside:
                of_eqn.append(inside[atom])
                continue
            view = _view(eqn, atom, space)
            if _is_value(atom) and atom in raw:
                atom = raw[atom]
                flushed.add(atom)
            key = atom if _is_value(atom) else np.asarray(atom.val, atom.aval.dtype).tobytes(), view
            place, _ = operands.setdefault(key, (len(operands), atom))
            of_eqn.append(place)
        places.append(of_eqn)
    code = RowCode(list(operands))
    values: list[int] = []
    for eqn, of_eqn in zip(eqns, places, strict=True):
        read = tuple(place if place >= 0 else values[~place] for place in of_eqn)
        value = read[0]
        for place, name in enumerate(_codes_of(eqn) or ()):
            value = code.add(name, (value, *read) if place else read)
        values.append(value)
    view = spaces[last].view
    if not code.instructions or math.prod(spaces[last].outer) * spaces[last].columns < LEAST_ELEMENTS:
        return None
    code.results = [RowResult(values[-1], last.aval.shape)]
    program = code.program(view)
    if program is None:
        return None
    atoms = [atom for _, atom in operands.values()]
    first = [place for place, atom in enumerate(atoms) if _is_value(atom) and atom in flushed]
    in_steps = {place: ~step for step, place in enumerate(first)} | {~i: ~(len(first) + i) for i in range(len(eqns))}
    steps: list[Any] = [(FLUSH, (), (place,)) for place in first]
    for eqn, of_eqn in zip(eqns, places, strict=True):
        read = tuple(in_steps.get(place, place) for place in of_eqn)
        steps.append((eqn.primitive, tuple(sorted(eqn.params.items())), read))
    params = {"program": program, "steps": tuple(steps), "results": (-1,), "code": code, "view": view}
    return FlatEqn(ROW_PROGRAM, params, tuple(atoms), (last,), eqns[-1].scope)


# Running -------------------------------------------------------------------------------------------------------------


def row_program_rule(params: Mapping[str, Any]) -> Callable[..., Any]:
    """The rule of joined equations."""
    return functools.partial(computed, **{name: params[name] for name in ("program", "steps", "results")})


@with_kernel(ROWS)
def computed(
    *operands: Array, program: RowProgram, steps: tuple[Any, ...], results: tuple[int, ...] = (-1,)
) -> Any:  # fmt: skip
    """The results of some of the joined equations, each computed by its rule.

    Args:
      *operands: the operands of all equations.
      program: the program that computes the same.
      steps: for each equation its primitive, its parameters, and for each operand its place, or ~ the place of the
        equation that computes it.
      results: the places of the equations whose results are returned; a single result is returned itself.
    """
    values: list[Array] = []
    for primitive, params, places in steps:
        read = [operands[place] if place >= 0 else values[~place] for place in places]
        found: Any = RULES.get(primitive.name, as_it_is)(primitive, dict(params))(*read)
        values.append(found[0] if isinstance(found, list) else found)
    return values[results[0]] if len(results) == 1 else tuple(values[place] for place in results)
