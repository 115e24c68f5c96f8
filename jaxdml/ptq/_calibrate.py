"""Calibration: runs batches through the float function, and updates the observers of the values to quantize."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._graph.evaluate import evaluate
from jaxdml._graph.graph import Graph, Node, Operator, only_reading_extremes
from jaxdml.errors import ModelError, PtqError
from jaxdml.ptq._build.operators import CONVOLUTION
from jaxdml.ptq._choose.equalize import CHANNELS
from jaxdml.ptq._choose.moments import MOMENTS, moments_node
from jaxdml.ptq._choose.progress import Progress
from jaxdml.ptq._choose.unit import Unit
from jaxdml.ptq._grids.channels import Channels
from jaxdml.ptq._grids.measured import Measured, updated
from jaxdml.ptq._grids.observers import MinMax, Statistics
from jaxdml.ptq._integers.adapt import alike
from jaxdml.ptq._trace.scans import bound, with_body
from jaxdml.ptq._trace.traced import Traced, leaves_of, structs_of
from jaxdml.ptq._trace.values import Value, factor_name


def batches_of(batches: Any) -> tuple[tuple[Any, ...], Iterator[tuple[Any, ...]]]:
    """Shapes and types of the first batch, and an iterator over all batches as tuples of inputs.

    Raises:
      PtqError: if batches is empty, a single batch, or not iterable, or if the first batch is not made of numbers.
    """
    if hasattr(batches, "dtype"):
        raise PtqError("batches is one array, expected an iterable of batches: write [array]")
    if not isinstance(batches, Iterable) or isinstance(batches, str | bytes | Mapping):
        raise PtqError(f"batches is of type {type(batches).__name__}, expected an iterable of arrays or tuples")
    rest = iter(batches)
    held = list(itertools.islice(rest, 1))
    if not held:
        raise PtqError("batches is empty: calibration needs at least one batch")
    return structs_of(_inputs(held[0]), "batch 0"), _streamed(held, rest)


def _streamed(held: list[Any], rest: Iterator[Any]) -> Iterator[tuple[Any, ...]]:
    """Yields all batches without keeping a reference to any of them."""
    yield _inputs(held.pop())
    yield from map(_inputs, rest)


def with_first(batches: Iterator[tuple[Any, ...]]) -> tuple[tuple[Any, ...], Iterator[tuple[Any, ...]]]:
    """The first batch alone, and all batches."""
    first = next(batches)
    return (first,), _streamed([first], batches)


def _inputs(batch: Any) -> tuple[Any, ...]:
    return tuple(batch) if type(batch) in (tuple, list) else (batch,)


@contextlib.contextmanager
def named(number: int) -> Iterator[None]:
    """Turns a ModelError or PtqError into a PtqError that names the batch."""
    try:
        yield
    except (ModelError, PtqError) as error:
        raise PtqError(f"batch {number}: {error}") from error.__cause__


class Calibration:
    """Runs batches through the float function, and updates observers.

    The program is compiled once for all units that differ only in the values of their constants.
    """

    def __init__(self, traced: Traced, unit: Unit, observers: Mapping[Value, Statistics]) -> None:
        """`observers` maps values to observers; observers in the body of a scan are stacked over layers."""
        self._unit, self._observers, self._sources = unit, observers, _sources(unit, observers)
        self._names = {
            value: str(_of_observer(value, STATE, value.scan)) for value in observers if value not in self._sources
        }
        graph = _with_observers(unit, observers)
        constants_of = {scan: each.graph.constants for scan, each in unit.each()}
        small = {name: x for name, x in self._constants(graph).items() if x.size <= 1}
        filters = self._filters = {node.inputs[1] for node in graph.nodes if node.operator is CONVOLUTION}

        @jax.jit
        def step(
            states: dict[str, Statistics], large: dict[str, Any], *inputs: Any
        ) -> tuple[dict[str, Statistics], Any, dict[str, Measured]]:
            program = traced.program(inputs)
            sizes, first = ([each.avals[name].shape for name in each.inputs] for each in (program, unit.program))
            own = (
                graph
                if program.signature() == traced.signature and sizes == first
                else _with_known_observers(alike(unit, constants_of, program), observers)
            )
            given = dict(zip(program.inputs, leaves_of(inputs), strict=True))
            stored = {name: _from_channels_last(x) if name in filters else x for name, x in large.items()}
            values = evaluate(bound(own.nodes, program), {**own.constants, **small, **stored, **given, **states})
            after = {
                name: values.get(str(_of_observer(value, AFTER, value.scan)), states[name])
                for value, name in self._names.items()
            }
            measured = {
                str(value): values[name]
                for value in set(self._sources.values()) if (name := str(_of_observer(value, AFTER))) in values
            }  # fmt: skip
            return after, {name: state.is_finite for name, state in after.items()}, measured

        self._step = step

    def _constants(self, graph: Graph) -> dict[str, Any]:
        states = set(self._names.values())
        return {name: value for name, value in graph.constants.items() if name not in states}

    def observed(self, unit: Unit, batches: Iterable[tuple[Any, ...]], progress: bool) -> dict[Value, Any]:
        """The observers after all batches.

        Args:
          unit: the unit, or one with other arrays as constants.
          batches: tuples of the function's inputs.
          progress: whether to print the number of batches on stderr.

        Raises:
          PtqError: if a batch does not fit the function, if an observer fails, or if a value is NaN or infinite; the
            error names the batch.
        """
        graph = _with_observers(unit, self._observers)
        large = {name: x for name, x in self._constants(graph).items() if x.size > 1}
        large |= {name: _channels_last(large[name]) for name in self._filters & large.keys()}
        large = jax.device_put(large)
        states = jax.device_put({name: graph.constants[name] for name in self._names.values()})
        found = {value: observer for value, observer in self._observers.items() if value in self._sources}
        with Progress(progress) as line:
            for number, inputs in enumerate(batches):
                structs_of(inputs, f"batch {number}")
                with named(number):
                    states, flags, measured = self._step(states, large, *inputs)
                flags, measured = jax.device_get((flags, measured))  # waits, so that at most one batch is in flight
                for value, observer in found.items():
                    source = self._sources[value]
                    batch = measured.get(str(source))
                    if batch is None:
                        continue  # this trace has no name for the value
                    factors = graph.constants.get(factor_name(value.base), np.float32(1))
                    found[value] = updated(observer, batch if source == value else batch.multiplied(factors.ravel()))
                finite = {value: flags[name] for value, name in self._names.items()}
                finite |= {value: observer.is_finite for value, observer in found.items()}
                for value in self._observers:
                    if not np.all(finite[value]):
                        raise PtqError(
                            f"batch {number}: {unit.described(value)} is already NaN or infinite in the float "
                            "function; look for NaN and infinity in the batch and in params, or leave the batch out"
                        )
                line.show(f"calibrating: {number + 1} batches")
        states = jax.device_get(states)
        return found | {value: states[name] for value, name in self._names.items()}


def check_seen(unit: Unit, observers: Mapping[Value, Statistics]) -> None:
    """Rejects observers of values that have no elements.

    Raises:
      PtqError: if a value has no elements in any batch.
    """
    for value, observer in observers.items():
        if not np.all(observer.count):
            remedy = "calibration needs batches that are not empty"
            raise PtqError(f"no batch has elements for {unit.described(value)}: {remedy}")


# XLA transposes filters to this order on CPUs, in a kernel for each of them, unless they have it already.
def _channels_last(filters: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(filters, (0, 1), (-1, -2)))


def _from_channels_last(filters: Any) -> Any:
    return jnp.moveaxis(filters, (-1, -2), (0, 1))


STATE, AFTER = "state", "after"  # roles: an observer before a batch, and after it


@jax.jit  # JAX traces and lowers it once for all values of one shape
def _observe(state: Statistics, x: Any, factor: Any = None) -> Statistics:
    return state.update(x if factor is None else x.astype(np.float32) * factor)


OBSERVE = Operator("observe", _observe)


@functools.partial(jax.jit, static_argnames="axis")
def _measure(x: Any, factor: Any = None, *, axis: int | None) -> Measured:
    return Measured.of(x if factor is None else x.astype(np.float32) * factor, axis)


MEASURE = Operator("observe", _measure)


def _sources(unit: Unit, observers: Mapping[Value, Statistics]) -> dict[Value, Value]:
    """Maps each observer that NumPy updates to the observer for which XLA measures: itself, or that of its channels.

    XLA updates observers in bodies of scans, and those of other classes, whose `update` takes arrays of JAX.
    """
    in_numpy = [value for value, each in observers.items() if not value.scan and type(each) in (MinMax, Channels)]
    of_channels = {value.base: value for value in in_numpy if value.role}
    read = _reads(unit)
    return {value: value if value.role else of_channels.get(read(value)[0], value) for value in in_numpy}


def _reads(unit: Unit) -> Callable[[Value], tuple[str, ...]]:
    """A function that maps a value to what its observer reads: the value's name, and that of its factors if any."""
    extremes, constants = only_reading_extremes(unit.graph), unit.graph.constants

    def read(value: Value) -> tuple[str, ...]:
        if value.role:
            return (value.base,)
        factors = factor_name(value.base)
        return (value.base, factors) if factors in constants else (_ranged(extremes, value.base),)

    return read


def _of_observer(value: Value, role: str, scan: str = "") -> Value:
    return Value(value.base, value.role + role, scan)


def _ranged(extremes: Mapping[str, Node], name: str) -> str:
    """The value that gives `name` its range.

    If a maximum or minimum is the only operator that reads `name`, the value is its result, else `name`. The elements
    that a maximum leaves out, such as the -1e9 of a mask, are clamped, which does not change the result.
    """
    while extreme := extremes.get(name):
        name = extreme.outputs[0]
    return name


def _with_known_observers(unit: Unit, observers: Mapping[Value, Statistics]) -> Graph:
    """The float graph of another trace, with the observers of all values that it has.

    Results of operators that only move elements have other names in another trace, or are not there. They have no
    ranges, but a contraction may read their channels. Factors of channels are chosen from the first batch alone.
    """
    values = {(scan, name) for scan, each in unit.each() for name in (*each.graph.inputs, *each.graph.producers())}
    known = {
        value: observer for value, observer in observers.items()
        if value.role != CHANNELS or (value.scan, value.base) in values
    }  # fmt: skip
    return _with_observers(unit, known)


def _with_observers(unit: Unit, observers: Mapping[Value, Statistics], scan: str = "") -> Graph:
    """The float graph, with a node that updates each observer; observers are constants of the graph."""
    nodes, constants = list[Node](), dict[str, Any](unit.graph.constants)
    for node in unit.graph.nodes:
        body = unit.bodies.get(node.outputs[0])
        if body is not None:
            assert body.loop is not None
            name = node.outputs[0]
            own = [value for value in observers if value.scan == name]
            updates = {str(_of_observer(each, AFTER)): str(_of_observer(each, STATE)) for each in own}
            node, stacked = with_body(node, _with_observers(body, observers, name), body.loop, updates)
            constants |= stacked
        nodes.append(node)
    outputs, read, sources = list(unit.graph.outputs), _reads(unit), _sources(unit, observers)
    for value in (value for value in observers if value.scan == scan and sources.get(value, value) == value):
        state, after = str(_of_observer(value, STATE)), str(_of_observer(value, AFTER))
        if value in sources:
            options = {"axis": getattr(observers[value], "axis", None)}
            nodes.append(Node(MEASURE, read(value), (after,), options, name=value.base))
        elif value.role == MOMENTS:
            nodes.append(moments_node(unit, state, value.base, after))
        else:
            nodes.append(Node(OBSERVE, (state, *read(value)), (after,), name=value.base))
        if value not in sources:
            constants[state] = observers[value]
        outputs.append(after)
    return unit.graph.replace(nodes=tuple(nodes), outputs=tuple(outputs), constants=constants)
