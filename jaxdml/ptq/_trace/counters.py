"""Rewrites loops that slice arrays by a counter, such as `w[i]` in a `lax.fori_loop`, as scans over the slices.

Quantization then sees each layer's weights. In the loop as the user wrote it, a slice is computed data.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal

Array = Any
# Functions that compute each element of their result from the elements at the same index.
INTEGER_FUNCTIONS: Mapping[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "broadcast_in_dim": np.asarray,
    "convert_element_type": np.asarray,
    "lt": np.less,
    "mul": np.multiply,
    "select_n": lambda which, no, yes: np.asarray(np.where(which, yes, no)),
    "sub": np.subtract,
}


@dataclass(frozen=True)
class _Counter:
    """An integer that is known in each step: its values as a sequence of the scan, and its value after the loop."""

    values: np.ndarray
    last: np.ndarray | None = None


@dataclass(frozen=True)
class _Slices:
    """Consecutive slices of size 1 along an axis, one for each step."""

    axis: int
    start: int


@dataclass(frozen=True, eq=False)
class _Scan:
    """A scan whose body has shared arrays as its first inputs, then values that it carries, then sequences.

    Attributes:
      body: the jaxpr of the body.
      constants: the values of its constants.
      first: the place of the first carried value among the inputs.
      after: the place of the first sequence.
      length, reverse, unroll: the parameters of `lax.scan`.
    """

    body: Any
    constants: Sequence[Any]
    first: int
    after: int
    length: int
    reverse: bool
    unroll: Any


def over_slices(eqn: Any, known: Sequence[np.ndarray | None]) -> Callable[..., list[Array]] | None:
    """Rewrites a scan whose body slices arrays by a counter as a scan over the slices; None for other scans.

    A counter is a sequence of known integers, or an integer that the loop carries, and to which it adds a constant.

    Args:
      eqn: the equation of the scan.
      known: for each input, its value if it is a literal, a captured array or an iota, else None.
    """
    scan = _scan(eqn)
    counters = _counters(scan, known) if scan.length else {}
    slices = _slices(scan, counters)
    return _looped(scan, counters, slices) if slices else None


def _scan(eqn: Any) -> _Scan:
    closed = eqn.params["jaxpr"]
    body = closed.jaxpr
    # Inside the body, a sequence has one axis fewer, and so has a result that the scan stacks.
    carried = sum(var.aval.ndim == at.aval.ndim for var, at in zip(body.outvars, eqn.outvars, strict=True))
    after = sum(var.aval.ndim == at.aval.ndim for var, at in zip(body.invars, eqn.invars, strict=True))
    rest = (eqn.params[key] for key in ("length", "reverse", "unroll"))
    return _Scan(body, closed.consts, after - carried, after, *rest)


def _counters(scan: _Scan, known: Sequence[np.ndarray | None]) -> dict[int, _Counter]:
    """Maps the places of counters among the scan's inputs to their values."""
    found = {}
    for place, (var, value) in enumerate(zip(scan.body.invars, known, strict=True)):
        if value is None or place < scan.first or var.aval.ndim or not np.issubdtype(var.aval.dtype, np.integer):
            continue
        if place >= scan.after:
            found[place] = _Counter(np.asarray(value))
        elif (by := _added(scan, place)) is not None:
            values = (value + by * np.arange(scan.length + 1)).astype(var.aval.dtype)
            found[place] = _Counter(values[-2::-1] if scan.reverse else values[:-1], values[-1])
    return found


def _added(scan: _Scan, place: int) -> int | None:
    """The constant that each step adds to a carried value; None if the next value is computed in another way."""
    var, result = scan.body.invars[place], scan.body.outvars[place - scan.first]
    for eqn in scan.body.eqns:
        if result in eqn.outvars and eqn.primitive.name == "add" and var in _variables(eqn):
            constants = [int(atom.val) for atom in eqn.invars if isinstance(atom, Literal)]
            return constants[0] if constants else None
    return None


def _slices(scan: _Scan, counters: Mapping[int, _Counter]) -> dict[int, _Slices]:
    """Maps the places of shared arrays that the body reads only by consecutive slices to these slices."""
    numbers: dict[Any, np.ndarray] = {scan.body.invars[place]: each.values for place, each in counters.items()}
    for eqn in scan.body.eqns:
        function, variables = INTEGER_FUNCTIONS.get(eqn.primitive.name), set(_variables(eqn))
        if function and variables and numbers.keys() >= variables:
            inputs = (atom.val if isinstance(atom, Literal) else numbers[atom] for atom in eqn.invars)
            numbers[eqn.outvars[0]] = np.broadcast_to(function(*inputs), scan.length).astype(eqn.outvars[0].aval.dtype)
    found = {}
    for place, var in enumerate(scan.body.invars[: scan.first]):
        first, *others = {_slice(eqn, var, numbers) for eqn in scan.body.eqns if var in _variables(eqn)} or {None}
        if first is not None and not others and not any(var is each for each in scan.body.outvars):
            found[place] = first
    return found


def _slice(eqn: Any, var: Any, numbers: Mapping[Any, np.ndarray]) -> _Slices | None:
    """Which slices of an array an equation of the body takes; None if it reads the array in another way.

    JAX writes `w[i]` as a dynamic_slice, and as a gather if a size of w is symbolic.
    """
    x, *indices = eqn.invars
    if x is not var:
        return None
    if eqn.primitive.name == "dynamic_slice":
        axes = [axis for axis, atom in enumerate(indices) if not isinstance(atom, Literal) and atom in numbers]
    elif eqn.primitive.name == "gather" and indices[0].aval.shape == (1,):
        form = eqn.params["dimension_numbers"]
        is_plain = form.collapsed_slice_dims == form.start_index_map and indices[0] in numbers
        axes = [*form.start_index_map] if is_plain else []
        indices = indices * x.aval.ndim
    else:
        return None
    sizes = [1 if axis in axes else size for axis, size in enumerate(x.aval.shape)]
    if len(axes) != 1 or list(eqn.params["slice_sizes"]) != sizes:
        return None
    (axis,) = axes
    places, size = numbers[indices[axis]], x.aval.shape[axis]
    start = int(places[0])
    is_inside = isinstance(size, int) and 0 <= start <= size - len(places)
    return _Slices(axis, start) if is_inside and np.array_equal(places, start + np.arange(len(places))) else None


def _looped(scan: _Scan, counters: Mapping[int, _Counter], slices: Mapping[int, _Slices]) -> Callable[..., list[Array]]:
    """The loop as a function of the scan's inputs; slices, and counters that the body still reads, are sequences."""
    sliced = {scan.body.invars[place]: each for place, each in slices.items()}
    read = _read(scan, counters, sliced)
    places = range(scan.first, scan.after)

    def looped(*arguments: Array) -> list[Array]:
        sequences = {place: x for place, x in enumerate(arguments) if place >= scan.after and place not in counters}
        sequences |= {place: each.values for place, each in counters.items() if scan.body.invars[place] in read}
        sequences |= {place: _taken(arguments[place], each, scan.length) for place, each in slices.items()}

        def step(state: dict[int, Array], own: dict[int, Array]) -> tuple[dict[int, Array], list[Array]]:
            unread = {place: np.zeros((), each.values.dtype) for place, each in counters.items()}
            inputs = {**dict(enumerate(arguments)), **unread, **state, **own}
            values = dict(zip(scan.body.constvars, scan.constants, strict=True))
            values |= {var: inputs[place] for place, var in enumerate(scan.body.invars)}
            results = _evaluated(scan.body, values, sliced, read)
            stacked = [results[place] for place in range(len(places), len(scan.body.outvars))]
            return {place: results[place - scan.first] for place in state}, stacked

        state = {place: arguments[place] for place in places if place not in counters}
        state, stacked = lax.scan(step, state, sequences, scan.length, scan.reverse, scan.unroll)
        ends = {place: each.last for place, each in counters.items()} | state
        return [*(ends[place] for place in places), *stacked]

    return looped


def _taken(x: Array, slices: _Slices, length: int) -> Array:
    """The slices of x as a sequence."""
    if length != x.shape[slices.axis]:
        x = lax.slice_in_dim(x, slices.start, slices.start + length, axis=slices.axis)
    return jnp.moveaxis(x, slices.axis, 0)


def _read(scan: _Scan, counters: Mapping[int, _Counter], sliced: Mapping[Any, _Slices]) -> set[Any]:
    """The variables that the body's results need, once the slices are in sequences and counters are not carried."""
    ends = {place - scan.first for place in counters if place < scan.after}
    read = {atom for place, atom in enumerate(scan.body.outvars) if place not in ends and not isinstance(atom, Literal)}
    for eqn in reversed(scan.body.eqns):
        if not read.isdisjoint(eqn.outvars):
            read.update(() if _takes(eqn, sliced) else _variables(eqn))
    return read


def _evaluated(
    body: Any, values: dict[Any, Array], sliced: Mapping[Any, _Slices], read: Set[Any]
) -> dict[int, Array]:  # fmt: skip
    """The body's results by their places, without those that are not in `read`.

    Args:
      body: the jaxpr.
      values: maps its constants and inputs to their values, and those in `sliced` to one slice.
      sliced: the arrays that are sequences now.
      read: the variables to compute.
    """

    def value(atom: Any) -> Array:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for eqn in body.eqns:
        if read.isdisjoint(eqn.outvars):
            continue
        # The index of a slice is no longer computed.
        inputs = [value(atom) for atom in (eqn.invars[:1] if _takes(eqn, sliced) else eqn.invars)]
        scope = str(eqn.source_info.name_stack)
        with jax.named_scope(scope) if scope else nullcontext():
            if _takes(eqn, sliced):
                axis = sliced[eqn.invars[0]].axis
                results = inputs[0] if eqn.primitive.name == "gather" else lax.expand_dims(inputs[0], (axis,))
            else:
                results = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(dict(eqn.params)))
        values.update(zip(eqn.outvars, results if eqn.primitive.multiple_results else [results], strict=True))
    outputs = enumerate(body.outvars)
    return {place: value(atom) for place, atom in outputs if isinstance(atom, Literal) or atom in read}


def _takes(eqn: Any, sliced: Mapping[Any, _Slices]) -> bool:
    """Whether an equation takes slices of an array that is a sequence now."""
    return any(var in sliced for var in _variables(eqn)[:1])


def _variables(eqn: Any) -> list[Any]:
    return [atom for atom in eqn.invars if not isinstance(atom, Literal)]
