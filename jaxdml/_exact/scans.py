"""Finds scans whose body is one step: one native call then computes all steps.

Around the step, the body may compute values from constants of the loop. These are computed once. The body may also
flush inputs of the step. This is left out, because the kernel flushes what it reads.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdml._arithmetic.kernel_call import Kernel, with_kernel
from jaxdml._arithmetic.native_call import Result
from jaxdml._arithmetic.native_step import CONSTANT, SEQUENCE, Loop, Step, run, splits, takes
from jaxdml._exact.flat import FlatEqn, FlatJaxpr, is_value
from jaxdml._exact.kernel_calls import JOINED

Array = jax.Array
SAME = ("flush", "optimization_barrier")  # which the kernel needs not: it flushes floats that it reads, as one call


class Scan(NamedTuple):
    """A scan of steps.

    Attributes:
      step: the calls of a step; the results of its program are those of the scan, states first.
      loop: how steps follow each other.
      read: (*operands of the scan) -> the arguments of the first step, with whole sequences.
    """

    step: Step
    loop: Loop
    read: Callable[..., Any]


def scan_of(
    scan: FlatEqn, flat: FlatJaxpr, constants: Sequence[Any], run_eqns: Callable[..., None],
    read_atom: Callable[..., Any],
) -> Scan | None:  # fmt: skip
    """The scan of steps, if a scan is one.

    Args:
      scan: the equation of the scan.
      flat: the body, whose calls are joined.
      constants: the first inputs of the body.
      run_eqns: (equations, values) -> None; adds the results of the equations to the values.
      read_atom: (atom, values) -> the value of an atom.
    """
    params = scan.params
    steps = [eqn for eqn in flat.eqns if "step" in eqn.params and eqn.primitive is JOINED]
    if len(steps) != 1 or not isinstance(params["length"], int) or params["length"] < 1:
        return None
    if params["jaxpr"].effects:  # each step has them
        return None
    (eqn,) = steps
    step: Step = eqn.params["step"]
    inputs = flat.invars[len(constants) :]
    # In the body, an element of a sequence has one axis fewer, and a state has the same number of axes.
    in_sequences = sum(var.aval.ndim != atom.aval.ndim for var, atom in zip(inputs, scan.invars, strict=True))
    states = sum(atom.aval.ndim == var.aval.ndim for atom, var in zip(flat.outvars, scan.outvars, strict=True))
    shared = len(inputs) - in_sequences - states
    kinds: dict[Any, int] = dict.fromkeys((*flat.invars[: len(constants)], *inputs[:shared]), CONSTANT)
    kinds |= {value: place for place, value in enumerate(inputs[shared : shared + states])}
    kinds |= dict.fromkeys(inputs[shared + states :], SEQUENCE)
    sources: dict[Any, Any] = {}  # maps values to those that they are copies of
    ahead: list[FlatEqn] = []
    for other in flat.eqns:
        if other is eqn:
            continue
        operands = [*filter(is_value, other.invars)]
        if all(kinds.get(atom) == CONSTANT for atom in operands):
            ahead.append(other)
            kinds |= dict.fromkeys(other.outvars, CONSTANT)
        elif other.primitive.name in SAME and len(other.invars) == len(operands) == 1 and operands[0] in kinds:
            kinds[other.outvars[0]] = kinds[operands[0]]
            sources[other.outvars[0]] = sources.get(operands[0], operands[0])
        else:
            return None
    read_by = [kinds[atom] if is_value(atom) else CONSTANT for atom in eqn.invars]
    x, by, product, others = jax.tree.unflatten(eqn.params["tree"], range(len(eqn.invars)))
    of_avals = jax.tree.unflatten(eqn.params["tree"], [atom.aval for atom in eqn.invars])
    arguments = tuple(read_by[place] for place in (x, *others))
    if any(read_by[place] != CONSTANT for place in jax.tree.leaves((by, product))) or not takes(*of_avals):
        return None
    if arguments[0] == SEQUENCE or not flat.outvars or not all(atom in eqn.outvars for atom in flat.outvars):
        return None
    results = tuple(
        step.program.results[eqn.outvars.index(atom)]._replace(shape=atom.aval.shape) for atom in flat.outvars
    )
    views = (eqn.invars[x].aval.shape, *(view for place, view in enumerate(step.program.views) if place != step.place))
    for kind, view in zip(arguments, views, strict=True):
        if kind >= 0 and not view == results[kind].view == (*view[:-1], step.program.columns):
            return None
    sequences = tuple(range(states, len(results)))
    if not sequences and SEQUENCE not in arguments:
        return None  # the kernel takes the number of steps from a sequence
    loop = Loop(params["length"], arguments, sequences, bool(params["reverse"]))

    def read(*operands: Any) -> Any:
        values = dict(zip(flat.invars, (*constants, *operands), strict=True))
        run_eqns(ahead, values)
        atoms = (sources.get(atom, atom) if is_value(atom) else atom for atom in eqn.invars)
        return jax.tree.unflatten(eqn.params["tree"], [read_atom(atom, values) for atom in atoms])

    return Scan(step._replace(program=step.program._replace(results=results)), loop, read)


def _run(*operands: Array, scan: Scan, **_: Any) -> tuple[Array, ...]:
    x, by, product, others = scan.read(*operands)
    computed = run(x, by, product, others, scan.step, scan.loop)
    shapes = (each[0] for each in _results(scan=scan))
    return tuple(lax.reshape(y, shape) for y, shape in zip(computed, shapes, strict=True))


def _results(*_: Any, scan: Scan, **__: Any) -> list[Result]:
    steps = scan.loop.steps
    return [
        ((steps, *result.shape) if place in scan.loop.sequences else result.shape, jnp.float32)
        for place, result in enumerate(scan.step.program.results)
    ]


SCAN = Kernel(_run, _results, calls_kernels=True, splits=splits, is_of_trace=True)


@with_kernel(SCAN)
def scanned(*operands: Array, scan: Scan, compute: Callable[..., Any]) -> Any:
    """The results of a scan of steps; `compute` computes them without the kernel."""
    found = tuple(compute(*operands))
    return found if len(found) > 1 else found[0]
