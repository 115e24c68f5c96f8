"""At least a million matmul and a million convolution outputs against onnxruntime, on the type mixes it supports."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.marks import rarely_on_xla

pytestmark = rarely_on_xla

TYPES = {np.dtype(np.uint8): TensorProto.UINT8, np.dtype(np.int8): TensorProto.INT8,
         np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int32): TensorProto.INT32}  # fmt: skip
# onnxruntime's pairs of input and weight types; the output has the input's.
MIXES = [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)]


def onnxruntime_output(operator, arguments, **attributes):
    """One QLinear operator; weights and parameters are initializers, as onnxruntime's kernels require."""
    names = ["" if argument is None else f"x{i}" for i, argument in enumerate(arguments)]
    values = [helper.make_tensor_value_info("x0", TYPES[arguments[0].dtype], arguments[0].shape)]
    initializers = [
        helper.make_tensor(name, TYPES[argument.dtype], argument.shape, argument.tobytes(), raw=True)
        for name, argument in zip(names[1:], arguments[1:], strict=True)
        if name
    ]
    output = helper.make_tensor_value_info("y", TYPES[arguments[0].dtype], None)
    node = helper.make_node(operator, names, ["y"], **attributes)
    graph = helper.make_graph([node], "one", values, [output], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x0": arguments[0]})[0]


def random(rng, shape, dtype):
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)


def random_weights(rng, shape, dtype):
    """7-bit int8 weights: on processors without VNNI, onnxruntime adds pairs of products in saturating int16."""
    return rng.integers(-64, 64, shape).astype(np.int8) if dtype == np.int8 else random(rng, shape, dtype)


def parameters(rng, dtype, shape=()):
    """A scale, and a zero point near the middle of the range, where outputs take all values."""
    middle = 0 if dtype == np.int8 else 128
    zero_point = rng.integers(middle - 8, middle + 9, shape).astype(dtype)
    return np.asarray(rng.uniform(0.01, 0.1, shape), np.float32), zero_point


def fitting_scale(a_scale, b_scale, b, depth):
    """An output scale with which outputs spread over most of their range, and some beyond it."""
    return np.asarray(a_scale * b_scale.mean() * 74 * b.std() * np.sqrt(depth) / 55, np.float32)


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: "-".join(np.dtype(t).name for t in mix))
def test_matrix_multiply(mix, per_column):
    rng = np.random.default_rng(3)
    compared = 0
    for m, k, n in [(512, 96, 512), (300, 1000, 256), (1, 777, 4096), (128, 64, 77)]:
        a, b = random(rng, (m, k), mix[0]), random_weights(rng, (k, n), mix[1])
        b_scale, b_zero_point = parameters(rng, mix[1], (n,) if per_column else ())
        if mix[0] == np.int8:
            b_zero_point = np.zeros_like(b_zero_point)  # onnxruntime supports no other for int8 by int8, per column
        a_scale, a_zero_point = parameters(rng, mix[0])
        output = (fitting_scale(a_scale, b_scale, b, k), parameters(rng, mix[0])[1])
        arguments = (a, a_scale, a_zero_point, b, b_scale, b_zero_point, *output)
        expected = onnxruntime_output("QLinearMatMul", arguments)
        assert_same_bits(dml.quantized_linear_matrix_multiply(*arguments), expected)
        assert np.unique(expected).size > 100
        compared += expected.size
    assert compared > 350_000


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: "-".join(np.dtype(t).name for t in mix))
def test_convolution(mix, per_channel):
    rng = np.random.default_rng(4)
    compared = 0
    for groups, channels, out, kernel, stride, dilation, pads, bias in [
        (1, 8, 24, 3, 1, 1, (1, 1, 1, 1), True),
        (1, 3, 16, 7, 2, 1, (3, 3, 3, 3), False),
        (4, 16, 32, 3, 1, 2, (2, 1, 0, 2), True),
        (16, 16, 32, 3, 2, 1, (0, 1, 1, 0), True),
        (1, 32, 40, 1, 1, 1, (0, 0, 0, 0), False),
    ]:
        x = random(rng, (2, channels, 44, 45), mix[0])
        f = random_weights(rng, (out, channels // groups, kernel, kernel), mix[1])
        f_scale, f_zero_point = parameters(rng, mix[1], (out,) if per_channel else ())
        if per_channel:
            f_zero_point = np.full_like(f_zero_point, 0 if mix[0] == np.int8 else f_zero_point[0])
        b = rng.integers(-30_000, 30_000, out).astype(np.int32) if bias else None
        x_scale, x_zero_point = parameters(rng, mix[0])
        quantization = (x_scale, x_zero_point, f, f_scale, f_zero_point)
        output = (fitting_scale(x_scale, f_scale, f, f[0].size), parameters(rng, mix[0])[1])
        options = {"strides": [stride] * 2, "dilations": [dilation] * 2, "group": groups, "pads": list(pads)}
        arguments = [x, *quantization, *output] if b is None else [x, *quantization, *output, b]
        expected = onnxruntime_output("QLinearConv", arguments, **options)
        got = dml.quantized_linear_convolution(
            x, *quantization, b, *output, strides=stride, dilations=dilation,
            start_padding=pads[:2], end_padding=pads[2:], group_count=groups,
        )  # fmt: skip
        assert_same_bits(got, expected)
        assert np.unique(expected).size > 100
        compared += expected.size
    assert compared > 200_000
