"""Against onnxruntime on a CPU: equal where its formula is the same, otherwise (pooling) one step off at ties."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.marks import rarely_on_xla
from helpers.one_node import TYPES, run

pytestmark = rarely_on_xla

MICROSOFT = "com.microsoft"
# onnxruntime's pairs of types; 7-bit weights, because without VNNI it adds pairs of products in saturating int16.
MIXES = [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8), (np.int8, np.uint8)]


def name_of(mix):
    return "-".join(np.dtype(dtype).name for dtype in mix)


def integers(rng, shape, dtype, bits=8):
    span = 2**bits // 2
    return rng.integers(-span, span, shape).astype(np.int8) if dtype == np.int8 else rng.integers(
        0, 2**bits, shape
    ).astype(np.uint8)  # fmt: skip


def number(rng, dtype):
    return np.asarray(rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max), dtype)


def steps(rng, shape=()):
    return np.asarray(rng.uniform(0.001, 0.1, shape), np.float32)


@pytest.mark.parametrize("mix", MIXES, ids=name_of)
def test_matrix_multiply_integer(mix):
    rng, compared = np.random.default_rng(0), 0
    for m, k, n, is_per_column in [
        (512, 96, 512, True), (1, 777, 999, False), (128, 64, 77, False),
    ]:  # fmt: skip
        a, b = integers(rng, (m, k), mix[0]), integers(rng, (k, n), mix[1], bits=7)
        zero_points = number(rng, mix[0]), integers(rng, (n,), mix[1]) if is_per_column else number(rng, mix[1])
        (expected,) = run("MatMulInteger", (a, b, *zero_points), ["int32"])
        assert_same_bits(dml.matrix_multiply_integer(a, zero_points[0], b, zero_points[1]), expected)
        compared += expected.size
    assert compared > 260_000


@pytest.mark.parametrize("mix", MIXES[:2], ids=name_of)
def test_convolution_integer(mix):
    rng, compared = np.random.default_rng(1), 0
    for groups, channels, outputs, kernel, stride, dilation, pads in [
        (1, 8, 24, 3, 1, 1, (1, 1, 1, 1)), (1, 3, 16, 7, 2, 1, (3, 3, 3, 3)), (4, 16, 32, 3, 1, 2, (2, 1, 0, 2)),
        (16, 16, 32, 3, 2, 1, (0, 1, 1, 0)), (1, 32, 64, 1, 1, 1, (0, 0, 0, 0)),
    ]:  # fmt: skip
        x = integers(rng, (4, channels, 44, 45), mix[0])
        f = integers(rng, (outputs, channels // groups, kernel, kernel), mix[1], bits=7)
        zero_points = number(rng, mix[0]), number(rng, mix[1])
        options = {"strides": [stride] * 2, "dilations": [dilation] * 2, "group": groups, "pads": list(pads)}
        (expected,) = run("ConvInteger", (x, f, *zero_points), ["int32"], **options)
        got = dml.convolution_integer(
            x, zero_points[0], f, zero_points[1], strides=stride, dilations=dilation, start_padding=pads[:2],
            end_padding=pads[2:], group_count=groups,
        )  # fmt: skip
        assert_same_bits(got, expected)
        compared += expected.size
    assert compared > 500_000


@pytest.mark.parametrize("mix", MIXES[:3], ids=name_of)
def test_matrix_multiply_integer_to_float(mix):
    rng, compared = np.random.default_rng(2), 0
    for m, k, n, has_bias in [(512, 96, 512, True), (1, 777, 999, False), (300, 64, 400, True)]:
        a, b = integers(rng, (m, k), mix[0]), integers(rng, (k, n), mix[1], bits=7)
        scales, zero_points = (steps(rng), steps(rng, (n,))), (number(rng, mix[0]), integers(rng, (n,), mix[1]))
        bias = (10 * rng.standard_normal(n)).astype(np.float32) if has_bias else None
        (expected,) = run("MatMulIntegerToFloat", (a, b, *scales, *zero_points, bias), ["float32"], domain=MICROSOFT)
        got = dml.matrix_multiply_integer_to_float(a, scales[0], zero_points[0], b, scales[1], zero_points[1], bias)
        assert_same_bits(got, expected)
        compared += expected.size
    assert compared > 380_000


def test_dynamic_quantize_linear():
    rng, compared = np.random.default_rng(3), 0
    sizes = [1, 2, 7, 100, 1023, 70_001, 140_000, 800_000]
    for size in sizes:
        for shift in (0, 3, -3):
            x = (10 ** rng.uniform(-6, 6) * (rng.standard_normal(size) + shift)).astype(np.float32)
            expected = run("DynamicQuantizeLinear", (x,), ["uint8", "float32", "uint8"])
            for got, right in zip(dml.dynamic_quantize_linear(x), expected, strict=True):
                assert_same_bits(got, right.reshape(got.shape))
                compared += got.size
    assert compared > 1_000_000


def assert_same_but_for_ties(x, parameters, got, expected, options):
    """The page rounds after each of two divisions, and before the zero point is added; onnxruntime does neither."""
    exact = dequantized_means(x, *parameters[:2], **options) / np.float64(parameters[2])
    differs = np.asarray(got) != expected
    assert np.abs(np.asarray(got).astype(int) - expected.astype(int)).max() <= 1
    assert (np.abs(exact - np.floor(exact) - 0.5)[differs] < 1e-4).all()
    assert differs.mean() < 1e-4 or scale_ratio(parameters) in (0.1, 0.5, 1, 2)  # at which ties are common


def scale_ratio(parameters):
    return round(float(parameters[2] / parameters[0]), 3)


def dequantized_means(x, scale, zero_point, *, window_size, strides, start_padding, end_padding, include_padding):
    """The means in float64."""
    steps = x.astype(np.float64) - float(zero_point)
    pads = [(0, 0), (0, 0), *zip(start_padding, end_padding, strict=True)]
    sums, counts = (
        np.lib.stride_tricks.sliding_window_view(np.pad(values, pads), window_size, (2, 3)).sum((-2, -1))[
            :, :, :: strides[0], :: strides[1]
        ]
        for values in (steps, np.ones_like(steps))
    )
    return sums * np.float64(scale) / (np.prod(window_size) if include_padding else counts)


WINDOWS = [
    ((3, 3), (1, 1), (1, 1, 1, 1)), ((2, 2), (2, 2), (0, 0, 0, 0)), ((3, 2), (1, 2), (0, 1, 2, 0)),
    ((5, 5), (1, 1), (2, 2, 2, 2)),
]  # fmt: skip
RATIOS = [0.37, 0.5, 1.0, 2.0, 0.1]  # of the scales; at the round ones there are ties


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("include_padding", [False, True])
def test_quantized_linear_average_pooling(include_padding, dtype):
    rng, compared = np.random.default_rng(4), 0
    for (window, strides, pads), ratio in zip(WINDOWS * 2, RATIOS * 2, strict=False):
        x, scale = integers(rng, (4, 32, 40, 41), dtype), steps(rng)
        parameters = scale, number(rng, dtype), np.asarray(scale * np.float32(ratio)), number(rng, dtype)
        attributes = {"kernel_shape": window, "strides": strides, "pads": pads}
        attributes |= {"count_include_pad": int(include_padding), "domain": MICROSOFT}
        (expected,) = run("QLinearAveragePool", (x, *parameters), [np.dtype(dtype).name], **attributes)
        options = {"window_size": window, "strides": strides, "start_padding": pads[:2], "end_padding": pads[2:]}
        options |= {"include_padding": include_padding}
        got = dml.quantized_linear_average_pooling(x, *parameters, **options)
        assert_same_but_for_ties(x, parameters, got, expected, options)
        compared += expected.size
    assert compared > 1_000_000


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_global_average_pooling(dtype):
    rng, compared = np.random.default_rng(5), 0
    for size in [(7, 7), (1, 1), (14, 3), (20, 20)]:
        for ratio in RATIOS:
            x, scale = integers(rng, (8, 512, *size), dtype), steps(rng)
            parameters = scale, number(rng, dtype), np.asarray(scale * np.float32(ratio)), number(rng, dtype)
            attributes = {"domain": MICROSOFT, "channels_last": 0}
            (expected,) = run("QLinearGlobalAveragePool", (x, *parameters), [np.dtype(dtype).name], **attributes)
            got = dml.quantized_linear_average_pooling(x, *parameters, window_size=size)
            options = {"window_size": size, "strides": (1, 1), "start_padding": (0, 0), "end_padding": (0, 0)}
            assert_same_but_for_ties(x, parameters, got, expected, options | {"include_padding": False})
            compared += expected.size
    assert compared > 80_000


@pytest.mark.sampled(6)
@pytest.mark.parametrize("block", [16, 32, 128])
@pytest.mark.parametrize("dtype", [jnp.int4, jnp.uint4, jnp.int8, jnp.uint8], ids=lambda dtype: np.dtype(dtype).name)
def test_quantize_and_dequantize_blocks(dtype, block):
    rng, limits, name = np.random.default_rng(6), jnp.iinfo(dtype), np.dtype(dtype).name
    x = rng.standard_normal((384, 256)).astype(np.float32)
    for has_zero_point in (True, False) if limits.min else (True,):  # without one, onnxruntime uses 0
        scale = rng.uniform(0.05, 0.3, (384, 256 // block)).astype(np.float32)
        zero_point = rng.integers(limits.min, limits.max, scale.shape, endpoint=True).astype(dtype)
        zero_point = zero_point if has_zero_point else None
        attributes = {"axis": 1, "block_size": block, **({} if has_zero_point else {"output_dtype": TYPES[name]})}
        (expected,) = run("QuantizeLinear", (x, scale, zero_point), [name], **attributes)
        quantized = dml.quantize(x, scale, zero_point, output_dtype=dtype)
        assert_same_bits(np.asarray(quantized).astype(np.int32), expected.astype(np.int32))
        arguments = (np.asarray(quantized), scale, zero_point)
        (values,) = run("DequantizeLinear", arguments, ["float32"], axis=1, block_size=block)
        assert_same_bits(dml.dequantize(*arguments), values)
