"""Joins equations into programs on rows: softmax, norms, gelu and anything else that is elementwise or reduces rows.

An equation joins a program if equations of that program use its result and see the same rows. The result becomes one
of the program's if anything else uses it, too, after the program. Programs read slices along the last axis from the
sliced array. Without the native kernel, the equations of a program are computed by their rules: joining equations
changes no bit.

The rows lie along the last dimension of the largest arrays. A value is wide if it has an element for each element of
the rows, and narrow if it has one for each row, with or without a last dimension of 1.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxdml._arithmetic.kernel_call import with_kernel
from jaxdml._arithmetic.native_rows import LARGE_ROWS, MOST_REDUCED, MOST_RESULTS, REDUCTIONS, RowProgram, RowResult
from jaxdml._exact.flat import FLUSH, FlatEqn, FlatJaxpr, FlatVar, Operation, is_value
from jaxdml._exact.row_code import RowCode, RowOperand, array_of
from jaxdml._exact.rules import RULES, as_it_is

Array = jax.Array
Shape = tuple[int, ...]
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


def codes_of(eqn: FlatEqn) -> tuple[str, ...] | None:
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
    if codes_of(eqn) is None:
        return None
    shape, name = eqn.outvars[0].aval.shape, eqn.primitive.name
    if name in REDUCTIONS:
        full = eqn.invars[0].aval.shape
        is_row = tuple(eqn.params["axes"]) == (len(full) - 1,) and 1 < full[-1] <= MOST_REDUCED
        return Space(full[:-1], full[-1], True) if is_row else None
    for space in (spaces[atom] for atom in eqn.invars if is_value(atom) and atom in spaces):
        if space.is_narrow and shape in (space.outer, (*space.outer, 1)):
            return space
    return Space(shape[:-1], shape[-1], False) if shape and name not in RESHAPES else None


def _is_known(atom: Any) -> bool:
    """Whether an array is float32 or bool, and all its sizes are known and positive."""
    aval = atom.aval
    is_typed = getattr(aval, "dtype", None) in (np.float32, np.bool_)
    return is_typed and all(isinstance(size, int) and size > 0 for size in aval.shape)


def is_reshape(eqn: FlatEqn) -> bool:
    """Whether an equation keeps the order of the elements. A reshape with `dimensions` transposes its operand."""
    return eqn.primitive.name in RESHAPES and (eqn.primitive.name != "reshape" or eqn.params["dimensions"] is None)


def is_slice_of_columns(eqn: FlatEqn) -> bool:
    """Whether an equation slices some adjacent columns of all rows. One column would be a narrow value."""
    if eqn.primitive.name != "slice" or not _is_known(eqn.invars[0]):
        return False
    shape, sliced = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    is_adjacent = eqn.params["strides"] is None or eqn.params["strides"][-1] == 1
    return bool(shape) and shape[:-1] == sliced[:-1] and is_adjacent and 1 < sliced[-1] < shape[-1]


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


def is_elementwise(eqn: FlatEqn) -> bool:
    """Whether each element of the result is a function of one element of each operand, of the same rank or none."""
    name, result = eqn.primitive.name, eqn.result
    if result is None or not eqn.invars or name in (*REDUCTIONS, *RESHAPES, "broadcast_in_dim"):
        return False
    if not all(map(_is_known, (*eqn.invars, result))) or codes_of(eqn) is None:
        return False
    shape = result.aval.shape
    return all(not each or len(each) == len(shape) for each in (atom.aval.shape for atom in eqn.invars))


# Joining -------------------------------------------------------------------------------------------------------------


def joined(flat: FlatJaxpr) -> list[FlatEqn]:
    """The equations of a flat jaxpr, with those that can run on rows joined into programs."""
    spaces: dict[Any, Space] = {}
    users: dict[Any, list[tuple[int, FlatEqn]]] = defaultdict(list)  # with their places
    place_of: dict[FlatVar, int] = {}  # maps the results of each equation to the equation's place
    for place, eqn in enumerate(flat.eqns):
        if space := _space_of(eqn, spaces):
            spaces[eqn.result] = space
        for atom in filter(is_value, eqn.invars):
            users[atom].append((place, eqn))
        place_of |= dict.fromkeys(eqn.outvars, place)
    kept = set(filter(is_value, flat.outvars))
    last_of: dict[Any, FlatVar] = {}  # maps the result of each equation that joins to the last result of its program
    members: dict[FlatVar, list[FlatEqn]] = defaultdict(list)
    results: dict[FlatVar, list[FlatVar]] = defaultdict(list)  # of each program
    for eqn in reversed(flat.eqns):
        value = eqn.result
        if value is None or value not in spaces:
            continue
        # A program runs in place of its last equation. Only programs and equations after that can use its results.
        lasts = [(last_of.get(user.result), place, user) for place, user in users[value]]
        ends = [(place if last is None else place_of[last], user) for last, place, user in lasts]
        last = flat.eqns[min(place for place, _ in ends)].result if ends else None
        inside = [user for _, user in ends if last_of.get(user.result) is last]
        is_result = value in kept or len(inside) < len(users[value])
        if (
            last not in members
            or not all(_sees(user, value, spaces) for user in inside)
            or (is_result and (not _is_computed(eqn) or len(results[last]) == MOST_RESULTS))
        ):
            if value.aval.dtype != np.float32:
                continue
            last, is_result = value, True
        last_of[value] = last
        members[last].insert(0, eqn)
        if is_result:
            results[last].insert(0, value)
    ahead = {eqn.result: eqn for eqn in flat.eqns if eqn.primitive is FLUSH or is_slice_of_columns(eqn)}
    programs = {last: _program(eqns, results[last], spaces, ahead) for last, eqns in members.items()}
    eqns = []
    for eqn in flat.eqns:
        last = last_of.get(eqn.result)
        if last is None:
            eqns.append(eqn)
        elif last is eqn.result:
            program = programs[last]
            # Without a program, other programs still expect the equations in its place.
            eqns += members[last] if program is None else [program]
    read = kept.union(*(filter(is_value, eqn.invars) for eqn in eqns))
    return [eqn for eqn in eqns if eqn.result not in ahead or eqn.result in read]


def _is_computed(eqn: FlatEqn) -> bool:
    """Whether instructions compute the float32 result of an equation."""
    return eqn.outvars[0].aval.dtype == np.float32 and bool(codes_of(eqn))


def _sees(eqn: FlatEqn, value: FlatVar, spaces: Mapping[Any, Space]) -> bool:
    """Whether an equation reads a value in the same rows and shape in which another equation computes the value."""
    made, space = spaces[value], spaces.get(eqn.result)
    return space is not None and made[:2] == space[:2] and _view(eqn, value, space) == made.view


class _Source(NamedTuple):
    """What a program reads in place of an operand of an equation.

    Attributes:
      operand: the operand of the program.
      atom: the operand's array.
      ahead: the equations that compute the operand of the equation from the array, in order.
    """

    operand: RowOperand
    atom: Any
    ahead: tuple[FlatEqn, ...]

    @property
    def key(self) -> Any:
        """Equal for sources of the same values."""
        return self.operand, *(eqn.outvars[0] for eqn in self.ahead)


def _program(
    eqns: Sequence[FlatEqn], results: Sequence[FlatVar], spaces: Mapping[Any, Space], ahead: Mapping[Any, FlatEqn]
) -> FlatEqn | None:  # fmt: skip
    """The equation that replaces others; None if the kernel cannot run the program.

    `ahead` maps results to equations that flush, which the kernel does with what it reads, or slice columns.
    """
    inside = {eqn.outvars[0] for eqn in eqns}
    sources = {
        (eqn.outvars[0], place): _source(atom, eqn, spaces, ahead)
        for eqn in eqns
        for place, atom in enumerate(eqn.invars)
        if not is_value(atom) or atom not in inside
    }
    space = spaces[results[0]]
    code = RowCode((*space.outer, space.columns), list(dict.fromkeys(each.operand for each in sources.values())))
    numbers = {operand: number for number, operand in enumerate(code.operands)}
    places = {array: place for place, array in enumerate(code.arrays)}
    values: dict[FlatVar, int] = {}  # maps the result of each equation to its number
    steps: list[tuple[Any, tuple[Any, ...], tuple[int, ...]]] = []
    step_of: dict[Any, int] = {}  # maps results and sources to places of steps, or to ~ the places of arrays

    def added(eqn: FlatEqn, read: Sequence[int]) -> int:
        """The place of a new step, which reads steps and arrays."""
        steps.append((eqn.primitive, tuple(sorted(eqn.params.items())), tuple(~place for place in read)))
        return len(steps) - 1

    for eqn in eqns:
        read, of_steps = list[int](), list[int]()
        for place, atom in enumerate(eqn.invars):
            source = sources.get((eqn.outvars[0], place))
            if source is None:
                read.append(values[atom])
                of_steps.append(step_of[atom])
                continue
            if source.key not in step_of:
                last = ~places[source.operand.array]
                for each in source.ahead:
                    last = added(each, (last,))
                step_of[source.key] = last
            read.append(numbers[source.operand])
            of_steps.append(step_of[source.key])
        value = read[0]
        for place, name in enumerate(codes_of(eqn) or ()):
            value = code.add(name, (value, *read) if place else tuple(read))
        values[eqn.outvars[0]] = value
        step_of[eqn.outvars[0]] = added(eqn, of_steps)
    code.results = [RowResult(values[x], spaces[x].view, x.aval.shape) for x in results]
    program = code.program()
    if program is None:
        return None
    atoms = {each.operand.array: each.atom for each in sources.values()}
    params = {
        "program": program,
        "steps": tuple(steps),
        "results": tuple(step_of[result] for result in results),
        "code": code,
    }
    return FlatEqn(ROW_PROGRAM, params, tuple(atoms[array] for array in code.arrays), tuple(results), eqns[-1].scope)


def _source(atom: Any, eqn: FlatEqn, spaces: Mapping[Any, Space], ahead: Mapping[Any, FlatEqn]) -> _Source:
    """What a program reads in place of an operand of one of its equations."""
    view, first, found = _view(eqn, atom, spaces[eqn.result]), 0, list[FlatEqn]()
    while is_value(atom) and (before := ahead.get(atom)):
        if before.primitive is not FLUSH:
            if view != atom.aval.shape or not _is_of_rows(view, spaces[eqn.result]):
                break
            view, first = before.invars[0].aval.shape, before.params["start_indices"][-1]
        found.insert(0, before)
        (atom,) = before.invars
    return _Source(RowOperand(array_of(atom, view), first), atom, tuple(found))


def _is_of_rows(view: Shape, space: Space) -> bool:
    """Whether an array has all columns of the rows; it may have one row in place of several."""
    *outer, columns = view
    if len(outer) != len(space.outer) or columns != space.columns:
        return False
    return all(size in (1, whole) for size, whole in zip(outer, space.outer, strict=True))


# Running -------------------------------------------------------------------------------------------------------------


def row_program_rule(params: Mapping[str, Any]) -> Callable[..., Any]:
    """The rule of joined equations."""
    return partial(computed, **statics_of(params))


def statics_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """The static arguments of `computed` among the parameters of joined equations."""
    return {name: params[name] for name in ("program", "steps", "results")}


@with_kernel(LARGE_ROWS)
def computed(*arrays: Array, program: RowProgram, steps: tuple[Any, ...], results: tuple[int, ...]) -> Any:
    """The results of some of the joined equations, each computed by its rule.

    Args:
      *arrays: the arrays that the equations read.
      program: the program that computes the same.
      steps: for each equation its primitive, its parameters, and for each operand the place of an array, or ~ the place
        of the equation that computes it.
      results: the places of the equations whose results are returned; a single result is returned itself.
    """
    values: list[Array] = []
    for primitive, params, places in steps:
        read = [arrays[place] if place >= 0 else values[~place] for place in places]
        value: Any = RULES.get(primitive.name, as_it_is)(primitive, dict(params))(*read)
        values.append(value[0] if isinstance(value, list) else value)
    found = tuple(values[place] for place in results)
    return found if len(found) > 1 else found[0]
