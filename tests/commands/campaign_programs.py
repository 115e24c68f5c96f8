"""Random calls of what is no public operator, for the campaign: kernels of `jaxdml.onnx`, `ptq` and `exact`.

Their results are computed by NumPy and `jaxdml.reference`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import jaxdml as dml
from _arithmetic import native_bytes as of_bytes
from _arithmetic.attention_calls import Random
from _arithmetic.attention_calls import expected as expected_attention
from _exact import row_functions
from _onnx.lstm_by_numpy import dynamic_quantize_lstm
from helpers.cases import BYTES, data, scale, zero_point
from jaxdml import reference
from jaxdml._arithmetic.pooling import greatest_of_windows
from jaxdml._exact.attention import attention as fused_attention
from jaxdml._quantized import directml
from jaxdml._quantized.onnxruntime.lookup import looked_up
from jaxdml._quantized.onnxruntime.mul import qlinear_mul
from jaxdml.onnx._operators import recurrent
from jaxdml.ptq._integers.operators import quantized_rows

F = np.float32


class Program(NamedTuple):
    """One call: a name, its array arguments in order, its static options, and the two functions that compute it."""

    operator: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    compute: Callable[..., Any]
    by_numpy: Callable[..., Any]

    @property
    def expected(self) -> Any:
        return self.by_numpy(*self.arguments, **self.options)

    def call(self, *arguments: Any) -> Any:
        return self.compute(*arguments, **self.options)


def _extent(rng: Any, most: int) -> int:
    """A size from 1 to `most`, log-uniform."""
    return int(np.exp(rng.uniform(0, np.log(most + 1))))


# Bytes ---------------------------------------------------------------------------------------------------------------


def max_pooling(rng: Any) -> Program:
    space = tuple(rng.integers(1, 130, rng.integers(1, 3)).tolist())
    x = data(rng, (_extent(rng, 4), _extent(rng, 60), *space), BYTES[rng.integers(2)])
    return Program("max_pooling", (x,), of_bytes.random_windows(rng, space), greatest_of_windows, of_bytes.greatest)


def _entries(x: Any, table: Any) -> Any:
    return table[x.astype(np.int32) - np.iinfo(x.dtype).min]


def table(rng: Any) -> Program:
    """256 or 65,536 entries, which the kernel gets as an argument."""
    of_x, of_y = ([np.uint8, np.int8, np.uint16, np.int16][rng.integers(4)] for _ in range(2))
    entries = data(rng, (256 if np.dtype(of_x).itemsize == 1 else 65536,), of_y)
    x = data(rng, (_extent(rng, 60), int(rng.integers(1, 4000))), of_x)
    return Program(f"table_of_{entries.size}", (x, entries), {}, looked_up, _entries)


def _multiplied(a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, y_scale: Any, y_zero: Any) -> Any:
    multiplier = reference.floats.div(reference.floats.mul(a_scale, b_scale), y_scale)
    zeros = (0 if zero is None else np.asarray(zero).astype(np.int32) for zero in (a_zero, b_zero, y_zero))
    of_a, of_b, of_y = zeros
    return of_bytes.product(a, of_a, b, of_b, multiplier, of_y)


def multiplication(rng: Any) -> Program:
    """QLinearMul; the second operand has the shape of the first, or its first dimensions followed by ones."""
    sizes, dtype = (_extent(rng, 6), _extent(rng, 60), _extent(rng, 300)), BYTES[rng.integers(2)]
    smaller = tuple(np.where(np.arange(3) < rng.integers(0, 4), sizes, 1))
    parts = [part for shape in (sizes, smaller) for part in (data(rng, shape, dtype), scale(rng, ()), None)]
    parts[2], parts[5] = (zero_point(rng, dtype, ()) for _ in range(2))
    arguments = (*parts, scale(rng, (), 0.2), zero_point(rng, dtype, ()))
    return Program("qlinear_mul", arguments, {}, qlinear_mul, _multiplied)


# Floats --------------------------------------------------------------------------------------------------------------


def attention(rng: Any) -> Program:
    """Attention of floats, as in `jaxdml.onnx`."""
    statics, arrays = Random(rng).call()
    return Program("attention", arrays, {}, partial(fused_attention, *statics), partial(expected_attention, *statics))


def _function(rng: Any) -> tuple[str, row_functions.RowFunction]:
    names = list(row_functions.FUNCTIONS)
    place = rng.integers(len(names) + 3)
    return (names[place], row_functions.FUNCTIONS[names[place]]) if place < len(names) else (
        "composition", row_functions.composed(rng))  # fmt: skip


def rows(rng: Any) -> Program:
    """Softmax, a norm, an activation or a composition of elementwise functions, in exact floats."""
    _, function = _function(rng)
    shape = (_extent(rng, 3), _extent(rng, 150), 1 + _extent(rng, 1000))
    x = Random(rng).floats(*shape, strange=rng.choice([0, 0.2]))
    arguments = x, *row_functions.operands_of(function, rng, shape)
    return Program("rows", arguments, {}, dml.exact(function.by_jax), partial(row_functions.expected, function))


# Chains --------------------------------------------------------------------------------------------------------------


def _chained(function: Any, dtype: Any, *arguments: Any) -> Any:
    """Two products with a function between them, whose results are quantized by one range or each row by its own."""
    first, by, c, y, others = _parts(arguments)
    x = function.by_jax(dml.matrix_multiply_integer_to_float(*first), *others)
    if by[0] is None:
        integers, x_scale, x_zero_point = quantized_rows(x)
        return directml.float_product(integers, c[0], x_scale, c[1], x_zero_point, c[2])
    integers = dml.element_wise_quantize_linear(x, *by)
    if y[0] is None:
        return dml.matrix_multiply_integer_to_float(integers, *by, *c)
    return dml.quantized_linear_matrix_multiply(integers, *by, *c, *y, output_dtype=dtype)


def _ranges(x: Any) -> tuple[Any, Any]:
    """The scale and zero point of uint8 for each row; [0, 0] has the scale 1, and no scale is below 2**-126."""
    with np.errstate(all="ignore"):
        low, high = np.minimum(x.min(-1, keepdims=True), F(0)), np.maximum(x.max(-1, keepdims=True), F(0))
        steps = reference.floats.div(high - low, F(255))
        scales = np.where(high == low, F(1), np.maximum(steps, np.finfo(F).smallest_normal))
    return scales, reference.element_wise_quantize_linear(-low, scales, None, output_dtype=np.uint8)


def _chained_by_numpy(function: Any, dtype: Any, *arguments: Any) -> Any:
    first, by, c, y, others = _parts(arguments)
    x = row_functions.expected(function, reference.matrix_multiply_integer_to_float(*first), *others)
    if by[0] is None:
        by = _ranges(x)
    integers = reference.element_wise_quantize_linear(x, *by)
    if y[0] is None:
        return reference.matrix_multiply_integer_to_float(integers, *by, *c)
    return reference.quantized_linear_matrix_multiply(integers, *by, *c, *y, output_dtype=dtype)


def _parts(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The operands of the first product, scale and zero point between, the second matrix, the result, other arrays."""
    return arguments[:6], arguments[6:8], arguments[8:11], arguments[11:13], arguments[13:]


def _chain(rng: Any, name: str, batch: tuple[int, ...], sizes: tuple[int, int, int, int]) -> Program:
    """Products [M, K] by [K, N] and [M, N] by [N, W]."""
    (m, k, n, w), (of_a, of_b, of_x, of_c, of_y) = sizes, (BYTES[each] for each in rng.integers(2, size=5))
    ones, (_, function) = (1,) * len(batch), _function(rng)
    first = (
        data(rng, (*batch, m, k), of_a), scale(rng, (*ones, m, 1)), zero_point(rng, of_a, (*ones, m, 1)),
        data(rng, (*batch, k, n), of_b), scale(rng, (*ones, 1, n), 0.02), zero_point(rng, of_b, (*ones, 1, n)),
    )  # fmt: skip
    is_by_rows = rng.random() < 0.4
    between = (None, None) if is_by_rows else (scale(rng, (), 0.01), zero_point(rng, of_x, ()))
    if not is_by_rows and between[1] is None:
        between = between[0], np.asarray(0, of_x)
    c = (data(rng, (*batch, n, w), of_c), scale(rng, (*ones, 1, w)), zero_point(rng, of_c, (*ones, 1, w)))
    y = (
        (None, None)
        if is_by_rows or rng.random() < 0.4
        else (scale(rng, (*ones, m, 1)), zero_point(rng, of_y, (*ones, m, 1)))
    )
    others = row_functions.operands_of(function, rng, (*batch, m, n))
    computed = dml.exact(partial(_chained, function, of_y))
    return Program(name, (*first, *between, *c, *y, *others), {}, computed, partial(_chained_by_numpy, function, of_y))


def attention_of_integers(rng: Any) -> Program:
    """Mostly large enough for a chain; each product has a matrix of its own."""
    batch = tuple(int(size) for size in rng.integers(1, 5, rng.integers(1, 3)))
    rows, columns = int(rng.integers(16, 180)), int(rng.integers(2, 250))
    return _chain(rng, "chain", batch, (rows, _extent(rng, 80), columns, _extent(rng, 80)))


def perceptron(rng: Any) -> Program:
    """Two matrices that all rows share, which may be prepared, and a hidden layer that does not fit the cache."""
    columns = int(rng.integers(1000, 2500))
    return _chain(rng, "perceptron", (), (2**21 // columns + 1, _extent(rng, 30), columns, _extent(rng, 30)))


# LSTM ----------------------------------------------------------------------------------------------------------------


def lstm(rng: Any) -> Program:
    """DynamicQuantizeLSTM with every option that the kernel takes."""
    steps, batch = _extent(rng, 12), _extent(rng, 12)
    size, units = rng.integers(1, 90, 2).tolist()
    direction, dtype = list(recurrent.DIRECTIONS)[rng.integers(3)], BYTES[rng.integers(2)]
    backward, clip, couples = recurrent.DIRECTIONS[direction], [None, 0.5, 3e38][rng.integers(3)], bool(rng.integers(2))
    count = len(backward)

    def floats(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(F)

    def either(x: Any) -> Any:
        return x if rng.integers(2) else None

    def parameters() -> tuple[Any, Any]:
        of_columns = (count, 4 * units) if rng.integers(2) else (count,)
        zeros = data(rng, of_columns, dtype) if rng.integers(2) else np.zeros(of_columns, dtype)
        return rng.uniform(0.002, 0.02, of_columns).astype(F), zeros

    arguments = (
        floats(steps, batch, size), data(rng, (count, size, 4 * units), dtype),
        data(rng, (count, units, 4 * units), dtype), either(floats(count, 8 * units)),
        either(rng.integers(0, steps + 1, batch, np.int32)), either(floats(count, batch, units)),
        either(floats(count, batch, units)), either(floats(count, 3 * units)), *parameters(), *parameters(),
    )  # fmt: skip
    options = {"direction": direction, "clip": clip, "input_forget": int(couples)}
    computed = partial(recurrent.dynamic_quantize_lstm, **recurrent.quantized_lstm_options(**options))
    by_numpy = partial(dynamic_quantize_lstm, backward=backward, clip=clip, couples_forget=couples)
    return Program("dynamic_quantize_lstm", arguments, {}, computed, by_numpy)


MAKERS = (
    max_pooling, table, table, multiplication, attention, attention, rows, rows, attention_of_integers,
    attention_of_integers, perceptron, lstm, lstm,
)  # fmt: skip
