"""From each equation of a program to nodes of the operators that the fusing pass knows.

A clamp by numbers, an addition, a pooling, a mean and what only moves elements have operators of their own. All other
equations are nodes as they are.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxdml.ptq import _operators as op
from jaxdml.ptq._canonical import Canonical
from jaxdml.ptq._contractions import Contraction
from jaxdml.ptq._convert_contractions import convolution, product
from jaxdml.ptq._convert_windows import max_pool, summed, window_sum
from jaxdml.ptq._equations import Equation, Program
from jaxdml.ptq._known import ELEMENT_WISE, IDENTITIES, unit_reshape

__all__ = ["canonical"]


def canonical(program: Program) -> Canonical:
    """The graph of a program."""
    made, done = Canonical(program), set[int]()
    for equation in program.equations:
        if id(equation) in done:
            continue
        data = [name for name in equation.inputs if made.is_data(name)]
        if not data:
            made.as_it_is(equation)
        elif equation.name in IDENTITIES or _is_cast_of_floats(equation, program):
            made.alias(equation, made.layouts.of(data[0]).order)
        elif equation.name in ARITHMETIC and not _is_float(program.avals[equation.outputs[0]].dtype):
            (_element_wise if equation.name in ELEMENT_WISE else _as_it_is)(made, equation)
        else:
            convert = CONVERSIONS.get(equation.name, _element_wise if equation.name in ELEMENT_WISE else _as_it_is)
            done.update(map(id, convert(made, equation) or ()))
    return made


def _is_cast_of_floats(equation: Equation, program: Program) -> bool:
    dtypes = equation.dtypes[0], program.avals[equation.outputs[0]].dtype
    return equation.name == "convert_element_type" and all(map(_is_float, dtypes))


def _is_float(dtype: Any) -> bool:
    """Whether a type is one of floats in which networks compute; those of 8 bits are themselves quantized."""
    return bool(jnp.issubdtype(dtype, jnp.floating)) and jnp.dtype(dtype).itemsize > 1


def _as_it_is(made: Canonical, equation: Equation) -> None:
    made.as_it_is(equation)


# Element by element --------------------------------------------------------------------------------------------------


def _element_wise(made: Canonical, equation: Equation) -> None:
    """An element-wise equation, in the layout of its first input of the result's shape."""
    data = [name for name in dict.fromkeys(equation.inputs) if made.is_data(name)]
    others = [name for name in equation.inputs if not made.is_data(name)]
    output = equation.outputs[0]
    is_float = _is_float(made.program.avals[output].dtype)
    if is_float and len(data) == 1 and len(others) < 2 and len(equation.inputs) < 3 and (
        made.is_folded(equation, data[0], others[0] if others else None)
    ):  # fmt: skip
        return
    shape = made.shape(output)
    if any(made.shape(name) not in ((), shape) and len(made.shape(name)) != len(shape) for name in equation.inputs):
        made.as_it_is(equation)
        return
    order = next((made.layouts.of(name).order for name in data if made.shape(name) == shape), None)
    if order is None:
        made.as_it_is(equation)
        return
    inputs = [made.layouts.arranged(name, order if made.shape(name) else ()) for name in equation.inputs]
    clamp = _clamp(made, equation)
    operator, options = op.equation(equation.name, "element_wise"), {"equation": made.place(equation)}
    if clamp is not None and is_float:
        operator, options, inputs = op.CLIP, clamp, [made.layouts.arranged(data[0], order)]
    elif equation.name in SUMS and len(data) == 2 and is_float:
        operator, options = SUMS[equation.name], {}
    made.node(operator, inputs, (output,), options, equation)
    made.layouts.hold(output, output, order)


# What the graph's own operators compute, in floats.
ARITHMETIC = frozenset(("add", "clamp", "concatenate", "max", "min", "mul", "reduce_sum", "reduce_window_sum"))
SUMS = {"add": op.ADD, "mul": op.MULTIPLY}


def _clamp(made: Canonical, equation: Equation) -> dict[str, Any] | None:
    """The bounds of a clamp of data by numbers."""
    found = [None if made.is_data(name) else made.known.number(name) for name in equation.inputs]
    numbers = [None if number is None else float(number) for number in found]
    if equation.name in ("max", "min"):
        bound = numbers[0] if numbers[1] is None else numbers[1]
        word = "min" if equation.name == "max" else "max"
        return None if bound is None or math.isnan(bound) else {word: bound}
    if equation.name == "clamp" and None not in numbers[::2] and made.is_data(equation.inputs[1]):
        return {"min": numbers[0], "max": numbers[2]}
    return None


# Movers --------------------------------------------------------------------------------------------------------------


def _mover(made: Canonical, equation: Equation) -> None:
    made.moved(equation)


def _reshape(made: Canonical, equation: Equation) -> None:
    made.moved(equation, unit_reshape(made.shape(equation.inputs[0]), made.shape(equation.outputs[0])))


def _broadcast(made: Canonical, equation: Equation) -> None:
    if len(equation.inputs) > 1:
        made.as_it_is(equation)
        return
    before, after = made.shape(equation.inputs[0]), made.shape(equation.outputs[0])
    is_plain = math.prod(before) == math.prod(after)
    made.moved(equation, dict(enumerate(equation.params["broadcast_dimensions"])) if is_plain else None)


def _transpose(made: Canonical, equation: Equation) -> None:
    permutation = list(equation.params["permutation"])
    made.alias(equation, [permutation.index(axis) for axis in made.layouts.of(equation.inputs[0]).order])


def _indexed(made: Canonical, equation: Equation) -> None:
    """A gather or slice whose places are known, and in bounds."""
    is_mover = made.is_data(equation.inputs[0]) and not any(map(made.is_data, equation.inputs[1:]))
    mode = equation.params.get("mode")
    is_filled = mode is not None and mode not in (
        lax.GatherScatterMode.CLIP, lax.GatherScatterMode.PROMISE_IN_BOUNDS
    )  # fmt: skip
    made.as_it_is(equation, "mover" if is_mover and not is_filled else None)


def _extreme(made: Canonical, equation: Equation) -> None:
    made.as_it_is(equation, "extreme")


def _order(made: Canonical, equation: Equation) -> None:
    made.as_it_is(equation, "order")


# The others ----------------------------------------------------------------------------------------------------------


def _concatenate(made: Canonical, equation: Equation) -> None:
    if not all(map(made.is_data, equation.inputs)):
        made.as_it_is(equation)
        return
    order = made.layouts.of(equation.inputs[0]).order
    inputs = [made.layouts.arranged(name, order) for name in equation.inputs]
    axis = order.index(equation.params["dimension"])
    made.node(op.CONCATENATE, inputs, equation.outputs, {"axis": axis}, equation)
    made.layouts.hold(equation.outputs[0], equation.outputs[0], order)


def _pad(made: Canonical, equation: Equation) -> None:
    """A padding; with zeros, it has its own operator."""
    config, data = equation.params["padding_config"], equation.inputs[0]
    is_plain = all(low >= 0 and high >= 0 and between == 0 for low, high, between in config)
    if not made.is_data(data) or made.is_data(equation.inputs[1]) or not is_plain or (
        made.known.number(equation.inputs[1]) != 0
    ):  # fmt: skip
        made.as_it_is(equation)
        return
    held = made.layouts.of(data)
    options = {"pairs": tuple(tuple(config[axis][:2]) for axis in held.order)}
    made.node(op.PAD, (held.name,), equation.outputs, options, equation)
    made.layouts.hold(equation.outputs[0], equation.outputs[0], held.order)


def _contraction(
    convert: Callable[[Canonical, Equation], tuple[Contraction, tuple[int, ...]] | str],
) -> Callable[[Canonical, Equation], None]:
    def converted(made: Canonical, equation: Equation) -> None:
        found = convert(made, equation)
        if isinstance(found, str):
            made.as_it_is(equation, remark=found)
        else:
            made.contract(found[0], equation.outputs[0], found[1])

    return converted


CONVERSIONS: Mapping[str, Callable[[Canonical, Equation], list[Equation] | None]] = {
    "argmax": _order,
    "argmin": _order,
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "conv_general_dilated": _contraction(convolution),
    "dot_general": _contraction(product),
    "dynamic_slice": _indexed,
    "expand_dims": _reshape,
    "gather": _indexed,
    "pad": _pad,
    "reduce_max": _extreme,
    "reduce_min": _extreme,
    "reduce_sum": summed,
    "reduce_window_max": max_pool,
    "reduce_window_sum": window_sum,
    "reshape": _reshape,
    "rev": _mover,
    "slice": _mover,
    "split": _mover,
    "squeeze": _reshape,
    "transpose": _transpose,
}
