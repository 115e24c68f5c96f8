"""Rewrites loops that slice weights by a counter, such as `w[i]` in a `lax.fori_loop`, as scans over the slices.

Quantization then sees each layer's weights. In the loop as the user wrote it, a slice counts as data, not as weights.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal

from jaxdml._arithmetic.calls import called_jaxpr
from jaxdml._operators.fake_quantize import NAME_IN_JAXPRS

Array = Any
# Functions that compute each element of their result from the elements at the same index.
INTEGER_FUNCTIONS: Mapping[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "convert_element_type": np.asarray,
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "select_n": lambda which, *cases: np.choose(which, cases, mode="clip"),
    "sub": np.subtract,
}


class _Value:
    """A value of a body without calls; a jaxpr that is called twice has two values for each of its variables."""

    def __init__(self, aval: Any) -> None:
        self.aval = aval


@dataclass(frozen=True, eq=False)
class _Equation:
    """An equation of a body without calls; its inputs are values and literals."""

    primitive: Any
    params: Mapping[str, Any]
    inputs: Sequence[Any]
    outputs: Sequence[_Value]
    scope: str

    @property
    def read(self) -> set[Any]:
        """The inputs that are values."""
        return {atom for atom in self.inputs if not isinstance(atom, Literal)}


@dataclass(eq=False)
class _Body:
    """The body of a scan. Its inputs are, in order, arrays that all steps share, carried values, and sequences.

    Attributes:
      inputs, outputs: its inputs and results.
      first: the place of the first carried value among the inputs.
      after: the place of the first sequence.
      constants: maps the values of captured arrays to these arrays.
      equations: the equations, without calls.
    """

    inputs: Sequence[_Value]
    first: int
    after: int
    outputs: Sequence[Any] = ()
    constants: dict[_Value, Any] = field(default_factory=dict)
    equations: list[_Equation] = field(default_factory=list)


@dataclass(frozen=True)
class _Slices:
    """Consecutive slices of size 1 along an axis, one for each step."""

    axis: int
    start: int


def over_slices(
    eqn: Any, known: Sequence[np.ndarray | None], are_weights: Sequence[bool], are_read: Sequence[bool]
) -> Callable[..., list[Array]] | None:
    """Rewrites a scan whose body slices weights by a counter as a scan over the slices; None for other scans.

    A counter is a sequence of known integers, or a carried integer to which each step adds a constant and whose last
    value nothing reads.

    Args:
      eqn: the equation of the scan.
      known: for each input, its value if it is a literal, a captured array or an iota, else None.
      are_weights: for each input, whether it is a parameter, possibly with its axes moved. The sizes of other arrays
        may depend on those of the function's inputs.
      are_read: for each result, whether anything reads it.
    """
    body, length = _body(eqn), eqn.params["length"]
    weights = [var for var, is_weight in zip(body.inputs[: body.first], are_weights, strict=False) if is_weight]
    longest = max((size for var in weights for size in var.aval.shape), default=0)
    if not isinstance(length, int) or not 1 <= length <= longest:  # before making arrays as long as the loop
        return None
    counters = _counters(eqn, body, known, are_read)
    slices = _slices(body, weights, counters, length)
    return _looped(eqn, body, counters, slices) if slices else None


def _body(eqn: Any) -> _Body:
    """The body of a scan, with its calls replaced by the equations that they call."""
    closed = eqn.params["jaxpr"]
    jaxpr = closed.jaxpr
    # Inside the body, a sequence has one axis fewer, and so has a result that the scan stacks.
    carried = sum(var.aval.ndim == at.aval.ndim for var, at in zip(jaxpr.outvars, eqn.outvars, strict=True))
    after = sum(var.aval.ndim == at.aval.ndim for var, at in zip(jaxpr.invars, eqn.invars, strict=True))
    body = _Body([_Value(var.aval) for var in jaxpr.invars], after - carried, after)
    body.outputs = _inlined(body, jaxpr, closed.consts, body.inputs, "")
    return body


def _inlined(body: _Body, jaxpr: Any, constants: Sequence[Any], inputs: Sequence[Any], scope: str) -> list[Any]:
    """Appends the equations of a jaxpr to the body, and returns the jaxpr's results."""
    names = dict(zip(jaxpr.invars, inputs, strict=True))
    for var, constant in zip(jaxpr.constvars, constants, strict=True):
        names[var] = _Value(var.aval)
        body.constants[names[var]] = constant

    def named(atom: Any) -> Any:
        return atom if isinstance(atom, Literal) else names[atom]

    for eqn in jaxpr.eqns:
        inside = "/".join(filter(None, (scope, str(eqn.source_info.name_stack))))
        called = None if str(eqn.params.get("name")).startswith(NAME_IN_JAXPRS) else called_jaxpr(eqn)
        given: list[Any] = list(map(named, eqn.invars))
        if called is None:
            results: list[Any] = [_Value(var.aval) for var in eqn.outvars]
            body.equations.append(_Equation(eqn.primitive, eqn.params, given, results, inside))
        else:
            results = _inlined(body, getattr(called, "jaxpr", called), getattr(called, "consts", ()), given, inside)
        names |= zip(eqn.outvars, results, strict=True)
    return list(map(named, jaxpr.outvars))


def _counters(
    eqn: Any, body: _Body, known: Sequence[np.ndarray | None], are_read: Sequence[bool]
) -> dict[int, np.ndarray]:
    """Maps the places of counters among the scan's inputs to their values, in the order of a sequence's elements."""
    found, length = {}, eqn.params["length"]
    for place, (var, value) in enumerate(zip(body.inputs, known, strict=True)):
        if value is None or place < body.first or var.aval.ndim or not np.issubdtype(var.aval.dtype, np.integer):
            continue
        if place >= body.after:
            found[place] = np.asarray(value)
        elif not are_read[place - body.first] and (by := _added(body, place)) is not None:
            values = (value + by * np.arange(length)).astype(var.aval.dtype)
            found[place] = values[::-1] if eqn.params["reverse"] else values
    return found


def _added(body: _Body, place: int) -> int | None:
    """The constant that each step adds to a carried value; None if a step does not add a constant to it."""
    var, result = body.inputs[place], body.outputs[place - body.first]
    for equation in body.equations:
        if result in equation.outputs and equation.primitive.name == "add" and var in equation.read:
            constants = [int(atom.val) for atom in equation.inputs if isinstance(atom, Literal)]
            return constants[0] if constants else None
    return None


def _slices(
    body: _Body, weights: Sequence[_Value], counters: Mapping[int, np.ndarray], length: int
) -> dict[int, _Slices]:  # fmt: skip
    """Maps the places of weights that the body reads only by consecutive slices to these slices."""
    numbers = {body.inputs[place]: values for place, values in counters.items()}  # in each step
    for equation in body.equations:
        function = INTEGER_FUNCTIONS.get(equation.primitive.name)
        if function is None or not equation.read or not numbers.keys() >= equation.read:
            continue
        (result,) = equation.outputs
        if result.aval.dtype.kind in "iub":
            inputs = (atom.val if isinstance(atom, Literal) else numbers[atom] for atom in equation.inputs)
            numbers[result] = np.broadcast_to(function(*inputs), length).astype(result.aval.dtype)
    found = dict[int, _Slices]()
    for place, var in enumerate(body.inputs):
        if var in weights and not any(var is each for each in body.outputs):
            first, *others = {_slice(each, var, numbers) for each in body.equations if var in each.read} or {None}
            found |= {} if first is None or others else {place: first}
    return found


def _slice(equation: _Equation, var: _Value, numbers: Mapping[Any, np.ndarray]) -> _Slices | None:
    """The slices that an equation of the body takes from an array; None if it reads the array in another way."""
    if equation.primitive.name != "dynamic_slice":
        return None
    _, *indices = equation.inputs
    axes = [axis for axis, atom in enumerate(indices) if not isinstance(atom, Literal) and atom in numbers]
    sizes = [1 if axis in axes else size for axis, size in enumerate(var.aval.shape)]
    if len(axes) != 1 or list(equation.params["slice_sizes"]) != sizes:
        return None
    (axis,) = axes
    places = numbers[indices[axis]]
    start = int(places[0])
    is_inside = 0 <= start <= var.aval.shape[axis] - len(places)
    return _Slices(axis, start) if is_inside and np.array_equal(places, start + np.arange(len(places))) else None


def _looped(
    eqn: Any, body: _Body, counters: Mapping[int, np.ndarray], slices: Mapping[int, _Slices]
) -> Callable[..., list[Array]]:  # fmt: skip
    """The loop as a function of the scan's inputs; slices, and counters that the body still reads, are sequences."""
    length, reverse, unroll = (eqn.params[key] for key in ("length", "reverse", "unroll"))
    sliced = {body.inputs[place]: each for place, each in slices.items()}
    read = _read(body, counters, sliced)
    carried = range(body.first, body.after)

    def looped(*arguments: Array) -> list[Array]:
        sequences = {place: x for place, x in enumerate(arguments) if place >= body.after and place not in counters}
        sequences |= {place: values for place, values in counters.items() if body.inputs[place] in read}
        sequences |= {place: _taken(arguments[place], each, length) for place, each in slices.items()}

        def step(state: dict[int, Array], own: dict[int, Array]) -> tuple[dict[int, Array], list[Array]]:
            inputs = {**dict(enumerate(arguments)), **state, **own}
            values = body.constants | {var: inputs[place] for place, var in enumerate(body.inputs)}
            results = _evaluated(body, values, sliced, read)
            stacked = [results[place] for place in range(len(carried), len(body.outputs))]
            return {place: results[place - body.first] for place in state}, stacked

        state = {place: arguments[place] for place in carried if place not in counters}
        state, stacked = lax.scan(step, state, sequences, length, reverse, unroll)
        # Nothing reads the results of counters: their first values take their place.
        return [*(state.get(place, arguments[place]) for place in carried), *stacked]

    return looped


def _taken(x: Array, slices: _Slices, length: int) -> Array:
    """The slices of x as a sequence."""
    if length != x.shape[slices.axis]:
        x = lax.slice_in_dim(x, slices.start, slices.start + length, axis=slices.axis)
    return jnp.moveaxis(x, slices.axis, 0)


def _read(body: _Body, counters: Mapping[int, np.ndarray], sliced: Mapping[Any, _Slices]) -> set[Any]:
    """The values that the body's results need, once the slices are in sequences and counters are not carried."""
    ends = {place - body.first for place in counters if place < body.after}
    read = {atom for place, atom in enumerate(body.outputs) if place not in ends and not isinstance(atom, Literal)}
    for equation in reversed(body.equations):
        if not read.isdisjoint(equation.outputs):
            read.update(equation.read.intersection(sliced) or equation.read)
    return read


def _evaluated(
    body: _Body, values: dict[Any, Array], sliced: Mapping[Any, _Slices], read: Set[Any]
) -> dict[int, Array]:  # fmt: skip
    """The body's results, keyed by their positions, without those that are not in `read`.

    Args:
      body: the body.
      values: maps constants and inputs of the body to their values, and the arrays in `sliced` to one slice.
      sliced: the arrays that are sequences now.
      read: the values to compute.
    """

    def value(atom: Any) -> Array:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in body.equations:
        if read.isdisjoint(equation.outputs):
            continue
        primitive, taken = equation.primitive, equation.read.intersection(sliced)
        with jax.named_scope(equation.scope) if equation.scope else nullcontext():
            if taken:
                (var,) = taken
                results = [lax.expand_dims(values[var], (sliced[var].axis,))]
            else:
                params = primitive.get_bind_params(dict(equation.params))
                results = primitive.bind(*map(value, equation.inputs), **params)
                results = results if primitive.multiple_results else [results]
        values.update(zip(equation.outputs, results, strict=True))
    outputs = enumerate(body.outputs)
    return {place: value(atom) for place, atom in outputs if isinstance(atom, Literal) or atom in read}
