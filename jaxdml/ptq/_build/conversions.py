"""Converts the equations of a program to the nodes of a float graph.

Contractions, clamps to constants, sums, products, poolings, means, paddings and concatenations become operators that
the fusing pass knows. Every other equation becomes a node that runs it; such a node is a mover if it only moves
elements.
"""

import math
from collections.abc import Callable, Mapping, Set
from typing import Any

import jax.numpy as jnp

from jaxdml._graph.graph import EXACT_CAST, ROUNDING
from jaxdml._graph.grids import BYTES
from jaxdml._graph.operands import StaysFloat
from jaxdml._graph.report import FROM_PARAMETERS
from jaxdml._operators.fake_quantize import NAME_IN_JAXPRS
from jaxdml.ptq._build import operators as op
from jaxdml.ptq._build.affine import Contraction
from jaxdml.ptq._build.builder import Builder
from jaxdml.ptq._build.contractions import convolution, product
from jaxdml.ptq._build.windows import max_pool, summed, window_sum
from jaxdml.ptq._trace.equations import Equation, Program
from jaxdml.ptq._trace.fixed import ELEMENT_WISE, IDENTITIES, unit_reshape


def build(program: Program, foldable: Set[str] | None = None) -> Builder:
    """Builds the float graph of a program. Only equations with results in `foldable` are folded; None allows all."""
    builder, done = Builder(program, foldable), set[int]()
    for equation in program.equations:
        if id(equation) in done:
            continue
        data = [name for name in equation.inputs if builder.is_data(name)]
        if not data:
            builder.unchanged(equation, remark=FROM_PARAMETERS)
        elif equation.name in IDENTITIES or _is_cast_of_floats(equation, program):
            builder.alias(equation, builder.layouts.of(data[0]).order)
        elif equation.name in ARITHMETIC and not _is_float(program.avals[equation.outputs[0]].dtype):
            (_element_wise if equation.name in ELEMENT_WISE else _unchanged)(builder, equation)
        else:
            is_fake = equation.name.startswith(NAME_IN_JAXPRS)
            name = "fake_quantize" if is_fake else equation.name
            convert = CONVERSIONS.get(name, _element_wise if equation.name in ELEMENT_WISE else _unchanged)
            done.update(map(id, convert(builder, equation) or ()))
    return builder


def _is_cast_of_floats(equation: Equation, program: Program) -> bool:
    dtypes = equation.dtypes[0], program.avals[equation.outputs[0]].dtype
    return equation.name == "convert_element_type" and all(map(_is_float, dtypes))


def _is_exact_cast(equation: Equation) -> bool:
    """Whether an equation casts integers to floats that hold all integers of the type."""
    dtype, to = equation.dtypes[0], equation.params.get("new_dtype")
    if equation.name != "convert_element_type" or not (jnp.issubdtype(dtype, jnp.integer) and _is_float(to)):
        return False
    integers, floats = jnp.iinfo(dtype), jnp.finfo(to)  # type: ignore[no-untyped-call]
    return bool(integers.bits <= floats.nmant + 1)


def _is_float(dtype: Any) -> bool:
    """Whether a type is a float type of more than 8 bits; 8-bit floats count as quantized."""
    return bool(jnp.issubdtype(dtype, jnp.floating)) and jnp.dtype(dtype).itemsize > 1


def _unchanged(builder: Builder, equation: Equation) -> None:
    builder.unchanged(equation)


# Element by element --------------------------------------------------------------------------------------------------


def _element_wise(builder: Builder, equation: Equation) -> None:
    """Appends an element-wise equation in the layout of the first data input that has the result's shape."""
    data = [name for name in dict.fromkeys(equation.inputs) if builder.is_data(name)]
    others = [name for name in equation.inputs if not builder.is_data(name)]
    output = equation.outputs[0]
    is_float = _is_float(builder.program.avals[output].dtype)
    if is_float and len(data) == 1 and len(others) < 2 and len(equation.inputs) < 3 and (
        builder.folds(equation, data[0], others[0] if others else None)
    ):  # fmt: skip
        return
    shape = builder.shape(output)
    shapes = map(builder.shape, equation.inputs)
    if any(each not in ((), shape) and len(each) != len(shape) for each in shapes):
        builder.unchanged(equation)
        return
    order = next((builder.layouts.of(name).order for name in data if builder.shape(name) == shape), None)
    if order is None:
        builder.unchanged(equation)
        return
    inputs = [builder.layouts.arranged(name, order if builder.shape(name) else ()) for name in equation.inputs]
    clamp = _clamp(builder, equation)
    kind = EXACT_CAST if _is_exact_cast(equation) else "element_wise"
    operator, options = op.equation(equation.name, kind), {"equation": builder.place(equation)}
    if clamp is not None and is_float:
        operator, options, inputs = op.CLIP, clamp, [builder.layouts.arranged(data[0], order)]
    elif equation.name in SUMS and len(data) == 2 and is_float:
        operator, options = SUMS[equation.name], {}
    builder.node(operator, inputs, (output,), options, equation)
    builder.layouts.hold(output, output, order)


# Primitives that become operators of the graph if their result is a float; otherwise a node runs the equation itself.
ARITHMETIC = frozenset(("add", "clamp", "concatenate", "max", "min", "mul", "reduce_sum", "reduce_window_sum"))
SUMS = {"add": op.ADD, "mul": op.MULTIPLY}


def _clamp(builder: Builder, equation: Equation) -> dict[str, Any] | None:
    """The bounds of an equation that clamps data to constant bounds; None for all other equations."""
    found = [None if builder.is_data(name) else builder.fixed.number(name) for name in equation.inputs]
    numbers = [None if number is None else float(number) for number in found]
    if equation.name in ("max", "min"):
        bound = numbers[0] if numbers[1] is None else numbers[1]
        word = "min" if equation.name == "max" else "max"
        return None if bound is None or math.isnan(bound) else {word: bound}
    if equation.name == "clamp" and None not in numbers[::2] and builder.is_data(equation.inputs[1]):
        return {"min": numbers[0], "max": numbers[2]}
    return None


# Movers --------------------------------------------------------------------------------------------------------------


def _mover(builder: Builder, equation: Equation) -> None:
    builder.moved(equation)


def _reshape(builder: Builder, equation: Equation) -> None:
    builder.moved(equation, unit_reshape(builder.shape(equation.inputs[0]), builder.shape(equation.outputs[0])))


def _broadcast(builder: Builder, equation: Equation) -> None:
    if len(equation.inputs) > 1:
        builder.unchanged(equation)
        return
    before, after = builder.shape(equation.inputs[0]), builder.shape(equation.outputs[0])
    is_plain = math.prod(before) == math.prod(after)
    builder.moved(equation, dict(enumerate(equation.params["broadcast_dimensions"])) if is_plain else None)


def _transpose(builder: Builder, equation: Equation) -> None:
    permutation = list(equation.params["permutation"])
    builder.alias(equation, [permutation.index(axis) for axis in builder.layouts.of(equation.inputs[0]).order])


def _indexed(builder: Builder, equation: Equation) -> None:
    """Appends a gather or slice. The node is a mover if the indices are fixed, and are in bounds or clipped."""
    is_mover = builder.is_data(equation.inputs[0]) and not any(map(builder.is_data, equation.inputs[1:]))
    builder.unchanged(equation, "mover" if is_mover and not equation.fills else None)


def _extreme(builder: Builder, equation: Equation) -> None:
    builder.unchanged(equation, "extreme")


def _order(builder: Builder, equation: Equation) -> None:
    builder.unchanged(equation, "order")


# Other equations ------------------------------------------------------------------------------------------------------


def _concatenate(builder: Builder, equation: Equation) -> None:
    if not all(map(builder.is_data, equation.inputs)):
        builder.unchanged(equation)
        return
    order = builder.layouts.of(equation.inputs[0]).order
    inputs = [builder.layouts.arranged(name, order) for name in equation.inputs]
    axis = order.index(equation.params["dimension"])
    builder.node(op.CONCATENATE, inputs, equation.outputs, {"axis": axis}, equation)
    builder.layouts.hold(equation.outputs[0], equation.outputs[0], order)


def _pad(builder: Builder, equation: Equation) -> None:
    """Appends a padding, as `op.PAD` if it only adds zeros."""
    config, data = equation.params["padding_config"], equation.inputs[0]
    # The sign of a symbolic size may be unknown, and does not matter to the operator.
    is_plain = all(size >= 0 for low, high, _ in config for size in (low, high) if isinstance(size, int))
    if not builder.is_data(data) or builder.is_data(equation.inputs[1]) or not is_plain or (
        builder.fixed.number(equation.inputs[1]) != 0
    ):  # fmt: skip
        builder.unchanged(equation)
        return
    held = builder.layouts.of(data)
    options = {"config": tuple(tuple(config[axis]) for axis in held.order)}
    builder.node(op.PAD, (held.name,), equation.outputs, options, equation)
    builder.layouts.hold(equation.outputs[0], equation.outputs[0], held.order)


def _fake_quantize(builder: Builder, equation: Equation) -> None:
    """Appends a fake_quantize with one scale for all elements; any other fake_quantize stays a call."""
    x, *parameters = equation.inputs
    dtype = equation.name.removeprefix(NAME_IN_JAXPRS)
    if any(map(builder.is_data, parameters)):
        builder.unchanged(equation, ROUNDING, "its scale or zero point depends on data")
    elif any(math.prod(builder.shape(name)) != 1 for name in parameters):
        builder.unchanged(equation, ROUNDING, "it has several scales or zero points, quantized operators take one")
    elif equation.moves_axes:
        text = "jax.vmap maps it along an axis other than the first: write in_axes=0"
        builder.unchanged(equation, ROUNDING, text)
    elif dtype not in BYTES:
        builder.unchanged(equation, ROUNDING, f"it rounds to {dtype}, quantized operators take 8 bits")
    else:
        held = builder.layouts.of(x)
        builder.node(op.FAKE_QUANTIZE, (held.name, *parameters), equation.outputs, {"dtype": dtype}, equation)
        builder.layouts.hold(equation.outputs[0], equation.outputs[0], held.order)


def _contraction(
    convert: Callable[[Builder, Equation], tuple[Contraction, tuple[int, ...]]],
) -> Callable[[Builder, Equation], None]:
    def converted(builder: Builder, equation: Equation) -> None:
        try:
            contraction, order = convert(builder, equation)
        except StaysFloat as reason:
            builder.unchanged(equation, remark=str(reason))
        else:
            builder.contract(contraction, equation.outputs[0], order)

    return converted


CONVERSIONS: Mapping[str, Callable[[Builder, Equation], list[Equation] | None]] = {
    "argmax": _order,
    "argmin": _order,
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "conv_general_dilated": _contraction(convolution),
    "dot_general": _contraction(product),
    "dynamic_slice": _indexed,
    "expand_dims": _reshape,
    "fake_quantize": _fake_quantize,
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
