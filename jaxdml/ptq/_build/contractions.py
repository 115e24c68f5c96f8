"""Converts convolutions and matrix products of a program to contractions of the graph."""

import math
from typing import Any

import jax.numpy as jnp

from jaxdml._graph.operands import StaysFloat
from jaxdml.ptq._build import operators as op
from jaxdml.ptq._build.affine import Contraction
from jaxdml.ptq._build.builder import Builder
from jaxdml.ptq._build.phases import Phases
from jaxdml.ptq._trace.equations import Equation

EMPTY = "an operand has no elements"
Converted = tuple[Contraction, tuple[int, ...]]  # a contraction, and the order of axes of its result


def convolution(builder: Builder, equation: Equation) -> Converted:
    """Converts a convolution of data with a fixed filter over one or two spatial dimensions.

    Raises:
      StaysFloat: for any other convolution.
    """
    x, w = equation.inputs
    params = equation.params
    if builder.is_data(w):
        raise StaysFloat("its filter is computed from data")
    if params["batch_group_count"] != 1:
        raise StaysFloat("it has batch groups")
    if len(builder.shape(x)) not in (3, 4):
        raise StaysFloat(f"its images have {len(builder.shape(x)) - 2} dimensions, quantized convolutions take 1 or 2")
    if not jnp.issubdtype(equation.dtypes[0], jnp.floating):
        raise StaysFloat(_no_floats("its input is not a float", equation))
    if 0 in builder.shape(w):
        raise StaysFloat(EMPTY)
    of_x, of_w, of_y = params["dimension_numbers"]
    channels, _, *kernel = (builder.shape(w)[axis] for axis in of_w)
    phases = Phases.of(params, kernel)
    options = {
        "strides": tuple(params["window_strides"]),
        "dilations": tuple(params["rhs_dilation"]),
        "padding": phases.padding if phases else tuple(tuple(pair) for pair in params["padding"]),
        "group_count": params["feature_group_count"],
    }

    def arranged(weight: Any) -> Any:
        weight = weight.transpose(of_w)
        return phases.filters(weight) if phases else weight

    contraction = Contraction(
        operator=op.CONVOLUTION,
        data=(builder.layouts.arranged(x, of_x),),
        output=equation.outputs[0],
        options=options,
        name=builder.names.of(equation, w),
        weight=w,
        arranged=arranged,
        sizes=(phases.count, channels) if phases else (channels,),
        channels=[1],
        source=[equation.name],
        phases=phases,
    )
    return contraction, tuple(of_y)


def product(builder: Builder, equation: Equation) -> Converted:
    """Converts a product of data with fixed weights, or of data with data.

    Raises:
      StaysFloat: if the equation is not a product of float matrices.
    """
    if not all(jnp.issubdtype(dtype, jnp.floating) for dtype in equation.dtypes):
        raise StaysFloat(_no_floats("its inputs are not floats", equation))
    (left, right), (batch_left, batch_right) = equation.params["dimension_numbers"]
    a, b = equation.inputs
    of_a, of_b = (tuple(left), tuple(batch_left)), (tuple(right), tuple(batch_right))
    free, free_b = _free(builder, a, of_a), _free(builder, b, of_b)
    are_data = builder.is_data(a) and builder.is_data(b)
    if is_swapped := not builder.is_data(a) or (are_data and len(free_b) != 1 and len(free) < 2):
        a, b, of_a, of_b, free, free_b = b, a, of_b, of_a, free_b, free
    (contract, batch), (contract_b, batch_b) = of_a, of_b
    is_weight = not builder.is_data(b)
    is_column = not is_weight and not free_b and bool(free)  # each matrix is multiplied by its own column
    if not is_weight and len(free_b) != 1 and not is_column:
        raise StaysFloat("neither of its operands has exactly one axis that the other does not have")
    if not is_weight and len(contract) > 1:
        raise StaysFloat("it contracts several axes of two values")
    if any(builder.shape(a)[axis] == 0 for axis in contract) or (is_weight and 0 in builder.shape(b)):
        raise StaysFloat(EMPTY)
    # The graph's result has batch axes, free axes of `a`, then free axes of `b`; the program may have `b` before `a`.
    first, second = (len(free_b), 0) if is_swapped else (0, len(free))
    at_batch, at_a, at_b = (
        [*range(start, start + len(axes))]
        for start, axes in ((0, batch), (len(batch) + first, free), (len(batch) + second, free_b))
    )
    if is_weight:
        # Matrices that are equal along a batch axis, such as those repeated for each input, are stored once, and the
        # axis counts as a free axis of `a`. jnp.matmul leaves such an axis out if its size is 1.
        varying = builder.fixed.varying(b)
        equal = [i for i, axis in enumerate(batch_b) if axis not in varying]
        own = [i for i in range(len(batch)) if i not in equal]
        free, at_a = (*(batch[i] for i in equal), *free), [*equal, *at_a]
        repeated = tuple(batch_b[i] for i in equal)
        batch, batch_b, at_batch = tuple(batch[i] for i in own), tuple(batch_b[i] for i in own), own
    rows = builder.layouts.arranged(a, (*batch, *free, *contract))
    if len(contract) > 1:
        rows = builder.reshaped(rows, f"{len(contract)}:merged", op.MERGE, {"count": len(contract)})
    is_vector = not free and (bool(batch) or not is_weight)  # each matrix is multiplied by its own row
    if is_vector:
        rows = builder.reshaped(rows, "row", op.EXPAND, {"axis": -2})
    order = (*at_batch, *at_a, *at_b)
    arrangement = (*batch_b, *contract_b, *free_b)
    # Without batch axes, all rows are multiplied by the same matrix.
    options: dict[str, Any] = {"rows": len(free)} if batch and len(free) > 1 else {}
    if not is_weight:
        columns = builder.layouts.arranged(b, arrangement)
        if is_column:
            columns = builder.reshaped(columns, "column", op.EXPAND, {"axis": -1})
        name = equation.scope or equation.outputs[0]
        output = equation.outputs[0]
        return Contraction(
            op.PRODUCT, (rows, columns), output, options, name, is_vector=is_vector or is_column, source=[equation.name]
        ), order  # fmt: skip
    sizes = tuple(builder.shape(b)[axis] for axis in free_b)
    width = len(batch_b)

    def arranged(w: Any) -> Any:
        for axis in repeated:
            w = w[(slice(None),) * axis + (slice(1),)]
        w = w.transpose((*repeated, *arrangement))
        return _matrix(w.reshape(w.shape[len(repeated) :]), width, len(contract_b))

    contraction = Contraction(
        operator=op.PRODUCT,
        data=(rows,),
        output=equation.outputs[0],
        options=options,
        name=builder.names.of(equation, b),
        weight=b,
        arranged=arranged,
        sizes=sizes,
        is_vector=is_vector,
        channels=[len(batch) + len(free) + i for i in range(len(free_b))],
        source=[equation.name],
    )
    return contraction, order


def _no_floats(reason: str, equation: Equation) -> str:
    """The reason, and the cast to write if no operand is complex."""
    types = [str(dtype) for dtype in equation.dtypes if not jnp.issubdtype(dtype, jnp.floating)]
    is_complex = any(jnp.issubdtype(dtype, jnp.complexfloating) for dtype in equation.dtypes)
    what = "both operands" if len(types) > 1 else types[0]
    return reason if is_complex else f"{reason}; cast {what} in apply: write x.astype(jnp.float32)"


def _free(builder: Builder, name: str, axes: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[int, ...]:
    """The axes of an operand that are neither contracted nor batch axes."""
    return tuple(axis for axis in range(len(builder.shape(name))) if axis not in (*axes[0], *axes[1]))


def _matrix(w: Any, batch: int, contract: int) -> Any:
    """w as matrices: contracted axes become rows, and the last axes become columns."""
    head, rows = w.shape[:batch], w.shape[batch : batch + contract]
    return w.reshape(*head, math.prod(rows), -1)
