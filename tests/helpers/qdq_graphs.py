"""QDQ models for tests of fusion: models of one operator, and models in which operators share or chain values."""

from functools import partial

import numpy as np

from helpers.qdq_builder import Builder, Grid, Value
from helpers.qdq_contractions import CONVOLUTIONS, EXACT_W, EXACT_X, FLOAT_BIAS, GEMMS, MATMULS, W, X, Y
from helpers.qdq_single import BINARY, MOVERS, OTHER, UNARY

U8, S8, U16 = Grid("u8"), Grid("s8"), Grid("u16")
SQUARE = W.but(shape=(4, 4, 1, 1))
EXACT_SQUARE = EXACT_W.but(shape=(4, 4, 1, 1))


def fan_out(second, between=()):
    """A convolution's result is quantized, and also used elsewhere."""
    build = Builder()
    result = build.then(build.node("Conv", build.value(EXACT_X), build.value(EXACT_W)), between)
    build.finish(result, Y.but(zero_point=0))
    if isinstance(second, str):
        result = build.node(second, result)
    build.finish(result, second if isinstance(second, Grid) else None)
    return build.model()


def product_fan_out(*to):
    """A product's result has several uses."""
    build = Builder()
    result = build.node("MatMul", build.value(EXACT_X.but(shape=(3, 16))), build.value(EXACT_W.but(shape=(16, 8))))
    for each in to:
        build.finish(build.node(each, result) if isinstance(each, str) else result, each if each != "Abs" else None)
    return build.model()


def shared_input(is_output=False):
    """Two convolutions take the same dequantized value, which may also be an output."""
    build = Builder()
    x = build.value(X)
    for _ in range(2):
        build.finish(build.node("Conv", x, build.value(W)), Y)
    if is_output:
        build.output(x)
    return build.model()


def shared_weight():
    build = Builder()
    w = build.value(W)
    for _ in range(2):
        build.finish(build.node("Conv", build.value(X), w), Y)
    return build.model()


def shared_float_bias():
    """Two convolutions with the same float bias; only one is quantized."""
    build = Builder()
    bias = build.value(FLOAT_BIAS)
    build.finish(build.node("Conv", build.value(X), build.value(W), bias), Y)
    build.finish(build.node("Conv", build.value(EXACT_X), build.value(EXACT_W), bias), None)
    return build.model()


def residual(grid, zero_point):
    """A convolution, an addition of its input, and a Relu."""
    build = Builder()
    x = build.value(X.but(grid=grid, by="pair"))
    y = build.pair(build.node("Conv", x, build.value(SQUARE), build.value(FLOAT_BIAS.but(shape=(4,)))), grid)
    build.finish(build.then(build.node("Add", y, x), ["Relu"]), [grid.but(scale=0.0317, zero_point=zero_point)])
    return build.model()


def two_dequantized(grid):
    """A quantized value is dequantized twice, for two operators."""
    build = Builder()
    integers = build.quantize(build.input((1, 4, 6, 6)), grid)
    one, other = (build.dequantize(integers, grid) for _ in range(2))
    build.finish(build.node("Conv", one, build.value(SQUARE)), [grid])
    build.finish(build.node("Add", other, other), [grid.but(scale=0.0431)])
    return build.model()


def same_twice(op, grid):
    build = Builder()
    x = build.value(Value((2, 4), grid))
    attributes = {"axis": 1} if op == "Concat" else {}
    build.finish(build.node(op, x, x, **attributes), grid.but(scale=0.0431))
    return build.model()


def two_convolutions(grid, pairs):
    """Convolutions in a row, with pairs between them."""
    build = Builder()
    x = build.node("Conv", build.value(X.but(grid=grid, by="pair")), build.value(SQUARE))
    for each in pairs:
        x = build.pair(x, each)
    build.finish(build.node("Conv", x, build.value(SQUARE)), [grid.but(scale=0.0371)])
    return build.model()


def chain(*grids, start="f32", end=None):
    """Floats quantized and dequantized by each grid in turn; integer inputs are first dequantized."""
    build = Builder()
    x = build.input((2, 4)) if start == "f32" else build.value(Value((2, 4), grids[0]))
    for grid in grids[:-1] if start == "f32" else grids[1:-1]:
        x = build.pair(x, grid)
    build.finish(build.then(x, [end] if end else []), grids[-1] if start != "f32" else [grids[-1]])
    return build.model()


def mover_between(is_shared):
    """A value is transposed before a convolution; the transposed or the original value also goes to an Abs."""
    build = Builder()
    x = build.value(X)
    moved = build.node("Transpose", x, perm=[0, 1, 3, 2])
    build.finish(build.node("Abs", x if is_shared else moved), U8)
    build.finish(build.node("Conv", moved, build.value(W)), Y)
    return build.model()


def transposed_weight():
    build = Builder()
    w = build.node("Transpose", build.value(W.but(shape=(8, 16))), perm=[1, 0])
    build.finish(build.node("MatMul", build.value(X.but(shape=(3, 16))), w), Y)
    return build.model()


def split(grid, *to, opset=21, **changes):
    build = Builder(opset)
    x = build.value(Value((2, 6), grid.but(**changes)))
    sizes = {"split": [2, 4]} if opset < 13 else {}
    given = [] if opset < 13 else [build.constant([2, 4], "s64")]
    for part, each in zip(build.node("Split", x, *given, count=2, axis=1, **sizes), to, strict=False):
        build.finish(part, each)
    return build.model()


def concat(*grids, to, constant=None, then=()):
    build = Builder()
    values = [build.value(Value((2, 4), grid)) for grid in grids]
    if constant is not None:
        values.append(build.value(constant))
    build.finish(build.then(build.node("Concat", *values, axis=1), then), to)
    return build.model()


def added_pair():
    """A product and its bias, each quantized on its own."""
    build = Builder()
    product = build.node("MatMul", build.value(X.but(shape=(3, 16))), build.value(W.but(shape=(16, 8))))
    build.finish(build.node("Add", build.pair(product, U8), build.value(Value((8,), OTHER, "constant"))), OTHER)
    return build.model()


def scale_given(bias=None):
    """A scale and a zero point are inputs of the graph."""
    build = Builder()
    x = build.node("DequantizeLinear", build.input((1, 4, 6, 6), "u8"), build.input((), "f32"), build.input((), "u8"))
    build.finish(build.node("Conv", x, build.value(EXACT_W)), Y)
    return build.model()


def where(other, grid=U8, to=OTHER):
    build = Builder()
    condition = build.input((2, 4), "bool")
    build.finish(build.node("Where", condition, build.value(Value((2, 4), grid)), build.value(other)), to)
    return build.model()


def constant_added(by):
    build = Builder()
    build.finish(build.node("Add", build.input((2, 4)), build.value(Value((2, 4), U8, by))), None)
    return build.model()


def clip_and_abs():
    """A clamp's result is quantized, and also used elsewhere."""
    build = Builder()
    x = build.then(build.input((2, 4)), ["Abs", ("Clip", np.float32(-9), np.float32(9), {})])
    build.finish(x, U8)
    build.finish(build.node("Abs", x), None)
    return build.model()


def top_k():
    build = Builder()
    values, places = build.node("TopK", build.value(Value((2, 4), U8)), build.constant([2], "s64"), count=2)
    build.finish(values, U8)
    build.output(places, "s64")
    return build.model()


MANY = {
    "fan_out_same_q": partial(fan_out, Y.but(zero_point=0)),
    "fan_out_other_q": partial(fan_out, OTHER),
    "fan_out_float": partial(fan_out, "Abs"),
    "fan_out_output": partial(fan_out, None),
    "fan_out_relu_float": partial(fan_out, "Abs", ["Relu"]),
    "fan_out_relu_output": partial(fan_out, None, ["Relu"]),
    "fan_out_product_two_q": partial(product_fan_out, Y, OTHER),
    "fan_out_product_float": partial(product_fan_out, Y, "Abs"),
    "fan_out_product_output": partial(product_fan_out, Y, None),
    "shared_input": shared_input,
    "shared_input_output": partial(shared_input, True),
    "shared_weight": shared_weight,
    "shared_float_bias": shared_float_bias,
    "residual": partial(residual, U8, 0),
    "residual_s8": partial(residual, S8, -128),
    "two_dequantized": partial(two_dequantized, U8),
    "two_dequantized_s8": partial(two_dequantized, S8),
    "add_itself": partial(same_twice, "Add", U8),
    "concat_itself": partial(same_twice, "Concat", U8),
    "two_convolutions": partial(two_convolutions, U8, [Y]),
    "two_convolutions_s8": partial(two_convolutions, S8, [S8.but(scale=0.0579)]),
    "two_convolutions_two_pairs": partial(two_convolutions, U8, [Y, Y]),
    "two_convolutions_two_other_pairs": partial(two_convolutions, U8, [Y, OTHER]),
    "two_convolutions_s8_then_u8": partial(two_convolutions, U8, [S8, U8]),
    "q_dq": partial(chain, U8),
    "q_dq_float": partial(chain, U8, U8, end="Abs"),
    "q_dq_q_dq": partial(chain, U8, U8),
    "q_dq_q_dq_other": partial(chain, U8, OTHER),
    "q_dq_q_dq_s8": partial(chain, S8, S8.but(scale=0.0317)),
    "q_dq_q_dq_shifted_s8": partial(chain, U8.but(zero_point=131), S8),
    "q_dq_q_dq_u16": partial(chain, U16, U16.but(scale=0.0317)),
    "q_dq_q_dq_no_zero_points": partial(chain, U8.but(zero_point=None), OTHER.but(zero_point=None)),
    "q_dq_three_pairs": partial(chain, U8, OTHER, U8.but(scale=0.0431)),
    "dq_q": partial(chain, U8, U8, start="u8"),
    "dq_q_other": partial(chain, U8, OTHER, start="u8"),
    "dq_q_u16": partial(chain, U16, U16, start="u16"),
    "dq_q_no_zero_points": partial(chain, U8.but(zero_point=None), U8.but(zero_point=None), start="u8"),
    "dq_q_to_s8": partial(chain, U8, S8, start="u8"),
    "mover_between": partial(mover_between, False),
    "mover_between_shared": partial(mover_between, True),
    "transposed_weight": transposed_weight,
    "split": partial(split, U8, U8, U8),
    "split_other": partial(split, U8, U8, OTHER),
    "split_s8": partial(split, S8, S8, S8),
    "split_u16": partial(split, U16, U16, U16),
    "split_to_s8": partial(split, U8, S8, S8),
    "split_opset_11": partial(split, U8, U8, U8, opset=11),
    "split_one_unused": partial(split, U8, U8),
    "split_one_float": partial(split, U8, U8, None),
    "split_no_zero_point": partial(split, U8, U8, U8, zero_point=None),
    "concat": partial(concat, U8, OTHER, to=OTHER),
    "concat_same": partial(concat, U8, U8, to=U8),
    "concat_three": partial(concat, U8, OTHER, U8.but(scale=0.011), to=OTHER),
    "concat_s8": partial(concat, S8, S8.but(scale=0.0317), to=S8),
    "concat_mixed": partial(concat, U8, S8, to=U8),
    "concat_u16": partial(concat, U16, U16, to=U16),
    "concat_float": partial(concat, U8, U8, to=U8, constant=Value((2, 4), None, "constant")),
    "concat_constant": partial(concat, U8, to=U8, constant=Value((2, 4), OTHER, "constant")),
    "concat_no_q": partial(concat, U8, OTHER, to=None),
    "concat_no_q_same": partial(concat, U8, U8, to=None),
    "concat_relu": partial(concat, U8, OTHER, to=OTHER.but(zero_point=0), then=["Relu"]),
    "where": partial(where, Value((2, 4), OTHER)),
    "where_s8": partial(where, Value((2, 4), S8.but(scale=0.0317)), S8, S8),
    "where_mixed": partial(where, Value((2, 4), S8)),
    "where_u16": partial(where, Value((2, 4), U16), U16, U16),
    "where_float_scalar": partial(where, np.float32(1.5)),
    "where_float_vector": partial(where, np.ones(1, np.float32)),
    "added_pair": added_pair,
    "scale_given": scale_given,
    "constant_added": partial(constant_added, "constant"),
    "constant_added_folded": partial(constant_added, "folded"),
    "clip_and_abs": clip_and_abs,
    "top_k": top_k,
}
GROUPS = (CONVOLUTIONS, GEMMS, MATMULS, BINARY, UNARY, MOVERS, MANY)
MODELS = {name: make for group in GROUPS for name, make in group.items()}
assert len(MODELS) == sum(map(len, GROUPS)), "two models have one name"
