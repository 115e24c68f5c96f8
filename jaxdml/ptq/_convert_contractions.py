"""Convolutions and products of a program as contractions of the graph; or, in words, why they stay in floats."""

import math
from typing import Any

import jax.numpy as jnp

from jaxdml.ptq import _operators as op
from jaxdml.ptq._canonical import Canonical
from jaxdml.ptq._contractions import Contraction
from jaxdml.ptq._equations import Equation

Found = tuple[Contraction, tuple[int, ...]] | str


def convolution(made: Canonical, equation: Equation) -> Found:
    """A convolution by known weights, of one or two dimensions of space; the order of its result's axes with it."""
    x, w = equation.inputs
    params = equation.params
    if made.is_data(w):
        return "its filter is computed from data"
    if not made.is_data(x):
        return "its input is computed from parameters alone, its filter from data"
    if any(size != 1 for size in params["lhs_dilation"]):
        return "it is a transposed convolution"
    if params["batch_group_count"] != 1:
        return "it has batch groups"
    if len(made.shape(x)) not in (3, 4):
        return f"its images have {len(made.shape(x)) - 2} dimensions, quantized convolutions take 1 or 2"
    if not jnp.issubdtype(equation.dtypes[0], jnp.floating):
        return "its input is no float"
    if any(size < 0 for pair in params["padding"] for size in pair):
        return "its padding is negative"
    of_x, of_w, of_y = params["dimension_numbers"]
    options = {
        "strides": tuple(params["window_strides"]),
        "dilations": tuple(params["rhs_dilation"]),
        "padding": tuple(tuple(pair) for pair in params["padding"]),
        "group_count": params["feature_group_count"],
    }
    contraction = Contraction(
        operator=op.CONVOLUTION,
        data=(made.layouts.arranged(x, of_x),),
        output=equation.outputs[0],
        options=options,
        name=layer_of(made, equation, w),
        weight=w,
        arranged=lambda weight: weight.transpose(of_w),
        sizes=(made.shape(w)[of_w[0]],),
        channels=[1],
        source=[equation.name],
    )
    return contraction, tuple(of_y)


def product(made: Canonical, equation: Equation) -> Found:
    """A product of data and known weights, or of data and data; the order of its result's axes with it."""
    if not all(jnp.issubdtype(dtype, jnp.floating) for dtype in equation.dtypes):
        return "its inputs are no floats"
    (left, right), (batch_left, batch_right) = equation.params["dimension_numbers"]
    a, b = equation.inputs
    of_a, of_b = (tuple(left), tuple(batch_left)), (tuple(right), tuple(batch_right))
    free, free_b = _free(made, a, of_a), _free(made, b, of_b)
    if is_swapped := not made.is_data(a) or (made.is_data(b) and len(free_b) > 1):
        a, b, of_a, of_b, free, free_b = b, a, of_b, of_a, free_b, free
    (contract, batch), (contract_b, batch_b) = of_a, of_b
    is_weight = not made.is_data(b)
    if not contract:
        return "it contracts no axes"
    if (batch and not free) or (not is_weight and (not free or len(free_b) != 1 or len(contract) > 1)):
        return "its operands are no batches of matrices"
    rows = made.layouts.arranged(a, (*batch, *free, *contract))
    if len(contract) > 1:
        merged = f"{rows}:{len(contract)}:merged"
        made.node(op.MERGE, (rows,), (merged,), {"count": len(contract)}, equation)
        rows = merged
    # The graph's result has batch, free axes of a, free axes of b; the program's has a and b in its own order.
    at_batch, at_a, at_b = range(len(batch)), range(len(free)), range(len(free_b))
    first, second = (len(free_b), 0) if is_swapped else (0, len(free))
    order = (*at_batch, *(len(batch) + first + i for i in at_a), *(len(batch) + second + i for i in at_b))
    options: dict[str, Any] = {}
    if not is_weight:
        data = (
            rows,
            _matrices(made, equation, made.layouts.arranged(b, (*batch_b, *contract_b, *free_b)), len(free) - 1),
        )
        name = equation.scope or equation.outputs[0]
        return Contraction(op.PRODUCT, data, equation.outputs[0], options, name, source=[equation.name]), order
    sizes = tuple(made.shape(b)[axis] for axis in free_b)
    arrangement = (*batch_b, *contract_b, *free_b)
    width = len(batch_b)
    contraction = Contraction(
        operator=op.PRODUCT,
        data=(rows,),
        output=equation.outputs[0],
        options=options,
        name=layer_of(made, equation, b),
        weight=b,
        arranged=lambda w: _matrix(w.transpose(arrangement), width, len(contract_b), len(free) - 1 if width else 0),
        sizes=sizes,
        channels=[len(batch) + len(free) + i for i in at_b],
        source=[equation.name],
    )
    return contraction, order


def _free(made: Canonical, name: str, axes: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[int, ...]:
    """The axes of an operand that are neither contracted nor those of the batch."""
    return tuple(axis for axis in range(len(made.shape(name))) if axis not in (*axes[0], *axes[1]))


def _matrices(made: Canonical, equation: Equation, name: str, ones: int) -> str:
    """Matrices with axes of one element before their rows, beside further axes of another operand."""
    if not ones:
        return name
    made.node(op.ONES, (name,), (f"{name}:{ones}:ones",), {"count": ones}, equation)
    return f"{name}:{ones}:ones"


def _matrix(w: Any, batch: int, contract: int, ones: int) -> Any:
    """w with its contracted axes as one, and its last axes as one; axes of one element before them."""
    head, rows = w.shape[:batch], w.shape[batch : batch + contract]
    return w.reshape(*head, *(1,) * ones, math.prod(rows), -1)


def layer_of(made: Canonical, equation: Equation, weight: str) -> str:
    """The path of a layer's weights among the parameters, less the last key; where there is none, the scope."""
    leaves = made.known.leaves(weight)
    if not leaves:
        return equation.scope or equation.outputs[0]
    *path, leaf = made.program.params[leaves[0]] or ("weight",)
    if leaf == "value" and path:  # that of a variable of nnx
        *path, leaf = path
    path = path[1:] if path[:1] == ["params"] else path
    return "/".join(path) or leaf
