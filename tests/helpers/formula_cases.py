"""Random calls of the formulas of onnxruntime's kernels, each with the operator that it is compared with."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from helpers.one_node import fed
from jaxdml._quantized.onnxruntime.add import qlinear_add
from jaxdml._quantized.onnxruntime.gemm import qgemm
from jaxdml._quantized.onnxruntime.lookup import qlinear_concat, qlinear_leaky_relu, qlinear_sigmoid, qlinear_where
from jaxdml._quantized.onnxruntime.mul import qlinear_mul
from jaxdml._quantized.onnxruntime.pooling import qlinear_average_pool, qlinear_global_average_pool
from jaxdml._quantized.onnxruntime.softmax import exponentials, softmax


@dataclasses.dataclass(frozen=True)
class Form:
    """Calls with one set of shapes and options.

    Attributes:
      operator: the operator of com.microsoft.
      function: jaxdml's function; jitted, except for softmax, whose table is made outside of the jit.
      draw: (rng, dtype) -> arguments.
      attributes: the attributes of the node.
      output: the name of the output's type, if not that of the first 8-bit argument.
    """

    operator: str
    function: Callable[..., Any]
    draw: Callable[..., tuple[Any, ...]]
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)
    output: str | None = None

    def differing(self, rng, dtype, least):
        """The number of outputs that differ from onnxruntime's, and the number of all outputs, at least `least`."""
        arguments = self.draw(rng, dtype)
        theirs = fed(self.operator, arguments, self.output or np.dtype(dtype).name, **self.attributes)
        ours = self.function if self.operator == "QLinearSoftmax" else jax.jit(self.function)
        differing = total = 0
        while total < least:
            got, expected = np.asarray(ours(*arguments)), theirs(*arguments)
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
            differing += np.count_nonzero(got != expected)
            total += got.size
            arguments = self.draw(rng, dtype)
        return differing, total


def integers(rng, dtype, shape=()):
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


def scale(rng, low=-8, high=2):
    """A scale of any of many orders of magnitude, sometimes a power of two, which causes ties."""
    exponent = rng.uniform(low, high)
    return np.float32(2 ** (round(exponent) if rng.random() < 0.3 else exponent))


def grid(rng, dtype):
    return scale(rng), integers(rng, dtype)


# Element by element --------------------------------------------------------------------------------------------------


def _binary(operator, function, a_shape, b_shape, wide=False):
    def draw(rng, dtype):
        a, b = integers(rng, dtype, a_shape), integers(rng, dtype, b_shape)
        low, high = (-24, 12) if wide else (-8, 2)
        scales = [scale(rng, low, high) for _ in range(3)]
        points = [integers(rng, dtype) if rng.random() < 0.8 else np.asarray(0, dtype) for _ in range(3)]
        return a, scales[0], points[0], b, scales[1], points[1], scales[2], points[2]

    return Form(operator, function, draw)


SHAPES = (
    ((16, 1, 1), (2, 16, 12, 13)), ((5000,), (5000,)), ((2, 16, 12, 13), (16, 1, 1)), ((1,), (3000,)), ((), (500,)),
    ((500,), ()), ((70, 1), (1, 60)), ((1, 60), (70, 1)), ((4, 50, 1), (4, 1, 1)), ((4, 1, 1), (4, 50, 1)),
    ((400, 1), (1,)), ((1,), (400, 1)), ((2, 1, 30, 1), (30, 1)),
)  # fmt: skip


def _unary(operator, function, **attributes):
    def draw(rng, dtype):
        limits = np.iinfo(dtype)
        every = np.arange(limits.min, limits.max + 1).astype(dtype).reshape(2, 128)
        return every, scale(rng, -14, 2), integers(rng, dtype), scale(rng, -14, 2), integers(rng, dtype)

    return Form(operator, function, draw, attributes)


def _concat(*shapes, axis):
    def draw(rng, dtype):
        output = grid(rng, dtype)
        parts = [(integers(rng, dtype, shape), *(output if i == 1 else grid(rng, dtype)))
                 for i, shape in enumerate(shapes)]  # fmt: skip
        return *output, *(each for part in parts for each in part)

    return Form("QLinearConcat", partial(qlinear_concat, axis=axis), draw, {"axis": axis})


def _where(condition, x, y):
    def draw(rng, dtype):
        grids = [grid(rng, dtype) for _ in range(3)]
        grids[0] = grids[rng.integers(0, 2) * 2]  # sometimes that of the output
        values = (integers(rng, dtype, x), *grids[0]), (integers(rng, dtype, y), *grids[1])
        return rng.integers(0, 2, condition).astype(bool), *values[0], *values[1], *grids[2]

    return Form("QLinearWhere", qlinear_where, draw)


# Along dimensions ----------------------------------------------------------------------------------------------------


def _pooled(shape):
    def draw(rng, dtype):
        x_scale = scale(rng, -6, 0)
        y_scale = np.float32(x_scale * np.float32(2) ** scale(rng, -1, 1) / 2)
        return integers(rng, dtype, shape), x_scale, integers(rng, dtype), y_scale, integers(rng, dtype)

    return draw


def _average(shape, window, strides, pads, include=0, ceil=0, last=0):
    rank = len(window)
    options = {"window": window, "strides": strides, "padding": tuple(zip(pads[:rank], pads[rank:], strict=True))}
    function = partial(
        qlinear_average_pool, **options, count_include_pad=bool(include), ceil_mode=bool(ceil), channels_last=bool(last)
    )
    attributes = {"kernel_shape": window, "strides": strides, "pads": pads, "count_include_pad": include}
    return Form("QLinearAveragePool", function, _pooled(shape), attributes | {"ceil_mode": ceil, "channels_last": last})


def _global(shape, last=0):
    function = partial(qlinear_global_average_pool, channels_last=bool(last))
    return Form("QLinearGlobalAveragePool", function, _pooled(shape), {"channels_last": last})


def _softmax(shape, axis, opset=13):
    of_rest = opset < 13
    by_table = jax.jit(partial(softmax, axis=axis, of_rest=of_rest))

    def function(x, x_scale, x_zero_point, *output):
        depth = int(np.prod(x.shape[axis:])) if of_rest else x.shape[axis]
        return by_table(x, exponentials(x_scale, depth), *output)

    def draw(rng, dtype):
        limits = np.iinfo(dtype)
        x = rng.normal(limits.min + 128, rng.choice([5, 20, 80]), shape).clip(limits.min, limits.max).astype(dtype)
        output = (np.float32(1 / 256), np.asarray(limits.min, dtype)), grid(rng, dtype)
        return x, scale(rng, -10, 2), integers(rng, dtype), *output[rng.integers(0, 2)]

    return Form("QLinearSoftmax", function, draw, {"axis": axis, "opset": opset})


def _gemm(b_type, bias=None, per_column=0, trans=(0, 0), alpha=1.0, is_float=0):
    statics = {"alpha": alpha, "trans_a": bool(trans[0]), "trans_b": bool(trans[1])}

    def draw(rng, dtype):
        a = integers(rng, dtype, (50, 90))
        # int8 weights of 7 bits, because without VNNI onnxruntime adds pairs of products in saturating int16.
        b = integers(rng, b_type, (90, 60)) if b_type == np.uint8 else rng.integers(-64, 64, (90, 60)).astype(np.int8)
        columns = (60,) if per_column else ()
        b_zero_point = (rng.integers(-30, 30, columns) + (128 if b_type == np.uint8 else 0)).astype(b_type)
        b_scale = np.asarray([scale(rng, -8, -3) for _ in range(60)] if per_column else scale(rng, -8, -3))
        added = None if bias is None else rng.integers(-(2**16), 2**16, bias).astype(np.int32)
        output = (None, None) if is_float else (scale(rng, -2, 2), integers(rng, dtype))
        a, b = (x.T.copy() if is_turned else x for x, is_turned in zip((a, b), trans, strict=True))
        return a, scale(rng, -8, -3), integers(rng, dtype), b, b_scale, b_zero_point, added, *output

    attributes = {"alpha": alpha, "transA": trans[0], "transB": trans[1]}
    return Form("QGemm", partial(qgemm, **statics), draw, attributes, "float32" if is_float else None)


def _gemms(b_type):
    biases = (60,), None, (), (1,), (1, 60), (50, 1), (50, 60)
    return [
        *(_gemm(b_type, bias, per_column=i % 2) for i, bias in enumerate(biases)),
        *(_gemm(b_type, (60,), 1, trans, 0.37) for trans in ((0, 1), (1, 0), (1, 1))),
        *(_gemm(b_type, bias, 1, alpha=alpha, is_float=1) for bias in (None, (60,)) for alpha in (1.0, 0.37)),
    ]


# By name of the operator; the first forms of each are always run.
FORMS = {
    "add": [_binary("QLinearAdd", qlinear_add, *pair, wide=i == 3) for i, pair in enumerate(SHAPES)],
    "mul": [_binary("QLinearMul", qlinear_mul, *pair, wide=i == 3) for i, pair in enumerate(SHAPES)],
    "average_pool": [
        _average((4, 30, 14, 13), (3, 2), (2, 3), (1, 0, 2, 1), ceil=1),
        _average((4, 14, 13, 30), (3, 3), (2, 2), (1, 1, 1, 1), include=1, last=1),
        _average((9, 30, 30), (5,), (2,), (2, 1)),
        _average((4, 30, 14, 13), (3, 3), (1, 1), (0, 0, 0, 0)),
        _average((4, 30, 14, 13), (3, 3), (2, 2), (1, 1, 1, 1)),
        _average((4, 30, 14, 13), (3, 2), (2, 3), (1, 0, 2, 1), include=1, ceil=1),
        _average((4, 30, 15, 15), (2, 2), (2, 2), (0, 0, 0, 0), ceil=1),
        _average((4, 30, 15, 15), (2, 2), (2, 2), (0, 0, 0, 0), include=1, ceil=1),
        _average((4, 90, 10, 10), (2, 2), (3, 3), (1, 1, 1, 1), ceil=1),
        _average((9, 200, 7, 7), (2, 2), (4, 4), (0, 0, 1, 1), include=1, ceil=1),
        _average((2, 20, 9, 8, 7), (3, 2, 3), (2, 2, 1), (1, 0, 1, 1, 1, 0)),
        _average((2, 20, 9, 8, 7), (3, 2, 3), (2, 2, 1), (1, 0, 1, 1, 1, 0), include=1, ceil=1),
        _average((2, 9, 8, 7, 20), (3, 2, 3), (2, 2, 1), (1, 0, 1, 1, 1, 0), last=1),
        _average((4, 9, 30, 30), (9, 9), (3, 3), (4, 4, 4, 4)),
        _average((9, 30, 30), (5,), (2,), (2, 1), ceil=1, last=1),
        _average((9, 300, 7, 6), (7, 6), (1, 1), (0, 0, 0, 0)),
        _average((9, 7, 6, 300), (7, 6), (2, 2), (0, 0, 0, 0), last=1),
        _average((9, 300, 7, 6), (7, 6), (1, 1), (1, 0, 0, 0)),
    ],
    "global_average_pool": [
        _global((20, 500, 3, 3)), _global((20, 5, 4, 500), last=1), _global((9, 300, 9)), _global((9, 300, 4, 5, 6)),
        _global((900, 6, 6, 1), last=1), _global((1, 800, 1, 1)),
    ],
    "concat": [_concat((2, 30, 40), (2, 17, 40), (2, 5, 40), axis=-2), _concat((3, 70), (3, 60), axis=1)],
    "where": [
        _where((50, 60), (50, 60), (50, 60)), _where((50, 1), (60,), (50, 60)), _where((), (60,), (50, 60)),
        _where((50, 60), (), (60,)), _where((50, 60), (50, 1), ()),
    ],
    "leaky_relu": [_unary("QLinearLeakyRelu", partial(qlinear_leaky_relu, alpha=0.123), alpha=0.123)],
    "sigmoid": [_unary("QLinearSigmoid", qlinear_sigmoid)],
    "softmax": [
        _softmax((40, 17), -1), _softmax((3, 5, 6, 7), 1), _softmax((3, 5, 6, 7), 2, 12), _softmax((40, 17), 1, 11),
        _softmax((3, 5, 6, 7), 0), _softmax((2, 200), 1), _softmax((50, 1), 1), _softmax((1, 1000), 1),
        _softmax((4, 12, 16, 16), 3), _softmax((40, 25), -1),
    ],
    "gemm_uint8": _gemms(np.uint8),
    "gemm_int8": _gemms(np.int8),
}  # fmt: skip
TYPES_OF_A = {"gemm_uint8": (np.uint8,)}  # all others take uint8 and int8
