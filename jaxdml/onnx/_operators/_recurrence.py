"""The recurrence of LSTM: each direction is a scan over the steps.

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
Gate = Callable[[Array], Array]  # an activation function
Multiply = Callable[[Array], Array]  # multiplies the last dimension of float32 [..., K] by a matrix [K, 4 * N]


class Cell(NamedTuple):
    """What the attributes of an LSTM say.

    Attributes:
      backward: for each direction, whether it goes from the last step to the first.
      activations: for each direction the functions of the gates, of the cell's input and of the cell's state.
      clip: the inputs of activations are clipped to [-clip, clip]; None: they are not.
      couples_forget: whether the forget gate is 1 minus the input gate.
      hidden_size: the size of the hidden state; None: the weights say it.
      is_batch_first: whether the batch is the first dimension, and not the steps.
    """

    backward: tuple[bool, ...]
    activations: tuple[tuple[Gate, ...], ...]
    clip: float | None
    couples_forget: bool
    hidden_size: int | None
    is_batch_first: bool = False


class States(NamedTuple):
    """The inputs that LSTM and DynamicQuantizeLSTM share, of D directions, T steps, B items and N hidden numbers.

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


def recurrent(given: States, cell: Cell, products: Sequence[tuple[Multiply, Multiply]], hidden: int) -> list[Array]:
    """All hidden states [T, D, B, N], and the last hidden states and cell states [D, B, N], in float32.

    Args:
      given: the inputs.
      cell: the attributes.
      products: for each direction, what multiplies x and the hidden state by their weights.
      hidden: N.

    Raises:
      ModelError: if an input has a wrong shape, or a known number of steps is not one of x.
    """
    count, (steps, batch, _) = len(cell.backward), given.x.shape
    expected("B", given.bias, (count, 8 * hidden))
    expected("sequence_lens", given.lengths, (batch,))
    expected("initial_h", given.h, (count, batch, hidden))
    expected("initial_c", given.c, (count, batch, hidden))
    expected("P", given.peephole, (count, 3 * hidden))
    x, bias, h, c, peephole = (
        None if each is None else float32(each) for each in (given.x, given.bias, given.h, given.c, given.peephole)
    )
    is_step, is_valid = _steps(given.lengths, steps, batch)
    found = []
    for place, is_backward in enumerate(cell.backward):
        own = [None if each is None else each[place] for each in (bias, h, c, peephole)]
        direction = _Direction(cell, cell.activations[place], is_backward, *products[place], hidden)
        found.append(direction(x, is_step, *own))
    results = [jnp.stack(each, axis) for each, axis in zip(zip(*found, strict=True), (1, 0, 0), strict=True)]
    if is_valid is not None:
        places = (jnp.broadcast_to(is_valid[:, None], each.shape) for each in results)
        results = [jnp.where(valid, each, np.float32(np.nan)) for valid, each in zip(places, results, strict=True)]
    return results


def _steps(lengths: Any, steps: int, batch: int) -> tuple[Array, Array | None]:
    """For each step and item, whether the item has the step; and which lengths are valid, if they are unknown.

    The results of items of an invalid length are NaN, because an error would come too late.
    """
    if lengths is None:
        return jnp.ones((steps, batch), bool), None
    is_valid = (lengths >= 0) & (lengths <= steps)
    if is_known(lengths) and not is_valid.all():
        raise ModelError(f"sequence_lens is {lengths.tolist()}, expected numbers from 0 to {steps}, the steps of X")
    is_step = lax.broadcasted_iota(jnp.int32, (steps, batch), 0) < jnp.asarray(lengths)[None]
    return is_step, None if is_known(lengths) else is_valid


class _Direction(NamedTuple):
    """One direction of an LSTM."""

    cell: Cell
    activations: tuple[Gate, ...]
    is_backward: bool
    multiply_x: Multiply
    multiply_h: Multiply
    hidden: int

    def __call__(
        self, x: Array, is_step: Array, bias: Array | None, h: Array | None, c: Array | None, peephole: Array | None
    ) -> tuple[Array, Array, Array]:  # fmt: skip
        """The hidden states [T, B, N], and the last hidden and cell states [B, N]."""
        # The multiplication may quantize x by its range, which is that of the steps of the longest item.
        x = jnp.where(jnp.any(is_step, 1)[:, None, None], x, np.float32(0))
        gates = self.multiply_x(self._in_order(x, is_step))
        zeros = jnp.zeros((x.shape[1], self.hidden), jnp.float32)
        bias = None if bias is None else (bias[: 4 * self.hidden] + bias[4 * self.hidden :])[None]

        def step(state: tuple[Array, ...], given: tuple[Array, Array]) -> tuple[tuple[Array, ...], Array]:
            (h, c, last_h), (of_x, goes_on) = state, given
            new_h, new_c = self._step(h, c, of_x, bias, peephole)
            goes_on = goes_on[:, None]
            y = jnp.where(goes_on, new_h, np.float32(0))
            return (y, jnp.where(goes_on, new_c, c), jnp.where(goes_on, new_h, last_h)), y

        start = zeros if h is None else h, zeros if c is None else c, zeros
        (_, last_c, last_h), y = lax.scan(step, start, (gates, is_step))
        return self._in_order(y, is_step), last_h, jnp.where(jnp.any(is_step, 0)[:, None], last_c, np.float32(0))

    def _step(
        self, h: Array, c: Array, gates: Array, bias: Array | None, peephole: Array | None
    ) -> tuple[Array, Array]:  # fmt: skip
        """The hidden state and the cell's state after a step; `gates` is x times its weights."""
        of_gates, of_cell, of_state = self.activations
        total = gates + self.multiply_h(h)

        def part(values: Array, place: int) -> Array:
            return values[..., place * self.hidden : (place + 1) * self.hidden]

        def ready(place: int, state: Array | None = None) -> Array:
            """The input of a gate's activation."""
            value = part(total, place)
            if peephole is not None and state is not None:
                value = value + product(state, jnp.broadcast_to(part(peephole, place), state.shape))
            if bias is not None:
                value = value + part(bias, place)
            limit = self.cell.clip
            return value if limit is None else lax.clamp(np.float32(-limit), value, np.float32(limit))

        i = of_gates(ready(INPUT, c))
        f = np.float32(1) - i if self.cell.couples_forget else of_gates(ready(FORGET, c))
        new_c = product(c, f) + product(i, of_cell(ready(CELL)))
        return product(of_state(new_c), of_gates(ready(OUTPUT, new_c))), new_c

    def _in_order(self, values: Array, is_step: Array) -> Array:
        """[T, B, N] as it is, or backward with each item's own steps reversed; other steps stay in their places."""
        if not self.is_backward:
            return values
        numbers = lax.broadcasted_iota(jnp.int32, is_step.shape, 0)
        source = jnp.where(is_step, jnp.sum(is_step, 0, dtype=jnp.int32)[None] - 1 - numbers, numbers)
        return jnp.take_along_axis(values, source[:, :, None], 0)


def product(x: Array, y: Array) -> Array:
    """fl(x * y), flushed, which keeps XLA from fusing the product and a sum."""
    return rounding.flushed(x * y)


def float32(x: Any) -> Array:
    """x, of a type of floats, as float32."""
    return lax.convert_element_type(x, jnp.float32)
