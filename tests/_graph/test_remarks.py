"""The printed model says why an operator stayed in floats, on the operator's line."""

import ast
import re
from pathlib import Path

import pytest

import jaxdml.onnx
from jaxdml._graph import rules
from qdq_builder import Builder
from qdq_contractions import BIAS, FLOAT_BIAS, B, W, X, Y, conv, gemm
from qdq_graphs import MODELS


def scale_of_result_given():
    build = Builder()
    result = build.node("Conv", build.value(X), build.value(W))
    build.output(build.node("QuantizeLinear", result, build.input(())), "u8")
    return build.model()


COLUMNS = B.but(scale=(0.01,) * 8, zero_point=(0,) * 8, axis=1)
MORE_MODELS = {
    "bias_beyond_int32": lambda: conv(w=W.but(scale=1e-9), b=FLOAT_BIAS),
    "bias_of_scale_0": lambda: conv(w=W.but(scale=0.0), b=FLOAT_BIAS),
    "bias_per_row": lambda: gemm(c=BIAS.but(shape=(3, 8), scale=(0.1,) * 3, zero_point=(0,) * 3, axis=0)),
    "bias_too_short": lambda: gemm(b=COLUMNS, c=FLOAT_BIAS.but(shape=(3,))),
    "result_per_channel": lambda: conv(to=Y.but(scale=(0.05,) * 8, zero_point=(3,) * 8, axis=1)),
    "scale_of_result_given": scale_of_result_given,
}
ALONE = ", not to one QuantizeLinear alone"
CONSTANT = "scale that is not a constant of float32"
REMARKS = {
    "add_float_constant": "c5 is not dequantized",
    "scale_given": f"v4 is dequantized by a {CONSTANT}, or without a zero point that tells its type",
    "conv_float16_scales": f"v4 is dequantized by a {CONSTANT}, or without a zero point that tells its type",
    "conv_no_zero_points": f"v3 is dequantized by a {CONSTANT}, or without a zero point that tells its type",
    "conv_u16": "v4 is uint16, quantized operators take 8 bits",
    "conv_weight_s4": "v8 is int4, quantized operators take 8 bits",
    "conv_per_channel_wrong_axis": "v8 has a scale for each place along axis 1, or for each block",
    "matmul_s4_blocked": "v8 has a scale for each place along axis 0, or for each block",
    "conv_no_q": f"its result goes to an output{ALONE}",
    "conv_relu_zero_point_10": f"its result goes to Relu{ALONE}",
    "fan_out_same_q": f"its result goes to QuantizeLinear and QuantizeLinear{ALONE}",
    "fan_out_float": f"its result goes to QuantizeLinear and Abs{ALONE}",
    "fan_out_output": f"its result goes to QuantizeLinear and an output{ALONE}",
    "scale_of_result_given": f"its result is quantized by a {CONSTANT}",
    "result_per_channel": "its result is quantized by several scales",
    "conv_u8_to_s8": "its result is quantized to int8, an input to uint8",
    "average_pool_dilations": "its windows have dilations, which quantized pooling has not",
    "conv_3d": "its images have more than 2 dimensions",
    "gemm_bias_beta": "alpha is 1 and beta 0.5, a quantized bias has neither",
    "gemm_bias_float_alpha": "alpha is 0.5 and beta 1, a quantized bias has neither",
    "conv_bias_s8": "its bias is not int32 with zero point 0",
    "conv_bias_zero_point": "its bias is not int32 with zero point 0",
    "gemm_bias_scale_very_wrong": "the scale of its bias is not that of its input times that of its weights",
    "conv_bias_per_channel_one_wrong": "the scale of its bias is not that of its input times that of its weights",
    "bias_per_row": "v12 has a scale for each place along axis 0, or for each block",
    "conv_bias_computed": "its bias is neither dequantized nor a constant with a float for each channel",
    "gemm_bias_float_row": "its bias is neither dequantized nor a constant with a float for each channel",
    "bias_beyond_int32": "its bias does not fit int32",
    "bias_of_scale_0": "its bias does not fit int32",
    "bias_too_short": "its bias has 3 numbers for 8 channels",
}
OPERATORS = {"conv": "Conv", "gemm": "Gemm", "matmul": "MatMul", "add": "Add", "average": "AveragePool"}
SILENT = ("conv", "matmul", "matmul_no_q", "gemm_no_q", "add", "concat", "q_dq", "transpose_same", "min")


def remarks(name):
    """The operator and the remark of each line of a printed model that has one."""
    model = jaxdml.onnx.load((MODELS | MORE_MODELS)[name](), numerics="onnxruntime")
    table = str(model).split("\n\n")[0]
    start = table.splitlines()[0].index("runs as")
    return [line[start:].split(maxsplit=1) for line in table.splitlines()[2:] if "floats" in line]


@pytest.mark.parametrize("name", REMARKS)
def test_an_operator_in_floats_says_why(name):
    ((operator, remark),) = remarks(name)
    assert operator == OPERATORS.get(name.split("_")[0], operator)
    assert remark == f"in floats: {REMARKS[name]}"


@pytest.mark.parametrize("name", SILENT)
def test_what_is_fused_or_never_is_has_no_remark(name):
    assert remarks(name) == []


def patterns():
    """Each reason that the rules raise, with anything in place of what it is filled with."""
    for node in ast.walk(ast.parse(Path(rules.__file__).read_text())):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            (text,) = node.exc.args
            parts = text.values if isinstance(text, ast.JoinedStr) else [text]
            yield "".join(re.escape(part.value) if isinstance(part, ast.Constant) else ".+" for part in parts)


def test_each_reason_of_the_rules_is_tested():
    found = list(patterns())
    assert len(found) >= 14
    assert [each for each in found if not any(re.fullmatch(each, remark) for remark in REMARKS.values())] == []
