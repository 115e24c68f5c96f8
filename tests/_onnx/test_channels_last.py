"""Convolutions and pools of images with channels last, against onnxruntime and against images with channels first."""

import numpy as np
import pytest

import jaxdml.onnx
from _onnx.one_node_models import made
from helpers.compare import assert_same_bits
from helpers.hostile_models import refused
from helpers.marks import rest_rarely
from helpers.one_node import on_x64_alone, run

MICROSOFT = "com.microsoft"
RANDOM = np.random.default_rng(0)
F, U8, S8 = np.float32, np.uint8, np.int8


def steps(*shape, dtype=U8, low=0, high=256):
    return RANDOM.integers(low, high, shape).astype(dtype)


def convolution(x, w, *, bias=True, columns=False):
    outputs = w.shape[0]
    w_scale = RANDOM.uniform(0.01, 0.02, outputs).astype(F) if columns else F(0.01)
    of_w = w_scale, np.zeros(outputs if columns else (), w.dtype)
    added = (RANDOM.integers(-3000, 3000, outputs).astype(np.int32),) if bias else ()
    return (x, F(0.02), x.dtype.type(100), w, *of_w, F(0.5), x.dtype.type(120), *added)


IMAGE, FILTERS = steps(2, 7, 6, 3), steps(4, 3, 3, 3)
INT8 = steps(4, 3, 3, 3, dtype=S8, low=-32, high=32)  # larger ones saturate without VNNI
POOL = (F(0.02), U8(100), F(0.03), U8(120))
LAST = {"channels_last": 1}
NODES = {
    "a convolution": ("QLinearConv", convolution(IMAGE, FILTERS), LAST | {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
    "the greatest of a window": ("NhwcMaxPool", (IMAGE,), {
        "kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1], "ceil_mode": 1}),
    "a scale for each channel": ("QLinearConv", convolution(IMAGE, INT8, columns=True), LAST | {"dilations": [2, 1]}),
    "channels second": ("QLinearConv", convolution(steps(2, 3, 7, 6), FILTERS, bias=False), {"channels_last": 0}),
    "groups": ("QLinearConv", convolution(steps(1, 5, 5, 8), steps(8, 2, 3, 3)), LAST | {"group": 4}),
    "depthwise": ("QLinearConv", convolution(steps(1, 5, 5, 8), steps(8, 1, 3, 3)), LAST | {
        "group": 8, "auto_pad": "SAME_UPPER"}),
    "a line": ("QLinearConv", convolution(steps(2, 9, 3), steps(4, 3, 3)), LAST),
    "the greatest of int8": ("NhwcMaxPool", (steps(2, 7, 6, 3, dtype=S8, low=-128, high=128),), {
        "kernel_shape": [2, 2], "dilations": [2, 2]}),
    "a mean": ("QLinearAveragePool", (IMAGE, *POOL), LAST | {"kernel_shape": [3, 2], "pads": [1, 1, 1, 0]}),
    "a mean of all": ("QLinearGlobalAveragePool", (IMAGE, *POOL), LAST),
}  # fmt: skip


@on_x64_alone
@pytest.mark.parametrize("name", rest_rarely(NODES, 2))
def test_nodes_have_the_bits_of_onnxruntime(name):
    operator, arguments, attributes = NODES[name]
    loaded = jaxdml.onnx.load(made(operator, arguments, **attributes), numerics="onnxruntime")
    (theirs,) = run(operator, arguments, [arguments[0].dtype.name], domain=MICROSOFT, **attributes)
    assert_same_bits(loaded.apply(loaded.params, arguments[0])["y"], theirs)
    assert "1 of 1 operators run on integers" in str(loaded)


def test_a_filter_is_prepared():
    loaded = jaxdml.onnx.load(made(*NODES["a convolution"][:2], **NODES["a convolution"][2]))
    assert "x3:prepared" in loaded.params


def test_wrong_nodes():
    wide = convolution(IMAGE, steps(4, 7, 3, 3))  # fits an image with channels first
    refused(made("QLinearConv", wide, **LAST), "FilterTensor has 7 input channels, expected 3")
    refused(made("QLinearConv", convolution(IMAGE[0, 0], FILTERS), **LAST), "input and filter have 2 and 4 dimensions")
    refused(made("QLinearConv", convolution(steps(1, 4, 4, 4, 3), steps(4, 3, 2, 2, 2)), **LAST, pads=[0] * 6),
            "its images have 3 dimensions; supported: 1 and 2")  # fmt: skip
    refused(made("QLinearConv", (IMAGE, F(1), U8(0), FILTERS)), "it has 4 inputs, expected 8 to 9")
    refused(made("NhwcMaxPool", (IMAGE,)), "attribute 'kernel_shape' is missing")
    refused(made("NhwcMaxPool", (IMAGE.astype(F),), kernel_shape=[2, 2]), "input 0 is float32; supported: int8, uint8")
    refused(made("NhwcMaxPool", (IMAGE,), kernel_shape=[2]), "the input has 2 spatial dimensions")
    refused(made("NhwcMaxPool", (IMAGE[0, 0],), kernel_shape=[2, 2]), "the input has 0 spatial dimensions")
