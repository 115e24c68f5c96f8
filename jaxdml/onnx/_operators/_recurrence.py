"""The recurrence of LSTM: one scan over the steps of all directions.

Formulas, their order, and the meaning of the inputs are those of ONNX Runtime's CPU kernel. The gates are in the order
input, output, forget, cell.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import rounding
from jaxdml.errors import ModelError
from jaxdml.onnx._operators._arrays import Array, is_known
from jaxdml.onnx._operators.attention import expected

INPUT, OUTPUT, FORGET, CELL = range(4)

# Multiplies the last dimension of float32 x by the matrix [K, 4 * N] of each direction. The axis is that of x's
# directions; None: x has none, and all directions multiply the same x. The result has the directions first.
Multiply = Callable[[Array, int | None], Array]

# The arguments and results are those of `scanned`, without its keyword arguments.
Steps = Callable[..., tuple[Array, Array, Array]]


class Gate(NamedTuple):
    """An activation function; two gates are equal if they compute the same function."""

    function: Callable[..., Array]
    numbers: tuple[tuple[str, float], ...]

    def __call__(self, x: Array) -> Array:
        return self.function(x, **dict(self.numbers))


class Cell(NamedTuple):
    """The attributes of an LSTM.

    Attributes:
      backward: for each direction, whether it goes from the last step to the first.
      activations: for each direction, the functions of the gates, of the cell's input and of the cell's state.
      clip: the inputs of activations are clipped to [-clip, clip]; None: they are not.
      couples_forget: whether the forget gate is 1 minus the input gate.
      hidden_size: the size of the hidden state; None: the weights determine it.
      is_batch_first: whether the batch, rather than the steps, is the first dimension.
    """

    backward: tuple[bool, ...]
    activations: tuple[tuple[Gate, ...], ...]
    clip: float | None
    couples_forget: bool
    hidden_size: int | None
    is_batch_first: bool = False


class States(NamedTuple):
    """The inputs that LSTM and DynamicQuantizeLSTM share, for D directions, T steps, B items and N hidden units.

    Attributes:
      x: [T, B, I].
      bias: [D, 8 * N], or None.
      lengths: int32 [B], the number of steps of each item; None: T.
      h, c: the hidden state and the cell's state before the first step, [D, B, N]; None: 0.
      peephole: [D, 3 * N], factors of the cell's state for the first three gates; None: 0.
    """

    x: Array
    bias: Array | None
    lengths: Array | None
    h: Array | None
    c: Array | None
    peephole: Array | None


def recurrent(given: States, cell: Cell, multiply_x: Multiply, run: Steps, hidden: int) -> list[Array]:
    """All hidden states [T, D, B, N], and the last hidden states and cell states [D, B, N], in float32.

    Args:
      given: the inputs.
      cell: the attributes.
      multiply_x: the function that multiplies x by its weights.
      run: the function that computes the steps from the products.
      hidden: N.

    Raises:
      ModelError: if an input has the wrong shape, or a known number of steps is negative or more than T.
    """
    count, (steps, batch, _) = len(cell.backward), given.x.shape
    expected("B", given.bias, (count, 8 * hidden))
    expected("sequence_lens", given.lengths, (batch,))
    expected("initial_h", given.h, (count, batch, hidden))
    expected("initial_c", given.c, (count, batch, hidden))
    expected("P", given.peephole, (count, 3 * hidden))
    bias, h, c, peephole = (
        None if each is None else float32(each) for each in (given.bias, given.h, given.c, given.peephole)
    )
    is_step, is_valid = _steps(given.lengths, steps, batch)
    # The multiplication may quantize x by its range, which must cover only the steps of the longest item.
    x = jnp.where(jnp.any(is_step, 1)[:, None, None], float32(given.x), np.float32(0))
    if bias is not None:
        bias = bias[:, : 4 * hidden] + bias[:, 4 * hidden :]
    h, c = (jnp.zeros((count, batch, hidden), jnp.float32) if each is None else each for each in (h, c))
    y, last_h, last_c = run(multiply_x(x, None), given.lengths, h, c, bias, peephole)
    results = [y, last_h, jnp.where(jnp.any(is_step, 0)[:, None], last_c, np.float32(0))]
    if is_valid is not None:
        places = (jnp.broadcast_to(is_valid[:, None], each.shape) for each in results)
        results = [jnp.where(valid, each, np.float32(np.nan)) for valid, each in zip(places, results, strict=True)]
    return results


def scanned(
    gates: Array, lengths: Array | None, h: Array, c: Array, bias: Array | None, peephole: Array | None, *,
    cell: Cell, multiply_h: Multiply,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """All hidden states [T, D, B, N], and the last hidden states and cell states [D, B, N], by one scan over the steps.

    Args:
      gates: x times its weights, [D, T, B, 4 * N].
      lengths, h, c, peephole: those of `States`.
      bias: [D, 4 * N], or None.
      cell: the attributes.
      multiply_h: the function that multiplies the hidden states by their weights.
    """
    is_step = _is_step(lengths, *gates.shape[1:3])
    ordered = _in_order(jnp.moveaxis(gates, 0, 1), is_step, cell.backward)
    advanced = _Step(cell, multiply_h, None if bias is None else bias[:, None], peephole, h.shape[-1])

    def step(state: tuple[Array, ...], given: tuple[Array, Array]) -> tuple[tuple[Array, ...], Array]:
        (h, c, last_h), (of_x, goes_on) = state, given
        new_h, new_c = advanced(h, c, of_x)
        goes_on = goes_on[None, :, None]
        y = jnp.where(goes_on, new_h, np.float32(0))
        return (y, jnp.where(goes_on, new_c, c), jnp.where(goes_on, new_h, last_h)), y

    (_, last_c, last_h), y = lax.scan(step, (h, c, jnp.zeros_like(h)), (ordered, is_step))
    return _in_order(y, is_step, cell.backward), last_h, last_c


def _steps(lengths: Any, steps: int, batch: int) -> tuple[Array, Array | None]:
    """For each step and item, whether the item has the step; and, if lengths are unknown, which of them are valid.

    Unknown lengths cannot raise an error, so the results of items with an invalid length are NaN.
    """
    is_step = _is_step(lengths, steps, batch)
    if lengths is None:
        return is_step, None
    is_valid = (lengths >= 0) & (lengths <= steps)
    if is_known(lengths) and not is_valid.all():
        raise ModelError(f"sequence_lens is {lengths.tolist()}, expected numbers from 0 to {steps}, the steps of X")
    return is_step, None if is_known(lengths) else is_valid


def _is_step(lengths: Any, steps: int, batch: int) -> Array:
    """For each step and item, whether the item has the step."""
    if lengths is None:
        return jnp.ones((steps, batch), bool)
    return lax.broadcasted_iota(jnp.int32, (steps, batch), 0) < jnp.asarray(lengths)[None]


class _Step(NamedTuple):
    """A step of all directions; bias [D, 1, 4 * N] and peephole [D, 3 * N], or None."""

    cell: Cell
    multiply_h: Multiply
    bias: Array | None
    peephole: Array | None
    hidden: int

    def __call__(self, h: Array, c: Array, gates: Array) -> tuple[Array, Array]:
        """The hidden state and the cell's state after the step; `gates` is x times its weights."""
        of_gates, of_cell, of_state = zip(*self.cell.activations, strict=True)
        total = gates + self.multiply_h(h, 0)

        def ready(first: int, state: Array | None = None, count: int = 1) -> Array:
            """The inputs of the activations of some gates."""
            value = self._part(total, first, count)
            if state is not None:
                factors = self._part(self.peephole, first)[:, None]
                value = value + product(state, jnp.broadcast_to(factors, state.shape))
            if self.bias is not None:
                value = value + self._part(self.bias, first, count)
            limit = self.cell.clip
            return value if limit is None else lax.clamp(np.float32(-limit), value, np.float32(limit))

        if self.peephole is None:  # all three at once
            i, o, f = jnp.split(_activated(of_gates, ready(INPUT, count=3)), 3, -1)
        else:
            i, f = (_activated(of_gates, ready(place, c)) for place in (INPUT, FORGET))
        if self.cell.couples_forget:
            f = np.float32(1) - i
        new_c = product(c, f) + product(i, _activated(of_cell, ready(CELL)))
        if self.peephole is not None:
            o = _activated(of_gates, ready(OUTPUT, new_c))
        return product(_activated(of_state, new_c), o), new_c

    def _part(self, values: Any, first: int, count: int = 1) -> Array:
        part: Array = values[..., first * self.hidden : (first + count) * self.hidden]
        return part


def _activated(functions: Sequence[Gate], values: Array) -> Array:
    """The functions, one for each direction, applied to values [D, B, N]."""
    if len(set(functions)) == 1:
        return functions[0](values)
    return jnp.stack([function(each) for function, each in zip(functions, values, strict=True)])


def _in_order(values: Array, is_step: Array, backward: Sequence[bool]) -> Array:
    """[T, D, B, N] with each item's own steps reversed in backward directions; other steps stay in place."""
    if not any(backward):
        return values
    numbers = lax.broadcasted_iota(jnp.int32, is_step.shape, 0)
    reverse = jnp.where(is_step, jnp.sum(is_step, 0, dtype=jnp.int32)[None] - 1 - numbers, numbers)
    source = jnp.stack([reverse if is_backward else numbers for is_backward in backward], 1)
    return jnp.take_along_axis(values, source[..., None], 0)


def product(x: Array, y: Array) -> Array:
    """x * y, rounded and flushed, which keeps XLA from fusing the product and a sum."""
    return rounding.flushed(x * y)


def float32(x: Any) -> Array:
    """x, of any float type, as float32."""
    return lax.convert_element_type(x, jnp.float32)
