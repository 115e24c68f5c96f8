"""Comparisons, logic, and operations on bits."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdml.errors import ModelError
from jaxdml.onnx._arrays import Array, broadcast, namespace
from jaxdml.onnx._operators.arithmetic import computed
from jaxdml.onnx._table import ANY, BOOL, FLOAT, INTEGER, NUMBER, operator


def _of_two(name: str, of_arrays: str, types: frozenset[str], since: int | None = None) -> None:
    """Makes the row of a function of two tensors that broadcast."""

    @operator(name, types=(types, types), is_exact=True, since=since)
    def compute(a: Array, b: Array) -> Array:
        return computed(of_arrays, *broadcast(a, b))


def _of_one(name: str, of_arrays: str, types: frozenset[str], since: int | None = None) -> None:
    """Makes the row of a function of each element."""

    @operator(name, types=(types,), is_exact=True, since=since)
    def compute(x: Array) -> Array:
        return computed(of_arrays, x)


_of_two("Equal", "equal", ANY)
_of_two("Less", "less", NUMBER)
_of_two("Greater", "greater", NUMBER)
_of_two("LessOrEqual", "less_equal", NUMBER, since=12)
_of_two("GreaterOrEqual", "greater_equal", NUMBER, since=12)
_of_two("And", "logical_and", BOOL)
_of_two("Or", "logical_or", BOOL)
_of_two("Xor", "logical_xor", BOOL)
_of_one("Not", "logical_not", BOOL)
_of_two("BitwiseAnd", "bitwise_and", INTEGER, since=18)
_of_two("BitwiseOr", "bitwise_or", INTEGER, since=18)
_of_two("BitwiseXor", "bitwise_xor", INTEGER, since=18)
_of_one("BitwiseNot", "bitwise_not", INTEGER, since=18)
_of_one("IsNaN", "isnan", FLOAT)


@operator("IsInf", types=(FLOAT,), is_exact=True)
def is_infinite(x: Array, *, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    """Whether an element is an infinity of a sign that counts."""
    xp = namespace(x)
    counts = xp.where(x < 0, bool(detect_negative), bool(detect_positive))
    return xp.isinf(x) & counts


@operator("BitShift", since=11, types=(INTEGER, INTEGER), is_exact=True)
def shift_bits(x: Array, count: Array, *, direction: str) -> Array:
    """x moved by some bits; a signed x keeps its sign where it moves right."""
    if direction not in ("LEFT", "RIGHT"):
        raise ModelError(f"direction is {direction!r}, it should be LEFT or RIGHT")
    x, count = broadcast(x, count)
    xp, width = namespace(x, count), x.dtype.itemsize * 8
    is_outside = (count < 0) | (count >= width)
    filling: Any = xp.zeros_like(x)
    if direction == "RIGHT" and jnp.issubdtype(x.dtype, jnp.signedinteger):
        filling = -(x < 0).astype(x.dtype)
    moved = computed(f"{direction.lower()}_shift", x, xp.where(is_outside, xp.zeros_like(count), count))
    return np.asarray(xp.where(is_outside, filling, moved)) if xp is np else jnp.where(is_outside, filling, moved)
