"""Calibration: batches go through the function in floats, and observers see the values that become integers."""

import itertools
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jaxdml._graph.evaluate import evaluate
from jaxdml._graph.graph import Graph, without_dead
from jaxdml.errors import PtqError
from jaxdml.ptq._observers import Observer
from jaxdml.ptq._traced import Traced, bound


def batches_of(batches: Any) -> tuple[tuple[Any, ...], Iterator[tuple[Any, ...]]]:
    """The first batch, and all batches, each a tuple of inputs.

    Raises:
      PtqError: if there is none, or batches is one batch.
    """
    if hasattr(batches, "dtype"):
        raise PtqError("batches is one array, expected an iterable of batches: write [array]")
    if not isinstance(batches, Iterable):
        raise PtqError(f"batches is of type {type(batches).__name__}, expected an iterable of arrays or tuples")
    each = iter(batches)
    first = next(each, None)
    if first is None:
        raise PtqError("batches is empty: calibration needs at least one batch")
    return _inputs(first), map(_inputs, itertools.chain([first], each))


def _inputs(batch: Any) -> tuple[Any, ...]:
    return tuple(batch) if isinstance(batch, tuple | list) else (batch,)


def observed(
    traced: Traced, graph: Graph, observers: Mapping[str, Observer], batches: Iterable[tuple[Any, ...]],
    names: Mapping[str, str], dtype: Any, progress: bool,
) -> dict[str, tuple[Any, Any]]:  # fmt: skip
    """The range of each value that an observer sees.

    Args:
      traced: the function.
      graph: its graph in floats, with constants.
      observers: by the name of a value.
      batches: inputs of the function.
      names: what errors call a value.
      dtype: of the integers that are to stand for the values.
      progress: whether a line on stderr counts batches.

    Raises:
      PtqError: if a value is NaN or infinite; the error names the first, and its batch.
    """
    graph = without_dead(graph.replace(outputs=tuple(observers)))
    constants = {name: np.asarray(value) for name, value in graph.constants.items()}
    small = {name: value for name, value in constants.items() if value.size <= 1}
    large = jax.device_put({name: value for name, value in constants.items() if value.size > 1})

    @jax.jit
    def step(states: dict[str, Observer], large: dict[str, Any], *inputs: Any) -> tuple[dict[str, Observer], Any]:
        nodes = bound(graph.nodes, traced.program(inputs))
        given = dict(zip(graph.inputs, jax.tree.leaves(inputs), strict=True))
        values = evaluate(nodes, {**small, **large, **given})
        after = {name: state.update(values[name]) for name, state in states.items()}
        return after, {name: state.is_finite for name, state in after.items()}

    states, start = jax.device_put(dict(observers)), time.monotonic()
    for number, inputs in enumerate(batches):
        states, is_finite = step(states, large, *inputs)
        # Waits, so that at most one batch is on its way.
        wrong = [name for name, each in jax.device_get(is_finite).items() if not each]
        if wrong:
            first = next(name for name in observers if name in wrong)
            raise PtqError(
                f"batch {number} makes {names[first]} NaN or infinite in floats; look for such numbers in the batch "
                "and in params, or leave the batch out"
            )
        if progress:
            seconds = time.monotonic() - start
            print(f"\rcalibrating: {number + 1} batches, {seconds:.0f} s", end="", file=sys.stderr, flush=True)
    if progress:
        print(file=sys.stderr)
    empty = [name for name, state in states.items() if not state.count]
    if empty:
        raise PtqError(f"no batch has elements for {names[empty[0]]}: calibration needs batches that are not empty")
    return {name: state.range(dtype) for name, state in jax.device_get(states).items()}
