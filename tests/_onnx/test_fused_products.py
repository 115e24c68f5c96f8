"""Products and convolutions that onnxruntime fuses with adjacent nodes: its bits, or close to them, and errors."""

import jax
import numpy as np
import onnxruntime
import pytest

import jaxdml.onnx
from _onnx.one_node_models import made
from helpers.compare import assert_same_bits
from helpers.hostile_models import FLOAT, refused
from helpers.modes import UNOPTIMISED
from helpers.one_node import on_x64_alone

F, U8 = np.float32, np.uint8
RANDOM = np.random.default_rng(0)


def normal(*shape):
    return RANDOM.normal(size=shape).astype(F)


def steps(*shape, dtype=np.uint8, low=0, high=256):
    return RANDOM.integers(low, high, shape).astype(dtype)


def quick(cases, *names):
    """The cases of these names, and, rarely, all cases."""
    few = {name: cases[name] for name in names}
    return pytest.mark.parametrize("cases", [few, pytest.param(cases, marks=pytest.mark.rare)], ids=["few", "all"])


def outputs(cases):
    """By name: the output of jaxdml, and that of onnxruntime. One program computes all of jaxdml's."""
    models = {
        name: made(operator, arguments, kind=FLOAT, **attributes)
        for name, (operator, arguments, attributes) in cases.items()
    }
    loaded = {name: jaxdml.onnx.load(proto) for name, proto in models.items()}
    given = {name: arguments[0] for name, (_, arguments, _) in cases.items()}

    def run(given):
        return {name: each.apply(each.params, given[name])["y"] for name, each in loaded.items()}

    ours, options = jax.jit(run, compiler_options=UNOPTIMISED)(given), onnxruntime.SessionOptions()
    options.log_severity_level = 4
    for name, proto in models.items():
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        yield name, ours[name], session.run(None, {"x0": given[name]})[0]


# DynamicQuantizeMatMul -----------------------------------------------------------------------------------------------

SCALE, SCALES = F(0.02), RANDOM.uniform(0.01, 0.1, 6).astype(F)
POINT, POINTS = np.uint8(120), steps(6, low=100, high=150)
MATRIX, MATRICES, BIAS = steps(8, 6), steps(2, 8, 6), normal(6)
INT8 = steps(8, 6, dtype=np.int8, low=-32, high=32)  # larger ones saturate without VNNI
PRODUCTS = {  # the inputs
    "a scale": (normal(3, 8), MATRIX, SCALE, POINT, BIAS),
    "no zero point": (normal(3, 8), MATRIX, SCALE),
    "a scale for each column": (normal(2, 3, 8), MATRIX, SCALES, POINTS, BIAS),
    "one zero point": (normal(2, 3, 8), MATRIX, SCALES, POINT),
    "int8": (normal(3, 8), INT8, SCALES, np.zeros(6, np.int8), BIAS),
    "a vector": (normal(8), MATRIX, SCALE, POINT, BIAS),
    "two matrices": (normal(2, 3, 8), MATRICES, SCALE, POINT, BIAS),
    "columns of two matrices": (normal(2, 3, 8), MATRICES, SCALES.reshape(1, 1, 6).repeat(2, 0), None, BIAS),
    "zeros": (np.zeros((3, 8), F), MATRIX, SCALE, POINT, BIAS),
}


@on_x64_alone
@quick(PRODUCTS, "no zero point", "a scale for each column", "two matrices")
def test_dynamic_products_have_the_bits_of_onnxruntime(cases):
    cases = {name: ("DynamicQuantizeMatMul", arguments, {}) for name, arguments in cases.items()}
    for name, ours, theirs in outputs(cases):
        assert_same_bits(ours, theirs, name)


def test_a_dynamic_product_runs_on_integers_with_prepared_weights():
    loaded = jaxdml.onnx.load(made("DynamicQuantizeMatMul", PRODUCTS["a scale for each column"]))
    assert "1 of 1 convolutions and products, 1 of 1 operators run on integers" in str(loaded)
    assert "one answer" in str(loaded)
    assert "x1:prepared" in loaded.params


def test_wrong_dynamic_products():
    x, b = normal(3, 8), MATRIX
    refused(made("DynamicQuantizeMatMul", (x, b[:7], SCALE)), "BTensor has Sizes [7, 6], expected [8, N]")
    for scalar in ((x, U8(3), SCALE), (F(3), b, SCALE)):
        refused(made("DynamicQuantizeMatMul", scalar), "dimensions, expected at least 1 each")
    refused(made("DynamicQuantizeMatMul", (x, b)), "it has 2 inputs, expected 3 to 5")
    refused(made("DynamicQuantizeMatMul", (x, b, None, POINT)), "input 2 is missing")
    refused(made("DynamicQuantizeMatMul", (x, b, SCALES[:5])), "BScaleTensor has Sizes")
    refused(made("DynamicQuantizeMatMul", (x, b, SCALE, None, BIAS[:5])), "BiasTensor has Sizes")
    refused(made("DynamicQuantizeMatMul", (x, x.T, SCALE)), "input 1 is float32; supported: int8, uint8")


# Floats --------------------------------------------------------------------------------------------------------------

A, B, C = normal(3, 4), normal(4, 5), normal(5)
IMAGE, FILTERS, OFFSETS = normal(2, 3, 6, 6), normal(4, 3, 3, 3), normal(4)
GEMM, CONV = (A, B, C), (IMAGE, FILTERS, OFFSETS)
FLOATS = {
    "alpha": ("FusedMatMul", (A, B), {"alpha": 0.25}),
    "transposed": ("FusedMatMul", (normal(4, 3), normal(5, 4)), {"transA": 1, "transB": 1}),
    "a vector, which is not transposed": ("FusedMatMul", (normal(4), B), {"transA": 1}),
    "a batch": ("FusedMatMul", (normal(2, 3, 4, 5), normal(2, 3, 6, 5)), {"transB": 1, "alpha": 2.0}),
    "the first dimension of a": ("FusedMatMul", (normal(4, 3, 2, 5), normal(3, 2, 5, 6)), {"transBatchA": 1}),
    "both of a": ("FusedMatMul", (normal(5, 3, 2, 4), normal(3, 2, 5, 6)), {"transBatchA": 1, "transA": 1}),
    "both of b": ("FusedMatMul", (normal(3, 4, 5), normal(6, 3, 5)), {"transBatchB": 1, "transB": 1}),
    "Relu": ("FusedGemm", GEMM, {"activation": "Relu"}),
    "attributes": ("FusedGemm", (A.T, B.T, C), {
        "activation": "Tanh", "transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    "no bias": ("FusedGemm", (A, B), {"activation": "Sigmoid"}),
    "LeakyRelu": ("FusedGemm", GEMM, {"activation": "LeakyRelu", "activation_alpha": 0.3}),
    "Elu": ("FusedGemm", GEMM, {"activation": "Elu", "activation_alpha": 0.3}),
    "Celu": ("FusedGemm", GEMM, {"activation": "Celu", "activation_alpha": 0.3}),
    "Selu": ("FusedGemm", GEMM, {"activation": "Selu", "activation_alpha": 0.3, "activation_gamma": 0.4}),
    "HardSigmoid": ("FusedGemm", GEMM, {
        "activation": "HardSigmoid", "activation_alpha": 0.3, "activation_beta": 0.4}),
    "ThresholdedRelu": ("FusedGemm", GEMM, {"activation": "ThresholdedRelu", "activation_alpha": 0.3}),
    "Softplus": ("FusedGemm", GEMM, {"activation": "Softplus"}),
    "Softsign": ("FusedGemm", GEMM, {"activation": "Softsign"}),
    "an unread parameter": ("FusedGemm", GEMM, {"activation": "Relu", "activation_alpha": 0.3}),
    "no activation": ("FusedConv", CONV, {}),
    "an addend, no activation": ("FusedConv", (*CONV, normal(2, 4, 6, 6)), {"pads": [1, 1, 1, 1]}),
    "Relu of a convolution": ("FusedConv", CONV, {"activation": "Relu"}),
    "an addend": ("FusedConv", (*CONV, normal(2, 4, 6, 6)), {"activation": "Relu", "pads": [1, 1, 1, 1]}),
    "Clip": ("FusedConv", CONV, {"activation": "Clip", "activation_params": [0.0, 6.0], "strides": [2, 2]}),
    "no bias of a convolution": ("FusedConv", CONV[:2], {"activation": "LeakyRelu", "activation_params": [0.3]}),
    "HardSigmoid of a convolution": ("FusedConv", CONV, {
        "activation": "HardSigmoid", "activation_params": [0.3, 0.4], "dilations": [2, 2]}),
    "HardSwish": ("FusedConv", CONV, {"activation": "HardSwish"}),
    "groups": ("FusedConv", (normal(1, 4, 5, 5), normal(4, 2, 3, 3)), {"activation": "Sigmoid", "group": 2}),
}  # fmt: skip


@quick(FLOATS, "alpha", "both of a", "both of b", "attributes", "Elu", "an addend", "Clip")
def test_fused_floats(cases):
    for name, ours, theirs in outputs(cases):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), name
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=2e-6, err_msg=name)


@pytest.mark.parametrize(
    ("operator", "arguments", "attributes", "words"),
    [
        ("FusedMatMul", (normal(4, 3), B), {"transBatchA": 1}, "a and b have 2 and 2 dimensions, expected equal"),
        ("FusedMatMul", (normal(2, 3, 4), B), {"transBatchB": 1}, "a and b have 3 and 2 dimensions"),
        ("FusedMatMul", (A, A), {}, "fusedmatmul_0"),
        ("FusedMatMul", (A, steps(4, 5)), {}, "input 1 is uint8"),
        ("FusedGemm", GEMM, {}, "attribute 'activation' is missing"),
        ("FusedGemm", GEMM, {"activation": "Erf"}, "attribute 'activation' is 'Erf'; supported"),
        (
            "FusedGemm",
            GEMM,
            {"activation": "Elu"},
            "the activation Elu lacks a parameter, or has too many; expected alpha",
        ),
        ("FusedGemm", GEMM, {"activation": "Elu", "activation_beta": 1.0}, "expected alpha"),
        ("FusedGemm", GEMM, {"activation": "Selu", "activation_alpha": 1.0, "activation_beta": 1.0}, "alpha, gamma"),
        ("FusedGemm", (A[0], B), {"activation": "Relu"}, "expected two matrices"),
        ("FusedConv", CONV, {"activation": "Clip", "activation_params": [1.0]}, "expected low, high"),
        ("FusedConv", CONV, {"activation": "Relu", "activation_params": [1.0]}, "expected none"),
        ("FusedConv", (*CONV, normal(2, 4, 1, 1)), {"activation": "Relu"}, "Z has shape (2, 4, 1, 1), expected (2, 4"),
    ],
)
def test_wrong_fused_floats(operator, arguments, attributes, words):
    refused(made(operator, arguments, **attributes), words)
