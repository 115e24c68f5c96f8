"""Valid calls of the functions, and wrong calls: valid ones with one mistake, and what their errors must say.

`problems` makes wrong calls eagerly after a right one, twice, and inside jit and vmap; the errors must be the same.
"""

import contextlib
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.descs import (
    ADD,
    BLOCKED,
    CONVOLUTION,
    CONVOLUTION_INTEGER,
    DEQUANTIZE,
    DEQUANTIZE_BLOCKS,
    DYNAMIC_QUANTIZE,
    MATRIX_MULTIPLY,
    MATRIX_MULTIPLY_INTEGER,
    MATRIX_MULTIPLY_TO_FLOAT,
    POOLING,
    QUANTIZE,
    QUANTIZE_BLOCKS,
)
from jaxdml import DescError


def u8(*shape):
    """Data filled with 7, or the zero point 3."""
    return np.full(shape, 7 if shape else 3, np.uint8)


def s8(*shape):
    """Data filled with 4, or the zero point 3."""
    return np.full(shape, 4 if shape else 3, np.int8)


def steps(*shape):
    """Scales that are all different."""
    return np.arange(1, math.prod(shape) + 1, dtype=np.float32).reshape(shape) / 8


HALF = np.asarray(0.5, np.float32)
GOOD = {
    DEQUANTIZE: {"input": u8(2, 3), "scale": HALF, "zero_point": u8()},
    QUANTIZE: {"input": np.full((2, 3), 1.5, np.float32), "scale": HALF, "zero_point": u8()},
    ADD: {
        "a": u8(2, 3), "a_scale": HALF, "a_zero_point": u8(),
        "b": s8(2, 3), "b_scale": HALF, "b_zero_point": s8(),
        "output_scale": HALF, "output_zero_point": u8(),
    },
    MATRIX_MULTIPLY: {
        "a": u8(2, 4, 5), "a_scale": HALF, "a_zero_point": u8(),
        "b": s8(2, 5, 6), "b_scale": HALF, "b_zero_point": s8(),
        "output_scale": HALF, "output_zero_point": u8(),
    },
    CONVOLUTION: {
        "input": u8(2, 4, 7, 9), "input_scale": HALF, "input_zero_point": u8(),
        "filter": s8(6, 4, 3, 4), "filter_scale": HALF, "filter_zero_point": s8(),
        "bias": np.zeros(6, np.int32), "output_scale": HALF, "output_zero_point": u8(),
    },
    MATRIX_MULTIPLY_INTEGER: {"a": u8(2, 4, 5), "a_zero_point": u8(), "b": s8(2, 5, 6), "b_zero_point": s8()},
    CONVOLUTION_INTEGER: {
        "input": u8(2, 4, 7, 9), "input_zero_point": u8(), "filter": s8(6, 4, 3, 4), "filter_zero_point": s8(),
    },
    DYNAMIC_QUANTIZE: {"input": np.full((2, 3), 1.5, np.float32)},
    MATRIX_MULTIPLY_TO_FLOAT: {
        "a": u8(2, 4, 5), "a_scale": HALF, "a_zero_point": u8(),
        "b": s8(2, 5, 6), "b_scale": HALF, "b_zero_point": s8(), "bias": np.zeros(6, np.float32),
    },
    POOLING: {
        "input": u8(2, 4, 7, 9), "input_scale": HALF, "input_zero_point": u8(),
        "output_scale": HALF, "output_zero_point": u8(), "window_size": (3, 4),
    },
    QUANTIZE_BLOCKS: {"input": np.full((2, 3), 1.5, np.float32), "scale": HALF, "zero_point": u8()},
    DEQUANTIZE_BLOCKS: {"input": u8(2, 3), "scale": HALF, "zero_point": u8()},
}  # fmt: skip
DATA = {
    DEQUANTIZE: ("input",),
    QUANTIZE: ("input",),
    ADD: ("a", "b"),
    MATRIX_MULTIPLY: ("a", "b"),
    CONVOLUTION: ("input", "filter"),
    MATRIX_MULTIPLY_INTEGER: ("a", "b"),
    CONVOLUTION_INTEGER: ("input", "filter"),
    DYNAMIC_QUANTIZE: ("input",),
    MATRIX_MULTIPLY_TO_FLOAT: ("a", "b"),
    POOLING: ("input",),
    QUANTIZE_BLOCKS: ("input",),
    DEQUANTIZE_BLOCKS: ("input",),
}
OF_FLOATS = (QUANTIZE, DYNAMIC_QUANTIZE, QUANTIZE_BLOCKS)  # operators of float data
SPATIAL = {"strides": 1, "dilations": 1, "start_padding": 0, "end_padding": 0}  # and their minimums
OPTIONS = {
    CONVOLUTION: {**SPATIAL, "group_count": 1},
    CONVOLUTION_INTEGER: {**SPATIAL, "group_count": 1},
    POOLING: {**SPATIAL, "window_size": 1},
}
OPTIONS_BY_NAME = [(operator, name) for operator, options in OPTIONS.items() for name in options]
# The parameter whose type determines the output's, for operators that have output_dtype.
OUTPUT_ZERO_POINT = {
    QUANTIZE: "zero_point",
    ADD: "output_zero_point",
    MATRIX_MULTIPLY: "output_zero_point",
    CONVOLUTION: "output_zero_point",
    DYNAMIC_QUANTIZE: None,
    POOLING: "output_zero_point",
    QUANTIZE_BLOCKS: "zero_point",
}


def ending(suffix):
    """[(operator, argument)] of all arguments whose names have this suffix."""
    return [(operator, name) for operator, good in GOOD.items() for name in good if name.endswith(suffix)]


def page_name(argument, operator=None):
    """The page's name of the tensor that is this argument of the function."""
    if operator in BLOCKED and argument in ("scale", "zero_point"):
        return f"QuantizationTensors[{int(argument == 'zero_point')}]"
    return "".join(word.capitalize() for word in argument.split("_")) + "Tensor"


def conversion(name, wrong, call):
    """The remedy for an argument that is not an array: the call, unless JAX cannot convert the argument."""
    is_object = isinstance(wrong, type | str | dict) or type(wrong) is object
    return f"; give an array for {name}, such as a layer's output" if is_object else f"; write {call}"


def upper(dtype):
    return np.dtype(dtype).name.upper()


def call(operator, arguments):
    return getattr(dml, operator)(**arguments)


def caught(operator, arguments):
    with pytest.raises(DescError) as error:
        call(operator, arguments)
    return error.value


class Bad(NamedTuple):
    """A wrong call: the valid one with `changes`; the error's (class, tensor, rule), and what it must say."""

    operator: str
    name: str
    changes: dict[str, Any]
    facts: tuple[type[DescError], str | None, str]
    phrases: tuple[str, ...]

    @property
    def arguments(self):
        return {**GOOD[self.operator], **self.changes}


def batches(cases: Callable[[], Iterable[tuple]]) -> Any:
    """A decorator that runs a test once for each operator, with its cases: (name, operator, changes, facts, *phrases).

    One test for each case would take pytest longer than the cases take. `make test` draws three operators.
    """
    every: dict[str, list[Bad]] = {}
    for name, operator, changes, facts, *phrases in cases():
        every.setdefault(operator, []).append(Bad(operator, name, changes, facts, tuple(phrases)))
    each = pytest.mark.parametrize("cases", every.values(), ids=every)
    return lambda test: pytest.mark.sampled(3)(each(test))


@contextlib.contextmanager
def compilations():
    """Records what JAX traces, lowers or compiles meanwhile."""
    events = []

    def listen(event, *_, **__):
        if event.startswith("/jax/core/compile/"):
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


# What a transformation can trace: arrays of types that jit leaves as they are.
TRACEABLE = ("bool", "uint8", "int8", "int16", "int32", "float16", "float32", "complex64", "bfloat16", "int4", "uint4")


STATIC = {"output_dtype", "include_padding", *(name for _, name in OPTIONS_BY_NAME)}


def split(arguments):
    """(arrays to trace, the rest)."""
    traced = {
        name: value
        for name, value in arguments.items()
        if isinstance(value, np.ndarray) and str(value.dtype) in TRACEABLE and name not in STATIC
    }
    return traced, {name: value for name, value in arguments.items() if name not in traced}


def at_fault(cases) -> int:
    """In how many cases `problems` traces an argument at fault; if there are few, tracing proves little."""
    return sum(bool(split(case.changes)[0]) for case in cases)


def refusal_of(function, *arguments) -> DescError | None:
    """The error of a call; None if it succeeds."""
    try:
        function(*arguments)
    except DescError as error:
        return error
    return None


def told(error) -> tuple:
    return type(error), str(error), error.operator, error.tensor, error.rule, error.minimum_feature_level


def problems(cases: Iterable[Bad]) -> str:
    """The problems in how wrong calls are rejected, one on each line; empty if there are none."""
    lines = []
    for case in cases:
        lines += [f"{case.operator}: {case.name}: {problem}" for problem in _problems(case)]
    return "\n".join(lines)


def _problems(case: Bad) -> Iterable[str]:
    call(case.operator, GOOD[case.operator])
    with compilations() as compiled:
        error = refusal_of(call, case.operator, case.arguments)
        again = refusal_of(call, case.operator, case.arguments)
        with jax.disable_jit():
            undisturbed = refusal_of(call, case.operator, case.arguments)
    if error is None or again is None or undisturbed is None:
        yield "is not refused"
        return
    if compiled:
        yield f"traces or compiles: {compiled}"
    if (type(error), error.tensor, error.rule) != case.facts or error.operator != case.operator:
        yield f"raises {told(error)}"
    if not str(error).startswith(f"{case.operator}: "):
        yield f"does not begin with the operator: {error}"
    yield from (f"does not say {phrase!r}: {error}" for phrase in case.phrases if phrase not in str(error))
    if not told(error) == told(again) == told(undisturbed):
        yield f"says something else the second time, or without jit: {told(again)}, {told(undisturbed)}"
    yield from _problems_while_tracing(case, error)
    yield from _problems_of_the_remedy(case, error)


def _problems_while_tracing(case: Bad, eager: DescError) -> Iterable[str]:
    """Finds other errors inside jit and vmap, where every array that can be traced is traced."""
    traced, rest = split(case.arguments)
    if not traced:
        if GOOD[case.operator].keys() - case.changes:  # operators of one argument have no other that could be traced
            yield "has nothing to trace"
        return
    stacked = {name: np.stack([value, value]) for name, value in traced.items()}
    for transformed, arrays in ((jax.jit, traced), (jax.vmap, stacked)):
        error = refusal_of(transformed(lambda arrays: call(case.operator, {**arrays, **rest})), arrays)
        if error is None or told(error) != told(eager):
            yield f"under {transformed.__name__}: {error and told(error)}, not {told(eager)}"


def remedied(error: DescError, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments after the error's remedy is followed, such as a_scale[:, None]; None if it has none."""
    advice = re.search(r" write ((\w+)((?:\.(?:astype|reshape)\([^()]*\))+|\[[^\]]*\]))(?= for |, or |$)", str(error))
    if advice is None or advice[2] not in arguments:
        return None
    return {**arguments, advice[2]: eval(advice[1], {"jnp": jnp, **arguments})}


def _problems_of_the_remedy(case: Bad, error: DescError) -> Iterable[str]:
    """Following the remedy must lead to a call that succeeds, or to another mistake."""
    arguments = remedied(error, case.arguments)
    if arguments is None:
        return
    following = refusal_of(jax.eval_shape, lambda: call(case.operator, arguments))
    if following is not None and (following.tensor, following.rule) == (error.tensor, error.rule):
        yield f"gives a remedy that does not help: {error} -> {following}"
