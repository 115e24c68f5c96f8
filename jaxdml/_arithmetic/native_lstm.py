"""The native kernel of the steps of a quantized LSTM, which computes the directions on different threads.

A scan would run about twenty small XLA operations in each step.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.kernel_call import Kernel
from jaxdml._arithmetic.native_call import Result, int64s, is_byte, library_calls
from jaxdml._arithmetic.packing import packed_layout
from jaxdml._arithmetic.prepared import Prepared

Array = jax.Array


def _lstm(
    r: Any, r_scale: Array, r_zero_point: Array | None, gates: Array, lengths: Array | None, h: Array, c: Array,
    bias: Array | None, peephole: Array | None, *, leading: int, cell: Any,
) -> tuple[Array, ...]:  # fmt: skip
    directions, steps, batch, columns = gates.shape[leading:]
    ones, is_packed = (1,) * (leading + 1), isinstance(r, Prepared)
    lengths = lax.full((*ones, batch), steps, jnp.int32) if lengths is None else lax.expand_dims(lengths, (leading,))
    if r_zero_point is None:
        r_zero_point = lax.full(ones, 0, r.dtype)
    operands = (
        gates,
        lengths,
        h,
        c,
        lax.full((*ones, columns), -0.0, jnp.float32) if bias is None else bias,  # adding -0 changes no float
        lax.full((*ones, 0), 0, jnp.float32) if peephole is None else peephole,
        lax.expand_dims(r.data, (leading + 1,)) if is_packed else r,
        _of_columns(r_scale, leading),
        _of_columns(r_zero_point, leading),
    )
    states = (directions, batch, columns // 4)
    return library_calls(
        "lstm",
        leading,
        [((steps, *states), jnp.float32), (states, jnp.float32), (states, jnp.float32)],
        operands,
        backward=int64s(cell.backward),
        clip=np.float32(np.inf if cell.clip is None else cell.clip),
        couples_forget=cell.couples_forget,
        is_packed=is_packed,
    )


def _of_columns(parameter: Array, leading: int) -> Array:
    """[D] or [D, columns] with two dimensions after the directions."""
    first = parameter.shape[: leading + 1]
    return lax.reshape(parameter, (*first, 1, *(parameter.shape[leading + 1 :] or (1,))))


def _result(
    r: Any, r_scale: Any, r_zero_point: Any, gates: Any, lengths: Any, h: Any, *_: Any, cell: Any
) -> list[Result]:
    return [((gates.shape[1], *h.shape), jnp.float32), (h.shape, jnp.float32), (h.shape, jnp.float32)]


def _takes(r: Any, r_scale: Any, r_zero_point: Any, gates: Any, *_: Any, cell: Any) -> bool:
    has_weights = r.layout == packed_layout() if isinstance(r, Prepared) else is_byte(r.dtype)
    return has_weights and all(isinstance(size, int) and size > 0 for size in gates.shape)


LSTM = Kernel(_lstm, _result, _takes)
