"""Computes elementwise functions of an array that is split along the last axis on its parts.

The gates of an RNN and of a gated perceptron are parts of one product. If a bias is added before the parts are taken,
the sum and the functions of the parts are then one program on rows, which reads the columns of each part.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import jax
from jax.extend.core.primitives import slice_p

from jaxdml._exact.flat import FlatEqn, FlatJaxpr, FlatVar, is_value
from jaxdml._exact.rows import codes_of, is_elementwise, is_slice_of_columns


def with_sunk_slices(flat: FlatJaxpr) -> list[FlatEqn]:
    """The equations, where slices of columns of elementwise results are elementwise results of slices.

    A result is sliced if all that reads it are slices that do not overlap and that elementwise functions read.
    """
    eqns = flat.eqns
    users: dict[Any, list[FlatEqn]] = defaultdict(list)
    for eqn in eqns:
        for atom in set(filter(is_value, eqn.invars)):
            users[atom].append(eqn)
    kept = set(filter(is_value, flat.outvars))
    sunk: set[FlatVar] = set()  # results of equations that are not computed
    parts: dict[FlatVar, list[FlatEqn]] = {}  # maps results of slices to the equations that compute them
    for eqn in reversed(eqns):
        value = eqn.result
        if value is None or value in kept or not _may_sink(eqn, users):
            continue
        sunk.add(value)
        for atom in set(filter(is_value, eqn.invars)):
            users[atom] = [user for user in users[atom] if user is not eqn]
        for part in users[value]:
            *slices, last = parts[part.outvars[0]] = _on_part(eqn, part)
            for each in slices:
                users[each.invars[0]].append(each)
            for atom in set(filter(is_value, last.invars)):
                users[atom].append(last)

    def emitted(eqn: FlatEqn) -> list[FlatEqn]:
        done, pending = list[FlatEqn](), [eqn]
        while pending:
            each = pending.pop()
            computed = parts.get(each.outvars[0], [each]) if each.outvars else [each]
            if each is computed[-1]:
                done.append(each)
            else:
                pending += reversed(computed)
        return done

    return [each for eqn in eqns if eqn.result is None or eqn.result not in sunk for each in emitted(eqn)]


def _slice(eqn: FlatEqn, operand: Any, result: FlatVar, start: int, end: int) -> FlatEqn:
    """Columns of an operand; `eqn` has the scope."""
    shape = operand.aval.shape
    params = {
        "start_indices": (*(0,) * (len(shape) - 1), start),
        "limit_indices": (*shape[:-1], end),
        "strides": None,
    }
    return FlatEqn(slice_p, params, (operand,), (result,), eqn.scope)


def _may_sink(eqn: FlatEqn, users: Mapping[Any, Sequence[FlatEqn]]) -> bool:
    """Whether an equation is elementwise, and only slices of its columns read its result."""
    slices = users.get(eqn.result, ())
    if not slices or not (is_elementwise(eqn) or _broadcasts(eqn)):
        return False
    if not all(is_slice_of_columns(each) and len(each.outvars) == 1 for each in slices):
        return False
    ends = sorted((each.params["start_indices"][-1], each.params["limit_indices"][-1]) for each in slices)
    are_apart = all(before[1] <= after[0] for before, after in pairwise(ends))
    return are_apart and all(codes_of(user) for each in slices for user in users[each.outvars[0]])


def _broadcasts(eqn: FlatEqn) -> bool:
    """Whether an equation broadcasts an array along other axes than the last one, and the last axes are the same."""
    if eqn.primitive.name != "broadcast_in_dim":
        return False
    shape, result, places = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape, eqn.params["broadcast_dimensions"]
    return bool(places) and places[-1] == len(result) - 1 and shape[-1] == result[-1] and shape[:-1] != result[:-1]


def _on_part(eqn: FlatEqn, part: FlatEqn) -> list[FlatEqn]:
    """The slices of an equation's operands, and the equation on them; `part` is a slice of the result."""
    start, end = part.params["start_indices"][-1], part.params["limit_indices"][-1]
    slices: dict[Any, FlatEqn] = {}
    read: list[Any] = []
    for atom in eqn.invars:
        if atom.aval.shape[-1:] != eqn.outvars[0].aval.shape[-1:]:
            read.append(atom)
            continue
        if atom not in slices:
            aval = jax.core.ShapedArray((*atom.aval.shape[:-1], end - start), atom.aval.dtype)
            slices[atom] = _slice(eqn, atom, FlatVar(aval), start, end)
        read.append(slices[atom].outvars[0])
    params = dict(eqn.params)
    if "shape" in params:
        params["shape"] = (*params["shape"][:-1], end - start)
    return [*slices.values(), eqn._replace(params=params, invars=tuple(read), outvars=part.outvars)]
