"""Calibration: batches go through the function in floats, and observers see the values that become integers."""

import itertools
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jaxdml._graph.evaluate import described, evaluate
from jaxdml._graph.graph import Node, Operator
from jaxdml.errors import PtqError
from jaxdml.ptq._loops import Body, scan_node
from jaxdml.ptq._observers import Observer
from jaxdml.ptq._traced import Traced, bound, shapes_of
from jaxdml.ptq._units import Unit


def batches_of(batches: Any) -> tuple[tuple[Any, ...], Iterator[tuple[Any, ...]]]:
    """Shapes and types of the first batch, and all batches, each a tuple of inputs.

    Raises:
      PtqError: if there is none, or batches is one batch.
    """
    if hasattr(batches, "dtype"):
        raise PtqError("batches is one array, expected an iterable of batches: write [array]")
    if not isinstance(batches, Iterable) or isinstance(batches, str | bytes | Mapping):
        raise PtqError(f"batches is of type {type(batches).__name__}, expected an iterable of arrays or tuples")
    rest = iter(batches)
    held = list(itertools.islice(rest, 1))
    if not held:
        raise PtqError("batches is empty: calibration needs at least one batch")
    return shapes_of(_inputs(held[0])), _streamed(held, rest)


def _streamed(held: list[Any], rest: Iterator[Any]) -> Iterator[tuple[Any, ...]]:
    """All batches; none is held any longer once it was given out."""
    yield _inputs(held.pop())
    yield from map(_inputs, rest)


def _inputs(batch: Any) -> tuple[Any, ...]:
    return tuple(batch) if type(batch) in (tuple, list) else (batch,)


def observed(
    traced: Traced, unit: Unit, observers: Mapping[str, Observer], batches: Iterable[tuple[Any, ...]], progress: bool
) -> dict[str, Observer]:
    """The observers, after they saw all batches.

    Args:
      traced: the function.
      unit: its graph in floats, with constants.
      observers: by the name of a value; those of a scan's body are stacked, the scan's name is before the value's.
      batches: inputs of the function.
      progress: whether a line on stderr counts batches.

    Raises:
      PtqError: if a value is NaN or infinite; the error names the first, and its batch; or if a value has no elements.
    """
    nodes, constants = _observing(unit)
    small = {name: value for name, value in constants.items() if value.size <= 1}
    large = jax.device_put({name: value for name, value in constants.items() if value.size > 1})

    @jax.jit
    def step(states: dict[str, Observer], large: dict[str, Any], *inputs: Any) -> tuple[dict[str, Observer], Any]:
        program = traced.program(inputs)
        given = dict(zip(program.inputs, jax.tree.leaves(inputs), strict=True))
        given |= {f"{name}:state": state for name, state in states.items()}
        values = evaluate(bound(nodes, program), {**small, **large, **given})
        after = {name: values[f"{name}:after"] for name in states}
        return after, {name: state.is_finite for name, state in after.items()}

    states, start = jax.device_put(dict(observers)), time.monotonic()
    for number, inputs in enumerate(batches):
        states, is_finite = step(states, large, *inputs)
        # Waits, so that at most one batch is on its way.
        wrong = {name for name, each in jax.device_get(is_finite).items() if not np.all(each)}
        if wrong:
            first = described_value(next(name for name in observers if name in wrong), unit)
            raise PtqError(
                f"batch {number} makes {first} NaN or infinite in floats; look for such numbers in the batch and in "
                "params, or leave the batch out"
            )
        if progress:
            seconds = time.monotonic() - start
            print(f"\rcalibrating: {number + 1} batches, {seconds:.0f} s", end="", file=sys.stderr, flush=True)
    if progress:
        print(file=sys.stderr)
    states = jax.device_get(states)
    empty = [name for name, state in states.items() if not np.all(state.count)]
    if empty:
        text = "calibration needs batches that are not empty"
        raise PtqError(f"no batch has elements for {described_value(empty[0], unit)}: {text}")
    return states


OBSERVE = Operator("observe", lambda state, x: state.update(x))


def _observing(unit: Unit) -> tuple[list[Node], dict[str, np.ndarray]]:
    """The nodes of a graph, and those that update observers; all constants, those of bodies after their scan's name."""
    nodes, constants = [], {name: np.asarray(value) for name, value in unit.graph.constants.items()}
    for node in unit.graph.nodes:
        name = node.outputs[0]
        if name not in unit.loops:
            nodes.append(node)
            continue
        inner = unit.loops[name]
        assert inner.loop is not None
        within, stacked = _observing(inner)
        owners = list(dict.fromkeys(inner.plan.grids.values()))
        after = tuple(f"{owner}:after" for owner in owners)
        names = (*stacked, *(f"{owner}:state" for owner in owners))
        body = Body(tuple(within), inner.program.inputs, (*inner.graph.outputs, *after), names, inner.loop.data)
        nodes.append(
            scan_node(node, body, name).replace(outputs=(*node.outputs, *(f"{name}/{each}" for each in after)))
        )
        constants |= {f"{name}/{each}": value for each, value in stacked.items()}
    observed = dict.fromkeys(unit.plan.grids.values())
    nodes += [Node(OBSERVE, (f"{owner}:state", owner), (f"{owner}:after",)) for owner in observed]
    return nodes, constants


def described_value(name: str, unit: Unit) -> str:
    """What errors call a value."""
    scan, _, inner = name.partition("/")
    if scan in unit.loops:
        return described_value(inner, unit.loops[scan])
    maker = unit.graph.producers().get(name)
    return f"what {described(maker)} computes" if maker else name.replace("_", " ")
