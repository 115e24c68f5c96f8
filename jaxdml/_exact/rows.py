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
from jax.extend.core import Literal

from jaxdml._arithmetic.kernel_call import with_kernel
from jaxdml._arithmetic.native_rows import LARGE_ROWS, MOST_REDUCED, REDUCTIONS, RowProgram, RowResult
from jaxdml._exact.flat import FlatEqn, FlatJaxpr, FlatVar, Operation
from jaxdml._exact.row_code import RowCode
from jaxdml._exact.rules import RULES, as_it_is

Array = jax.Array
Shape = tuple[int, ...]
MOST_RESULTS = 8  # of a program; each holds a slot
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
    users: dict[Any, list[FlatEqn]] = defaultdict(list)
    place_of: dict[FlatVar, int] = {}  # maps the results of each equation to the equation's place
    for place, eqn in enumerate(flat.eqns):
        if space := _space_of(eqn, spaces):
            spaces[eqn.result] = space
        for atom in filter(_is_value, eqn.invars):
            users[atom].append(eqn)
        place_of |= dict.fromkeys(eqn.outvars, place)
    kept = set(filter(_is_value, flat.outvars))
    last_of: dict[Any, FlatVar] = {}  # maps the result of each equation that joins to the last result of its program
    members: dict[FlatVar, list[FlatEqn]] = defaultdict(list)
    results: dict[FlatVar, list[FlatVar]] = defaultdict(list)  # of each program
    for eqn in reversed(flat.eqns):
        value = eqn.result
        if value is None or value not in spaces:
            continue
        # A program runs in place of its last equation. Only programs and equations after that can use its results.
        ends = [(place_of[last_of.get(user.result, user.outvars[0])], user) for user in users[value] if user.outvars]
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
    slices = {eqn.result: eqn for eqn in flat.eqns if is_slice_of_columns(eqn)}
    programs = {last: _program(eqns, results[last], spaces, slices) for last, eqns in members.items()}
    eqns = []
    for eqn in flat.eqns:
        last = last_of.get(eqn.result)
        program = programs[last] if last else None
        if program is None:
            eqns.append(eqn)
        elif last is eqn.result:
            eqns.append(program)
    read = kept.union(*(filter(_is_value, eqn.invars) for eqn in eqns))
    return [eqn for eqn in eqns if eqn.result not in slices or eqn.result in read]


def _is_computed(eqn: FlatEqn) -> bool:
    """Whether instructions compute the float32 result of an equation."""
    return eqn.outvars[0].aval.dtype == np.float32 and bool(codes_of(eqn))


def _sees(eqn: FlatEqn, value: FlatVar, spaces: Mapping[Any, Space]) -> bool:
    """Whether an equation reads a value in the same rows and shape in which another equation computes the value."""
    made, space = spaces[value], spaces.get(eqn.result)
    return space is not None and made[:2] == space[:2] and _view(eqn, value, space) == made.view


def _program(
    eqns: Sequence[FlatEqn], results: Sequence[FlatVar], spaces: Mapping[Any, Space], slices: Mapping[Any, FlatEqn]
) -> FlatEqn | None:  # fmt: skip
    """The equation that replaces others; None if the kernel cannot run the program."""
    sliced = {atom: slices[atom] for eqn in eqns for atom in eqn.invars if _is_of_rows(atom, eqn, spaces, slices)}
    eqns = (*sliced.values(), *eqns)
    inside = {eqn.outvars[0]: ~place for place, eqn in enumerate(eqns)}
    arrays: dict[tuple[Any, Shape], tuple[int, Any]] = {}  # the place and atom of each array
    operands: dict[tuple[int, int], int] = {}  # numbers arrays and first columns
    # For each equation, the place of each operand among the arrays, or ~ the place of the equation that computes the
    # operand; and the same with numbers of operands.
    places: list[list[int]] = []
    numbers: list[list[int]] = []
    for eqn in eqns:
        of_eqn, read = list[int](), list[int]()
        is_slice = eqn.result in sliced
        for atom in eqn.invars:
            if _is_value(atom) and atom in inside:
                of_eqn.append(inside[atom])
                read.append(inside[atom])
                continue
            name = atom if _is_value(atom) else np.asarray(atom.val, atom.aval.dtype).tobytes()
            view = atom.aval.shape if is_slice else _view(eqn, atom, spaces[eqn.result])
            place, _ = arrays.setdefault((name, view), (len(arrays), atom))
            of_eqn.append(place)
            first = eqn.params["start_indices"][-1] if is_slice else 0
            read.append(operands.setdefault((place, first), len(operands)))
        places.append(of_eqn)
        numbers.append(read)
    code = RowCode(list(operands), [view for _, view in arrays])
    values: dict[FlatVar, int] = {}
    for eqn, of_eqn in zip(eqns, numbers, strict=True):
        read = [number if number >= 0 else values[eqns[~number].outvars[0]] for number in of_eqn]
        value = read[0]
        for place, instruction in enumerate(codes_of(eqn) or ()):
            value = code.add(instruction, (value, *read) if place else tuple(read))
        values[eqn.outvars[0]] = value
    program = code.program(
        spaces[results[0]].columns, [RowResult(values[x], spaces[x].view, x.aval.shape) for x in results]
    )
    if program is None:
        return None
    steps = tuple(
        (eqn.primitive, tuple(sorted(eqn.params.items())), tuple(of_eqn))
        for eqn, of_eqn in zip(eqns, places, strict=True)
    )
    params = {"program": program, "steps": steps, "results": tuple(~inside[result] for result in results)}
    return FlatEqn(ROW_PROGRAM, params, tuple(atom for _, atom in arrays.values()), tuple(results), eqns[-1].scope)


def _is_of_rows(
    atom: Any, eqn: FlatEqn, spaces: Mapping[Any, Space], slices: Mapping[Any, FlatEqn]
) -> bool:  # fmt: skip
    """Whether an equation reads a slice of columns, whose array may have one row in place of several."""
    if not _is_value(atom) or atom not in slices:
        return False
    space, shape = spaces[eqn.result], atom.aval.shape
    if _view(eqn, atom, space) != shape or len(shape) != len(space.outer) + 1 or shape[-1] != space.columns:
        return False
    return all(size in (1, whole) for size, whole in zip(shape[:-1], space.outer, strict=True))


# Running -------------------------------------------------------------------------------------------------------------


def row_program_rule(params: Mapping[str, Any]) -> Callable[..., Any]:
    """The rule of joined equations."""
    return partial(computed, **params)


@with_kernel(LARGE_ROWS)
def computed(*arrays: Array, program: RowProgram, steps: tuple[Any, ...], results: tuple[int, ...]) -> Any:
    """The results of some of the joined equations, each computed by its rule."""
    values: list[Array] = []
    for primitive, params, places in steps:
        read = [arrays[place] if place >= 0 else values[~place] for place in places]
        values.append(RULES.get(primitive.name, as_it_is)(primitive, dict(params))(*read))
    found = tuple(values[place] for place in results)
    return found if len(found) > 1 else found[0]
