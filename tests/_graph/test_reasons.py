"""The printed model says what each operator runs on, and why it stayed in floats, on the operator's line."""

import ast
import itertools
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import jaxdml.onnx
from helpers.qdq_builder import Builder, Grid, Value, single
from helpers.qdq_contractions import BIAS, FLOAT_BIAS, B, W, X, Y, conv, gemm
from helpers.qdq_graphs import MODELS
from jaxdml._arithmetic.halves import TERMS
from jaxdml._graph import operands, rules, stays


def scale_of_result_given():
    build = Builder()
    result = build.node("Conv", build.value(X), build.value(W))
    build.output(build.node("QuantizeLinear", result, build.input(())), "u8")
    return build.model()


def shapes():
    """The reversed shape of a dequantized image is the shape of the result."""
    build = Builder()
    x = build.value(X.but(shape=("N", 4)))
    shape = build.node("Gather", build.node("Shape", x), build.constant([1, 0], "s64"))
    build.finish(build.node("Reshape", x, shape), X.grid)
    return build.model()


def max_pool_places():
    build = Builder()
    values, places = build.node("MaxPool", build.value(X), count=2, kernel_shape=[2, 2])
    build.finish(values, X.grid)
    build.output(places, "s64")
    return build.model()


def split_of_float():
    build = Builder()
    for part in build.node("Split", build.input((2, 6)), build.constant([2, 4], "s64"), count=2, axis=1):
        build.finish(part, Y)
    return build.model()


def mover_fan_out():
    build = Builder()
    moved = build.node("Transpose", build.input((2, 6)))
    build.finish(moved, Y)
    build.output(moved)
    return build.model()


def pad_of_integers():
    build = Builder()
    grid = build.constant(0.1, "f32"), build.constant(3, "u8")
    x = build.node("QuantizeLinear", build.input((2, 6)), *grid)
    padded = build.node("Pad", x, build.constant([0, 1, 0, 1], "s64"), grid[1])
    build.output(build.node("DequantizeLinear", padded, *grid))
    return build.model()


def look_up():
    """A table of 256 entries, whose indices are quantized integers as int32."""
    build = Builder()
    grid = build.constant(0.1, "f32"), build.constant(3, "u8")
    x = build.node("QuantizeLinear", build.input((2, 6)), *grid)
    y = build.node("Gather", build.constant(np.arange(256), "u8"), build.node("Cast", x, to=onnx.TensorProto.INT32))
    build.output(build.node("DequantizeLinear", y, *grid))
    return build.model()


def packed_product(b=None, zero_points=None):
    """MatMulNBits of 16 elements with 4 bits, by 3 columns."""
    build = Builder()
    names = [build.input((2, 16)), b(build) if b else build.constant(np.ones((3, 1, 8)), "u8")]
    names += [build.constant(np.ones((3, 1)), "f32")]
    names += [] if zero_points is None else [build.constant(zero_points, "f32")]
    options = {"K": 16, "N": 3, "bits": 4, "block_size": 16}
    build.output(build.node("MatMulNBits", *names, domain="com.microsoft", **options))
    return build.model()


def in_blocks(size, **changes):
    blocks = np.full((32 // size, 8), 0.5)
    given = {"scale": blocks, "zero_point": np.zeros(blocks.shape), "axis": 0, "block_size": size}
    return B.but(shape=(32, 8), dtype="s4", **given | changes)


COLUMNS = B.but(scale=(0.01,) * 8, zero_point=(0,) * 8, axis=1)
MORE_MODELS = {
    "bias_beyond_int32": lambda: conv(w=W.but(scale=1e-9), b=FLOAT_BIAS),
    "bias_of_scale_0": lambda: conv(w=W.but(scale=0.0), b=FLOAT_BIAS),
    "bias_per_row": lambda: gemm(c=BIAS.but(shape=(3, 8), scale=(0.1,) * 3, zero_point=(0,) * 3, axis=0)),
    "bias_too_short": lambda: gemm(b=COLUMNS, c=FLOAT_BIAS.but(shape=(3,))),
    "result_per_channel": lambda: conv(to=Y.but(scale=(0.05,) * 8, zero_point=(3,) * 8, axis=1)),
    "scale_of_result_given": scale_of_result_given,
    "max_pool_gaps": lambda: single("MaxPool", X, to=X.grid, kernel_shape=[2, 2], dilations=[2, 2], pads=[1, 1, 1, 1]),
    "max_pool_places": max_pool_places,
    "split_of_float": split_of_float,
    "clip_of_negative_scale": lambda: single("Clip", X, np.float32(0), np.float32(1), to=Y.but(scale=-0.05)),
    "clip_bounds_given": lambda: single("Clip", X, Value(()), np.float32(1), to=Y),
    "reduce_max_s32": lambda: single("ReduceMax", X.but(grid=Grid("s32", 0.5, 0))),
    "mover_fan_out": mover_fan_out,
    "integers_to_model": lambda: single("Reshape", X, np.asarray([4, 36]), to=X.grid),
    "no_quantization": lambda: single("MatMul", Value((3, 4)), Value((4, 5), None, "constant"), then=["Relu"]),
    "shapes": shapes,
    "look_up": look_up,
    "pad_of_ones": lambda: single("Pad", X, np.asarray([0, 0, 1, 1] * 2), np.float32(1), to=X.grid),
    "pad_of_edges": lambda: single("Pad", X, np.asarray([0, 0, 1, 1] * 2), to=X.grid, mode="edge"),
    "pad_of_integers": pad_of_integers,
    "matmul_blocks_of_8": lambda: single("MatMul", Value((3, 32)), in_blocks(8)),
    "matmul_float16_blocks": lambda: single("MatMul", Value((3, 32)), in_blocks(16, scale_dtype="f16")),
    "gemm_float16_blocks": lambda: single("Gemm", Value((3, 32)), in_blocks(16, scale_dtype="f16")),
    "gemm_blocks_alpha": lambda: single("Gemm", Value((3, 32)), in_blocks(16), alpha=2.0),
    "gemm_blocks_matrix_added": lambda: single("Gemm", Value((3, 32)), in_blocks(16), FLOAT_BIAS.but(shape=(3, 8))),
    "conv_long_u16": lambda: conv(
        x=X.but(dtype="u16", shape=(1, TERMS + 1, 1, 1)), w=W.but(shape=(1, TERMS + 1, 1, 1))
    ),
    "conv_u16_matrix_added": lambda: conv(x=X.but(dtype="u16"), b=FLOAT_BIAS.but(shape=(3, 8))),
    "gemm_u16_alpha": lambda: single("Gemm", X.but(shape=(3, 32), dtype="u16"), B.but(shape=(32, 8)), alpha=2.0),
    "gemm_u16_matrix_added": lambda: single(
        "Gemm", X.but(shape=(3, 32), dtype="u16"), B.but(shape=(32, 8)), FLOAT_BIAS.but(shape=(3, 8))
    ),
    "gemm_u16_by_u16": lambda: single("Gemm", X.but(shape=(3, 32), dtype="u16"), B.but(shape=(32, 8), dtype="u16")),
    "add_constant_s4": lambda: single("Add", X, X.but(dtype="s4", by="constant"), to=Y),
    "packed_computed": lambda: packed_product(lambda build: build.input((3, 1, 8), "u8")),
    "packed_half_zero_points": lambda: packed_product(zero_points=[[7.5], [8], [9]]),
    "product_reshaped": lambda: single(
        "MatMul", X.but(shape=(3, 16)), W.but(shape=(16, 8)), then=[("Reshape", np.asarray([4, 6]), {})]
    ),
}
ALONE = ", not only to one QuantizeLinear"
CONSTANT = "scale that is not a float32 constant"
INSIDE = "has a bound inside of the quantized range"
BIAS_SCALE = "the scale of its bias is not the product of the scales of its input and its weights"
REMARKS = {
    "pad_of_ones": "it pads with values other than a constant 0",
    "pad_of_edges": "it pads with values other than a constant 0",
    "pad_stays": "its input and its result have different scales",
    "add_float_constant": "c5 is a float",
    "scale_given": f"v4 is dequantized with a {CONSTANT}, or without a zero point that gives its type",
    "conv_float16_scales": f"v4 is dequantized with a {CONSTANT}, or without a zero point that gives its type",
    "conv_no_zero_points": f"v3 is dequantized with a {CONSTANT}, or without a zero point that gives its type",
    "add_u16": "v4 is uint16, quantized operators take 8 bits",
    "conv_long_u16": (
        f"its sums have {TERMS + 1} terms; sums of products of 16-bit and 8-bit integers have at most {TERMS}"
    ),
    "conv_u16_matrix_added": "its bias is not a constant with a value for each channel",
    "gemm_u16_alpha": "transA is 0, alpha is 2 and beta is 1, but products of 16 by 8 bits take 0, 1 and 1",
    "gemm_u16_matrix_added": "its bias is not a constant with a value for each channel",
    "gemm_u16_by_u16": "v8 is uint16, quantized operators take 8 bits",
    "add_constant_s4": "v8 is int4, quantized operators take 8 bits",
    "conv_per_channel_wrong_axis": "v8 has a scale for each index along axis 1, or for each block",
    "matmul_blocks_of_8": "v5 has blocks of 8, but products take multiples of 16",
    "matmul_float16_blocks": f"v5 is dequantized with a {CONSTANT}, or without a zero point that gives its type",
    "gemm_float16_blocks": f"v5 is dequantized with a {CONSTANT}, or without a zero point that gives its type",
    "gemm_blocks_alpha": "transA is 0, alpha is 2 and beta is 1, but products with a matrix in blocks take 0, 1 and 1",
    "gemm_blocks_matrix_added": "its bias is not a constant with a float for each column",
    "packed_computed": "its weights are computed",
    "packed_half_zero_points": "its zero points are not integers from 0 to 15",
    "conv_no_q": f"its result goes to an output{ALONE}",
    "conv_relu_zero_point_10": (f"its result goes to Relu{ALONE}", f"Relu {INSIDE} [-0.579, 14.1855]"),
    "fan_out_same_q": f"its result goes to QuantizeLinear and QuantizeLinear{ALONE}",
    "fan_out_float": f"its result goes to QuantizeLinear and Abs{ALONE}",
    "fan_out_output": f"its result goes to QuantizeLinear and an output{ALONE}",
    "scale_of_result_given": f"its result is quantized with a {CONSTANT}",
    "result_per_channel": "its result is quantized with several scales",
    "conv_u8_to_s8": "its result is quantized to int8, but an input is uint8",
    "average_pool_dilations": "there is no quantized pooling with dilations",
    "softmax_negative_scale": "v4 has the scale -0.0213, QLinearSoftmax takes a positive scale",
    "conv_weight_of_input_without_sizes": "its images have no known rank, and quantized convolutions take at most 2 "
    "dimensions",
    "conv_weight_of_input_3d": "its images have more than 2 dimensions",
    "matmul_by_vector_per_element": "v8 is a vector with a scale for each element",
    "where_float_scalar": "there is no quantized Where",
    "reduce_mean_stays": "there is no quantized ReduceMean",
    "layer_normalization_stays": "there is no quantized LayerNormalization",
    "relu_of_float_s8": f"Relu {INSIDE} [-2.7264, 2.7051]",
    "clip_and_abs": f"its result goes to QuantizeLinear and Abs{ALONE}",
    "clip_of_negative_scale": "its result has the scale -0.05, with which uint8 values are not ordered like floats",
    "clip_bounds_given": "its bounds are not constants",
    "max_pool_gaps": "its windows have dilations, and one may contain nothing but padding",
    "max_pool_places": "its output of indices is used, too",
    "max_pool_negative_scale": "v4 has the scale -0.0213, with which uint8 values are not ordered like floats",
    "reduce_max_s32": "v4 has the scale 0.5, with which int32 values are not ordered like floats",
    "resize_crop": "its fill value outside of the image is a float",
    "transpose_per_channel": "v4 has a scale for each index along axis 1, or for each block",
    "split_of_float": "x1 is a float",
    "mover_fan_out": f"its result goes to QuantizeLinear and an output{ALONE}",
    "conv_3d": "its images have more than 2 dimensions",
    "gemm_bias_beta": "alpha is 1 and beta is 0.5, both must be 1 if there is a bias",
    "gemm_bias_float_alpha": "alpha is 0.5 and beta is 1, both must be 1 if there is a bias",
    "conv_bias_s8": "its bias is not int32 with zero point 0",
    "conv_bias_zero_point": "its bias is not int32 with zero point 0",
    "gemm_bias_scale_very_wrong": BIAS_SCALE,
    "conv_bias_per_channel_one_wrong": BIAS_SCALE,
    "bias_per_row": "v12 has a scale for each index along axis 0, or for each block",
    "conv_bias_computed": "its bias is neither dequantized nor a constant with a float for each channel",
    "gemm_bias_float_row": "its bias is neither dequantized nor a constant with a float for each channel",
    "bias_beyond_int32": "its bias does not fit int32",
    "bias_of_scale_0": "its bias does not fit int32",
    "bias_too_short": "its bias has 3 elements for 8 channels",
}
REMARKS |= {f"{op}_stays".lower(): f"there is no quantized {op}" for op in ("Tanh", "Elu", "Exp", "Abs", "HardSwish")}
REMARKS |= {op.lower(): f"there is no quantized {op}" for op in ("Sub", "Div", "Min", "Max")}
OPERATORS = {"conv": "Conv", "gemm": "Gemm", "matmul": "MatMul", "add": "Add", "average": "AveragePool"}
SILENT = ("conv", "matmul", "matmul_no_q", "gemm_no_q", "add", "concat", "q_dq", "transpose_same")


def printed(name):
    """The columns after the first two of a printed model, as a tuple for each line, and the line with the counts."""
    model = jaxdml.onnx.load((MODELS | MORE_MODELS)[name](), numerics="onnxruntime")
    table, *others = str(model).split("\n\n")
    head, _, *lines = table.splitlines()
    ends = [head.index(word) for word in ("runs as", "on", "remark") if word in head] + [None]
    ends[1] = head.rindex(" on") + 1
    counted, _ = others[0].splitlines()
    return [tuple(line[start:end].strip() for start, end in itertools.pairwise(ends)) for line in lines], counted


def remarks(name):
    """The operator and the remark of each line of a printed model that has one."""
    return [(operator, rest[0]) for operator, _, *rest in printed(name)[0] if any(rest)]


@pytest.mark.parametrize("name", REMARKS)
def test_an_operator_in_floats_says_why(name):
    expected = REMARKS[name] if isinstance(REMARKS[name], tuple) else (REMARKS[name],)
    found = remarks(name)
    assert [remark for _, remark in found] == list(expected)
    operators = found[0][0].split(" + ")
    assert OPERATORS.get(name.split("_")[0], operators[0]) in operators


@pytest.mark.parametrize("name", SILENT)
def test_what_is_fused_or_never_is_has_no_remark(name):
    assert remarks(name) == []


LAYERS = "convolutions and products, "
PLACES = {
    "conv": (["integers"], f"1 of 1 {LAYERS}1 of 1 operators run on integers"),
    "conv_no_q": (["floats"] * 2, "no operator runs on integers"),
    "integers_to_model": (["integers"], "1 of 1 operators run on integers"),
    "argmax": (["integers"], "1 of 1 operators run on integers"),
    "gather_constant_dq": (["floats"], "no operator runs on integers"),
    "matmul_no_q_relu": (["integers", "floats"], f"1 of 1 {LAYERS}1 of 2 operators run on integers"),
    "product_reshaped": (["integers", "floats"], f"1 of 1 {LAYERS}1 of 2 operators run on integers"),
    "gemm_no_q_relu": (["integers", "floats"], f"1 of 1 {LAYERS}1 of 2 operators run on integers"),
    "max_pool_dq": (["integers", "floats"], "1 of 2 operators run on integers"),
    "max_pool_q": (["floats", "integers"], "1 of 2 operators run on integers"),
    "shapes": (["floats", "integers"], "1 of 2 operators run on integers"),
    "pad_same": (["integers"], "1 of 1 operators run on integers"),
    "pad_of_integers": (["floats", "integers", "floats"], "1 of 3 operators run on integers"),
    "look_up": (["floats", "integers", "floats"], "1 of 3 operators run on integers"),
    "no_quantization": (
        ["floats"] * 2,
        "no operator runs on integers: the model is not quantized; onnxruntime.quantization quantizes models",
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_each_operator_says_what_it_runs_on(name):
    lines, counted = printed(name)
    assert ([on for _, on, *_ in lines], counted) == PLACES[name]


def patterns():
    """A pattern of each reason that is raised, which matches any text in place of its fields."""
    sources = (Path(module.__file__).read_text(encoding="utf-8") for module in (operands, rules, stays))
    for node in (node for source in sources for node in ast.walk(ast.parse(source))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            (text,) = node.exc.args
            parts = text.values if isinstance(text, ast.JoinedStr) else [text]
            yield "".join(re.escape(part.value) if isinstance(part, ast.Constant) else ".+" for part in parts)


def test_each_reason_is_tested():
    found, remarked = list(patterns()), [remark for name in REMARKS for _, remark in remarks(name)]
    assert len(found) >= 24
    assert [each for each in found if not any(re.fullmatch(each, remark) for remark in remarked)] == []
