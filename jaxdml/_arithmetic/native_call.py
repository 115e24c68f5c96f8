"""Calls into the native library. The first `leading` dimensions of operands and results are those of vmap."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array
Result = tuple[tuple[int, ...], Any]  # shape and type


def is_byte(dtype: Any) -> bool:
    return dtype in (jnp.int8, jnp.uint8)


def is_at_most_two_bytes(dtype: Any) -> bool:
    """Whether a type is one of 8-bit or 16-bit integers."""
    return dtype in (jnp.int8, jnp.uint8, jnp.int16, jnp.uint16)


def library_call(
    name: str, leading: int, result: Result, operands: Sequence[Array], /, *, overwritten: int | None = None,
    **attributes: Any,
) -> Array:  # fmt: skip
    """The result of the library's function `name`. Leading dimensions of size 1 broadcast.

    The result is written over operand `overwritten` if both have the same shape. XLA copies the operand first if
    something else reads it.
    """
    return library_calls(name, leading, [result], operands, overwritten, **attributes)[0]


def library_calls(
    name: str, leading: int, results: Sequence[Result], operands: Sequence[Array], overwritten: int | None = None, /,
    **attributes: Any,
) -> tuple[Array, ...]:  # fmt: skip
    """As `library_call`, for a function with several results, of which the first may be written over an operand."""
    sizes = zip(*(x.shape[:leading] for x in operands), strict=True)
    first = tuple(next((size for size in each if size != 1), 1) for each in sizes)
    structs = [jax.ShapeDtypeStruct((*first, *shape), dtype) for shape, dtype in results]
    aliases: dict[int, int] = {}
    if overwritten is not None and operands[overwritten].shape == structs[0].shape:
        # If the operand is a reshape, the barrier keeps XLA from copying it to new memory.
        operands = [lax.optimization_barrier(x) if i == overwritten else x for i, x in enumerate(operands)]
        aliases = {overwritten: 0}
    call = jax.ffi.ffi_call(f"jaxdml_cpu_{name}", structs, input_output_aliases=aliases)
    return tuple(call(*operands, **attributes))


def operand(x: Array | None, leading: int, shape: Callable[[tuple[int, ...]], tuple[int, ...]], dtype: Any) -> Array:
    """x (a scale, zero point or bias), or zero if x is None; `shape` maps the shape of x to the operand's shape."""
    if x is None:
        return lax.full((1,) * leading + shape(()), 0, dtype if np.dtype(dtype).itemsize == 1 else jnp.int8)
    return lax.reshape(x, (*x.shape[:leading], *shape(x.shape[leading:])))


def int64s(values: Sequence[int]) -> np.ndarray:
    return np.asarray(values, np.int64)


def in_two_dimensions(x: Array, spatial: int) -> Array:
    return x if spatial == 2 else lax.expand_dims(x, (x.ndim - 1,))
