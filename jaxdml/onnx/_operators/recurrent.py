"""LSTM of ONNX, and DynamicQuantizeLSTM of ONNX Runtime, which multiplies integers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.kernel_call import with_kernel
from jaxdml._arithmetic.native_lstm import LSTM
from jaxdml._quantized import directml
from jaxdml._quantized.kinds import prepared_matrices
from jaxdml._quantized.onnxruntime import sigmoids
from jaxdml.errors import ModelError
from jaxdml.onnx._operators import activations
from jaxdml.onnx._operators._arrays import EXACT, Array, is_known
from jaxdml.onnx._operators._recurrence import Cell, Gate, Multiply, States, float32, product, recurrent, scanned
from jaxdml.onnx._operators.attention import expected
from jaxdml.onnx._table import BYTE, MICROSOFT, SCALE, operator

REAL = frozenset({"float32", "float16", "bfloat16"})  # 16-bit floats are computed as float32
INT32 = frozenset({"int32"})
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


# Activations ---------------------------------------------------------------------------------------------------------


class Activation(NamedTuple):
    """An activation function.

    Attributes:
      function: the function of x, with alpha and beta as keyword arguments.
      alpha, beta: the default if the attribute activation_alpha or activation_beta has no value for the function; None:
        the function has no such argument.
    """

    function: Callable[..., Array]
    alpha: float | None = None
    beta: float | None = None


def _affine(x: Array, *, alpha: float, beta: float) -> Array:
    return product(x, np.float32(alpha)) + np.float32(beta)


def _scaled_tanh(x: Array, *, alpha: float, beta: float) -> Array:
    return product(jnp.tanh(product(x, np.float32(beta))), np.float32(alpha))


FLOATS: Mapping[str, Activation] = {
    "Sigmoid": Activation(activations.sigmoid),
    "Tanh": Activation(jnp.tanh),
    "Relu": Activation(activations.relu),
    "Affine": Activation(_affine, 0, 0),
    "LeakyRelu": Activation(activations.leaky_relu, 0.01),
    "ThresholdedRelu": Activation(activations.thresholded_relu, 0),
    "ScaledTanh": Activation(_scaled_tanh, 0, 0),
    "HardSigmoid": Activation(activations.hard_sigmoid, 0.2, 0.5),
    "Elu": Activation(activations.elu, 1),
    "Softsign": Activation(activations.softsign),
    "Softplus": Activation(activations.softplus),
}
DEFAULT = ("Sigmoid", "Tanh", "Tanh")
ONE_ANSWER: Mapping[str, Activation] = {  # with ONNX Runtime's bits on every processor
    "Sigmoid": Activation(sigmoids.logistic),
    "Tanh": Activation(sigmoids.tanh),
    "Relu": Activation(activations.relu),
}


def _activations(
    names: Sequence[str], alphas: Iterable[float], betas: Iterable[float], known: Mapping[str, Activation], remedy: str
) -> tuple[Gate, ...]:  # fmt: skip
    """The activation functions of these names; each takes the next of the alphas and betas, if it takes any."""
    by_lower_case = {name.lower(): each for name, each in known.items()}
    if unknown := [name for name in names if name.lower() not in by_lower_case]:
        raise ModelError(f"attribute 'activations' has {unknown[0]!r}; supported: {', '.join(known)}{remedy}")
    alphas, betas, functions = iter(alphas), iter(betas), list[Gate]()
    for name in names:
        function, alpha, beta = by_lower_case[name.lower()]
        numbers = {} if alpha is None else {"alpha": next(alphas, alpha)}
        numbers |= {} if beta is None else {"beta": next(betas, beta)}
        functions.append(Gate(function, tuple(numbers.items())))
    return tuple(functions)


# Attributes -----------------------------------------------------------------------------------------------------------


def quantized_lstm_options(
    *, activation_alpha: tuple[float, ...] | None = None, activation_beta: tuple[float, ...] | None = None,
    activations: tuple[str, ...] | None = None, clip: float | None = None, direction: str = "forward",
    hidden_size: int | None = None, input_forget: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Converts the attributes of DynamicQuantizeLSTM."""
    remedy = "; quantize_dynamic(..., nodes_to_exclude=[...]) leaves an LSTM in floats, for which more are supported"
    given = activations, activation_alpha, activation_beta, clip, direction, hidden_size, input_forget
    return {"cell": _cell(*given, ONE_ANSWER, remedy)}


def lstm_options(
    *, activation_alpha: tuple[float, ...] | None = None, activation_beta: tuple[float, ...] | None = None,
    activations: tuple[str, ...] | None = None, clip: float | None = None, direction: str = "forward",
    hidden_size: int | None = None, input_forget: int = 0, layout: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Converts the attributes of LSTM."""
    if layout not in (0, 1):
        raise ModelError(f"attribute 'layout' is {layout}, expected 0 or 1")
    given = activations, activation_alpha, activation_beta, clip, direction, hidden_size, input_forget
    return {"cell": _cell(*given, FLOATS)._replace(is_batch_first=bool(layout))}


def _cell(
    names: tuple[str, ...] | None, alphas: tuple[float, ...] | None, betas: tuple[float, ...] | None,
    clip: float | None, direction: str, hidden_size: int | None, input_forget: int, known: Mapping[str, Activation],
    remedy: str = "",
) -> Cell:  # fmt: skip
    if direction not in DIRECTIONS:
        raise ModelError(f"attribute 'direction' is {direction!r}; supported: {', '.join(DIRECTIONS)}")
    backward = DIRECTIONS[direction]
    names = names or DEFAULT * len(backward)
    if len(names) != 3 * len(backward):
        raise ModelError(f"attribute 'activations' has {len(names)} names, expected {3 * len(backward)}")
    if clip is not None and not clip > 0:
        raise ModelError(f"attribute 'clip' is {clip}, expected a positive number")
    if hidden_size is not None and hidden_size < 1:
        raise ModelError(f"attribute 'hidden_size' is {hidden_size}, expected at least 1")
    functions = _activations(names, alphas or (), betas or (), known, remedy)
    of_directions = tuple(functions[place : place + 3] for place in range(0, len(functions), 3))
    return Cell(backward, of_directions, clip, bool(input_forget), hidden_size)


# Operators ------------------------------------------------------------------------------------------------------------


@operator("LSTM", types=(REAL, REAL, REAL, REAL, INT32, REAL, REAL, REAL), options=lstm_options, has_rule=False,
          fixed=(4,))  # fmt: skip
def lstm(
    x: Array, w: Array, r: Array, bias: Array | None = None, sequence_lens: Array | None = None,
    initial_h: Array | None = None, initial_c: Array | None = None, peephole: Array | None = None, *, cell: Cell,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """All hidden states [T, D, B, N], and the last hidden states and cell states [D, B, N].

    w is [D, 4 * N, I] and r [D, 4 * N, N]; `States` describes the other inputs. The hidden states after an item's last
    step are 0, and so are the last states of an item without steps. With the batch first, the batch is the first
    dimension of x, of the initial states and of the results: [B, T, D, N] and [B, D, N].
    """
    dtype = x.dtype
    expected("X", x, (None, None, None))
    if cell.is_batch_first:
        x, initial_h, initial_c = (None if a is None else jnp.swapaxes(a, 0, 1) for a in (x, initial_h, initial_c))
    expected("R", r, (len(cell.backward), None, None))
    hidden = _hidden_size(cell, r.shape[2], f"R of shape {r.shape}")
    expected("R", r, (len(cell.backward), 4 * hidden, hidden))
    expected("W", w, (len(cell.backward), 4 * hidden, x.shape[2]))
    given = States(x, bias, sequence_lens, initial_h, initial_c, peephole)
    run = partial(scanned, cell=cell, multiply_h=_by_floats(r))
    results = recurrent(given, cell, _by_floats(w), run, hidden)
    if cell.is_batch_first:
        y, *last = results
        results = [jnp.transpose(y, (2, 0, 1, 3)), *(jnp.swapaxes(state, 0, 1) for state in last)]
    y, last_h, last_c = (result.astype(dtype) for result in results)
    return y, last_h, last_c


@operator(
    "DynamicQuantizeLSTM", domain=MICROSOFT,
    types=(SCALE, BYTE, BYTE, SCALE, INT32, SCALE, SCALE, SCALE, SCALE, BYTE, SCALE, BYTE),
    options=quantized_lstm_options, kind="dynamic_lstm", is_quantized=True, fixed=(4, 9, 11),
    prepare={(1,): prepared_matrices, (2,): prepared_matrices},
)  # fmt: skip
def dynamic_quantize_lstm(
    x: Array, w: Array, r: Array, bias: Array | None, sequence_lens: Array | None, initial_h: Array | None,
    initial_c: Array | None, peephole: Array | None, w_scale: Array, w_zero_point: Array, r_scale: Array,
    r_zero_point: Array, *, cell: Cell,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """`lstm` with integer products.

    w [D, I, 4 * N] and r [D, N, 4 * N] have 8 bits. Their scales and zero points are [D], or [D, 4 * N] with one for
    each column. x is quantized to uint8 by the range of its steps up to the last step of the longest item. The hidden
    states of all items are quantized together in each step; the hidden states of items that have ended become 0.
    """
    count = len(cell.backward)
    expected("X", x, (None, None, None))
    expected("R", r, (count, None, None))
    hidden = _hidden_size(cell, r.shape[1], f"R of shape {r.shape}")
    expected("R", r, (count, hidden, 4 * hidden))
    expected("W", w, (count, x.shape[2], 4 * hidden))
    parameters = {"W_scale": w_scale, "W_zero_point": w_zero_point, "R_scale": r_scale, "R_zero_point": r_zero_point}
    for name, parameter in parameters.items():
        expected(name, parameter, (count,), (count, 4 * hidden))
    for name, matrices, zero_point in (("W", w, w_zero_point), ("R", r, r_zero_point)):
        if zero_point.dtype != matrices.dtype:
            text = f"{name}_zero_point has type {zero_point.dtype}, expected {matrices.dtype}, the type of {name}"
            raise ModelError(text)
    given = States(x, bias, sequence_lens, initial_h, initial_c, peephole)
    multiply_x = _by_integers(w, w_scale, _unless_zero(w_zero_point))
    run = partial(_quantized_steps, r, r_scale, _unless_zero(r_zero_point), cell=cell)
    results = recurrent(given, cell, multiply_x, run, hidden)
    y, last_h, last_c = map(lax.stop_gradient, results)
    return y, last_h, last_c


def _takes_steps(*arrays: Any, cell: Cell) -> bool:
    """Whether the kernel takes the call; it computes only the default activations."""
    own = _activations(DEFAULT, (), (), ONE_ANSWER, "")
    return all(each == own for each in cell.activations) and LSTM.takes(*arrays, cell=cell)


@with_kernel(LSTM._replace(takes=_takes_steps))
def _quantized_steps(
    r: Any, r_scale: Array, r_zero_point: Array | None, gates: Array, lengths: Array | None, h: Array, c: Array,
    bias: Array | None, peephole: Array | None, *, cell: Cell,
) -> tuple[Array, Array, Array]:  # fmt: skip
    multiply_h = _by_integers(r, r_scale, r_zero_point)
    return scanned(gates, lengths, h, c, bias, peephole, cell=cell, multiply_h=multiply_h)


def _hidden_size(cell: Cell, size: int, where: str) -> int:
    """The size of the hidden state, from the shape of the weights."""
    if size < 1:
        raise ModelError(f"{where} has {size} hidden units, expected at least 1")
    if cell.hidden_size not in (None, size):
        raise ModelError(f"attribute 'hidden_size' is {cell.hidden_size}, but {where} has {size}")
    return size


# Products ------------------------------------------------------------------------------------------------------------


def _by_floats(matrices: Array) -> Multiply:
    """Products with the matrices [D, 4 * N, K]."""

    def one(x: Array, matrix: Array) -> Array:
        # Contracts the last dimension of both, so that no step transposes the matrix.
        return lax.dot_general(x, matrix, (((x.ndim - 1,), (1,)), ((), ())), precision=EXACT)

    matrices = float32(matrices)
    of_directions = _of_directions(one, matrices)

    def multiply(x: Array, axis: int | None) -> Array:
        if axis is not None:
            return of_directions(x, axis)
        # One product with the rows of all matrices: XLA would transpose the matrices of a batch at each call.
        count, rows, size = matrices.shape
        together = one(x, matrices.reshape(count * rows, size))
        return jnp.moveaxis(together.reshape(*x.shape[:-1], count, rows), -2, 0)

    return multiply


def _unless_zero(zero_points: Any) -> Any:
    """The zero points, or None if all are known to be 0."""
    return None if is_known(zero_points) and not zero_points.any() else zero_points


def _by_integers(matrices: Any, scales: Array, zero_points: Array | None) -> Multiply:
    """Products with quantized matrices [D, K, 4 * N]; the other operand is quantized by the range of its elements."""

    def one(x: Array, matrix: Any, scale: Array, zero_point: Array | None) -> Array:
        if 0 in x.shape:
            return jnp.zeros((*x.shape[:-1], matrix.shape[-1]), jnp.float32)
        quantized, x_scale, x_zero_point = directml.to_integers_by_range(x)
        return directml.float_product(quantized, matrix, x_scale, scale, x_zero_point, zero_point)

    return _of_directions(one, matrices, scales, zero_points)


def _of_directions(one: Callable[..., Array], *parameters: Any) -> Multiply:
    """The products of all directions as a batch, so that a step has no more operations than that of one direction."""

    def multiply(x: Array, axis: int | None) -> Array:
        return jax.vmap(one, (axis, *(0 for _ in parameters)))(x, *parameters)

    return multiply
