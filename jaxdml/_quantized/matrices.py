"""Matrix products of operands of any ranks, by DirectML's products of two to four dimensions."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxdml._arithmetic.prepared import PreparedMatrix

Array = Any


def _per_row(parameter: Array | None) -> Array | None:
    """A parameter of a: [M] as [M, 1]."""
    return parameter[:, None] if parameter is not None and parameter.ndim == 1 else parameter


def _is_of_each(parameter: Array | None) -> bool:
    """Whether a parameter has its own rows or columns for each matrix of a batch."""
    return parameter is not None and math.prod(parameter.shape[:-2]) != 1


def multiplied(
    multiply: Callable[..., Array], of_a: Sequence[Any], of_b: Sequence[Any], *others: Any, dtype: Any,
) -> Array:  # fmt: skip
    """The product of a and b of any ranks, in the shape that ONNX gives it.

    Args:
      multiply: DirectML's product, of what of_a, of_b and others hold.
      of_a, of_b: an operand, and its parameters: numbers, one for each row or column, or these for each matrix.
      others: what is for all matrices.
      dtype: the product's.
    """
    a, b = of_a[0], of_b[0]
    dropped = tuple(axis for axis, x in ((-2, a), (-1, b)) if x.ndim == 1)
    a = a[None] if a.ndim == 1 else a
    b = b[:, None] if b.ndim == 1 else b
    of_a, of_b = (a, *map(_per_row, of_a[1:])), (b, *of_b[1:])
    shape = (*jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    if 0 in shape:
        product = jnp.zeros(shape, dtype)
    elif b.ndim == 2 and all(x is None or x.ndim == 0 for x in of_a[1:]):
        # One product of all rows is faster and takes prepared weights.
        rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
        product = multiply(rows, *of_a[1:], *of_b, *others).reshape(shape)
    else:
        product = _batched(multiply, of_a, of_b, others, shape[:-2]).reshape(shape)
    return jnp.squeeze(product, dropped) if dropped else product


def _batched(
    multiply: Callable[..., Array], of_a: Sequence[Any], of_b: Sequence[Any], others: Sequence[Any],
    batch: Sequence[Any],
) -> Array:  # fmt: skip
    """The product of each matrix of a batch, whose dimensions are merged if DirectML has not so many."""
    b = of_b[0].array if isinstance(of_b[0], PreparedMatrix) else of_b[0]
    arguments = [*of_a, b, *of_b[1:], *others]
    batched = [i in (0, len(of_a)) or _is_of_each(x) for i, x in enumerate(arguments)]
    has_parameters = sum(batched) > 2
    merged = batch if len(batch) <= 2 and not has_parameters else (math.prod(batch),)
    for i, x in enumerate(arguments):
        if batched[i]:
            arguments[i] = jnp.broadcast_to(x, (*batch, *x.shape[-2:])).reshape(*merged, *x.shape[-2:])
    if has_parameters:
        multiply = jax.vmap(multiply, [0 if each else None for each in batched])
    return multiply(*arguments)
