"""Removes transposes that undo each other, also where slices, flushes or an elementwise function lie between them.

vmap may put the batch behind the columns of a product, which gives such pairs. They would end a program on rows.
"""

from collections import defaultdict
from typing import Any

import jax
from jax.extend.core.primitives import slice_p, transpose_p

from jaxdml._exact.flat import FLUSH, FlatEqn, FlatJaxpr, FlatVar, is_value
from jaxdml._exact.rows import is_elementwise

Order = tuple[int, ...]


def without_pairs_of_transposes(flat: FlatJaxpr) -> FlatJaxpr:
    """The jaxpr, where elementwise functions and slices of transposed arrays are transposed functions and slices."""
    eqns = [each for eqn in flat.eqns for each in _as_slices(eqn)]
    if not any(eqn.primitive is transpose_p for eqn in eqns):
        return flat._replace(eqns=eqns)
    readers: dict[Any, list[FlatEqn | None]] = defaultdict(list)
    for eqn in (*eqns, None):
        for atom in filter(is_value, flat.outvars if eqn is None else eqn.invars):
            readers[atom].append(eqn)
    same: dict[Any, Any] = {}  # maps values to those that replace them
    sources: dict[Any, tuple[Any, Order]] = {}  # for each transposed value, the operand and the order of its axes
    found: list[FlatEqn] = []

    def add_transposed(eqn: FlatEqn, source: Any, order: Order) -> None:
        """Adds the transpose that computes the result of an equation."""
        result = eqn.outvars[0]
        source, order = _composed(sources, source, order)
        if order == tuple(range(len(order))):
            same[result] = source
            return
        sources[result] = source, order
        found.append(FlatEqn(transpose_p, {"permutation": order}, (source,), (result,), eqn.scope))

    for given in eqns:
        eqn = given._replace(invars=tuple(same.get(atom, atom) if is_value(atom) else atom for atom in given.invars))
        orders = {sources[atom][1] if atom in sources else None for atom in eqn.invars if atom.aval.shape}
        order = orders.pop() if len(orders) == 1 else None
        is_undone = all(each is not None and each.primitive is transpose_p for each in readers[given.result])
        if eqn.primitive is transpose_p:
            add_transposed(eqn, eqn.invars[0], tuple(eqn.params["permutation"]))
        elif order is not None and (eqn.primitive in (slice_p, FLUSH) or (is_elementwise(eqn) and is_undone)):
            moved = _before(eqn, order, sources)
            found.append(moved)
            add_transposed(eqn, moved.outvars[0], order)
        else:
            found.append(eqn)
    outvars = [same.get(atom, atom) if is_value(atom) else atom for atom in flat.outvars]
    return flat._replace(eqns=_without_unread(found, outvars), outvars=outvars)


def _as_slices(eqn: FlatEqn) -> list[FlatEqn]:
    """The slices that replace a split; any other equation itself."""
    if eqn.primitive.name != "split" or eqn.is_exact:
        return [eqn]
    axis, shape, start, slices = eqn.params["axis"], eqn.invars[0].aval.shape, 0, []
    for size, part in zip(eqn.params["sizes"], eqn.outvars, strict=True):
        starts, ends = [0] * len(shape), list(shape)
        starts[axis], ends[axis] = start, start + size
        params = {"start_indices": tuple(starts), "limit_indices": tuple(ends), "strides": None}
        slices.append(FlatEqn(slice_p, params, eqn.invars, (part,), eqn.scope))
        start += size
    return slices


def _composed(sources: dict[Any, tuple[Any, Order]], value: Any, order: Order) -> tuple[Any, Order]:
    """The value and the order of its axes that give a transpose of a value, which may be transposed itself."""
    if value not in sources:
        return value, order
    source, inner = sources[value]
    return source, tuple(inner[axis] for axis in order)


def _before(eqn: FlatEqn, order: Order, sources: dict[Any, tuple[Any, Order]]) -> FlatEqn:
    """An equation whose operands are all transposed by an order, on the arrays before the transposes."""

    def untransposed(values: Any) -> tuple[Any, ...]:
        return tuple(value for _, value in sorted(zip(order, values, strict=True), key=lambda pair: pair[0]))

    params = {
        key: untransposed(value) if key in ("start_indices", "limit_indices", "strides") and value else value
        for key, value in eqn.params.items()
    }
    aval = eqn.outvars[0].aval
    result = FlatVar(jax.core.ShapedArray(untransposed(aval.shape), aval.dtype))
    operands = tuple(sources[atom][0] if atom.aval.shape else atom for atom in eqn.invars)
    return eqn._replace(params=params, invars=operands, outvars=(result,))


def _without_unread(eqns: list[FlatEqn], outvars: list[Any]) -> list[FlatEqn]:
    """The equations without slices and transposes whose results nothing reads."""
    read, kept = set(filter(is_value, outvars)), []
    for eqn in reversed(eqns):
        if eqn.primitive in (slice_p, transpose_p) and eqn.result not in read:
            continue
        read.update(filter(is_value, eqn.invars))
        kept.append(eqn)
    return kept[::-1]
