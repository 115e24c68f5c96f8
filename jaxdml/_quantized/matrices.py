"""Matrix products of operands of any rank, computed by DirectML's products of two to four dimensions."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxdml._arithmetic.prepared import PreparedMatrix
from jaxdml._shapes import is_surely_a_size
from jaxdml.errors import ModelError

Array = Any


def _per_row(parameter: Array | None) -> Array | None:
    """Reshapes a parameter of `a` from [M] to [M, 1]."""
    return parameter[:, None] if parameter is not None and parameter.ndim == 1 else parameter


def _is_of_each(parameter: Array | None) -> bool:
    """Whether a parameter differs between the matrices of a batch."""
    return parameter is not None and math.prod(parameter.shape[:-2]) != 1


def by_rows(multiply: Callable[[Array], Array], a: Array, rows: int) -> Array:
    """A matrix product whose left operand `a` has several axes of rows.

    Args:
      multiply: takes `a` with one axis of rows, and returns the product.
      a: the left operand.
      rows: number of axes of rows, which precede the last axis of `a`.
    """
    first = a.ndim - 1 - rows
    merged = math.prod(a.shape[first:-1])
    if rows == 1:
        return multiply(a)
    if not is_surely_a_size(merged):  # JAX refuses to merge symbolic sizes whose product it cannot estimate
        return by_rows(jax.vmap(multiply, first, first), a, rows - 1)
    y = multiply(a.reshape(*a.shape[:first], merged, a.shape[-1]))
    return y.reshape(*a.shape[:-1], y.shape[-1])


def multiplied(
    multiply: Callable[..., Array], of_a: Sequence[Any], of_b: Sequence[Any], *others: Any, dtype: Any,
) -> Array:  # fmt: skip
    """The product of `a` and `b` of any rank, in the shape that ONNX specifies.

    Args:
      multiply: DirectML's product; it takes of_a, of_b and others.
      of_a, of_b: an operand and its parameters. A parameter has one value, or a value for each row of `a` or column of
        `b`; each matrix may have its own.
      others: arguments that all matrices share.
      dtype: type of the product.

    Raises:
      ModelError: if an operand has no dimensions.
    """
    a, b = of_a[0], of_b[0]
    if not (a.ndim and b.ndim):
        raise ModelError(f"the operands have {a.ndim} and {b.ndim} dimensions, expected at least 1 each")
    dropped = tuple(axis for axis, x in ((-2, a), (-1, b)) if x.ndim == 1)
    a = a[None] if a.ndim == 1 else a
    b = b[:, None] if b.ndim == 1 else b
    of_a, of_b = (a, *map(_per_row, of_a[1:])), (b, *of_b[1:])
    shape = (*jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    if 0 in shape:
        product = jnp.zeros(shape, dtype)
    elif a.ndim == b.ndim == 2:
        product = multiply(*of_a, *of_b, *others)  # takes prepared weights, whatever the parameters of `a` are
    elif b.ndim == 2 and all(x is None or x.ndim == 0 for x in of_a[1:]):
        # One product of all rows is faster than a batch of products, and takes prepared weights.
        product = by_rows(lambda rows: multiply(rows, *of_a[1:], *of_b, *others), a, a.ndim - 1)
    else:
        product = _batched(multiply, of_a, of_b, others, shape[:-2]).reshape(shape)
    return jnp.squeeze(product, dropped) if dropped else product


def _batched(
    multiply: Callable[..., Array], of_a: Sequence[Any], of_b: Sequence[Any], others: Sequence[Any],
    batch: Sequence[Any],
) -> Array:  # fmt: skip
    """The products of a batch of matrices; batch dimensions beyond DirectML's limit are merged."""
    b = of_b[0].array if isinstance(of_b[0], PreparedMatrix) else of_b[0]
    arguments = [*of_a, b, *of_b[1:], *others]
    batched = [i in (0, len(of_a)) or _is_of_each(x) for i, x in enumerate(arguments)]
    merged = batch if len(batch) <= 2 else (math.prod(batch),)
    for i, x in enumerate(arguments):
        if batched[i]:
            arguments[i] = jnp.broadcast_to(x, (*batch, *x.shape[-2:])).reshape(*merged, *x.shape[-2:])
    if sum(batched) > 2:  # matrices have parameters of their own
        for _ in merged:
            multiply = jax.vmap(multiply, [0 if each else None for each in batched])
    return multiply(*arguments)
