"""float32 subnormals count as zeros of the same sign, in operands and results, computed or folded by the compiler."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits, assert_same_values
from helpers.marks import on_both_kernels
from jaxdml import reference
from jaxdml._arithmetic import rounding
from jaxdml.reference import operators

pytestmark = on_both_kernels

SMALLEST = np.float32(2.0**-126)  # the smallest normal number
ONE_STEP = np.float32(2.0**-149)
JAXDML = dml.FeatureLevel.JAXDML
# On both sides of the smallest normal number, and far on either side.
SCALES = np.float32(
    [
        0,
        ONE_STEP,
        SMALLEST / 3,
        SMALLEST / 2,
        np.nextafter(SMALLEST, 0),
        SMALLEST,
        1.5 * SMALLEST,
        3 * SMALLEST,
        1e-20,
        1,
    ]
)
SCALES = np.concatenate([SCALES, -SCALES])


def bits(x):
    return np.asarray(x).view(np.uint32)


def floats(start, stop, step=1):
    """The float32 numbers with these bits, and their negatives."""
    patterns = np.arange(start, stop, step, dtype=np.uint32)
    return np.concatenate([patterns, patterns | np.uint32(1 << 31)]).view(np.float32)


NEAR = np.concatenate([floats(0, 1 << 24, 10_007), floats((1 << 23) - 40, (1 << 23) + 40), floats(0, 40)])


# The ways to compute a function of several lists of arguments.


def called(function, lists):
    return [function(*arguments) for arguments in lists]


def jitted(function, lists):
    compiled = jax.jit(function)
    return [compiled(*arguments) for arguments in lists]


def folded(function, lists):
    """All arguments are constants, so the compiler computes the results."""
    return jax.jit(lambda: [function(*arguments) for arguments in lists])()


def with_constant_scales(function, lists):
    return jax.jit(lambda firsts: [function(x, *rest) for x, (_, *rest) in zip(firsts, lists, strict=True)])(
        [x for x, *_ in lists]
    )


MODES = [called, jitted, folded, with_constant_scales]
modes = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.__name__)


def test_the_reference_flushes():
    """Compares with the rule in integers: if the exponent bits are 0, only the sign remains."""
    x = np.concatenate([NEAR, np.float32([np.inf, -np.inf, 1, -1])])
    expected = np.where(bits(x) & 0x7F800000, bits(x), bits(x) & np.uint32(1 << 31))
    assert_same_bits(bits(operators._flushed(x)), expected)
    assert np.isnan(operators._flushed(np.float32(np.nan)))


@pytest.mark.sampled(3)
@modes
def test_flushing_keeps_signs_and_everything_normal(mode, x64):
    x = np.concatenate([NEAR, np.float32([np.inf, -np.inf, 1, -1, 3e38])])
    assert_same_bits(bits(mode(rounding.flushed, [(x,)])[0]), bits(operators._flushed(x)))


def test_the_derivative_of_flushing_a_bias_is_that_of_the_identity():
    slopes = np.arange(NEAR.size, dtype=np.float32)
    flushed, slopes_after = jax.jvp(rounding.flushed_straight_through, (NEAR,), (slopes,))
    assert_same_bits(bits(flushed), bits(operators._flushed(NEAR)))
    assert_same_bits(slopes_after, slopes)


@pytest.mark.sampled(3)
@modes
def test_quantize(mode, x64):
    """A subnormal input is 0 even if the scale would turn it into a step; a subnormal scale divides as 0 does."""
    quantize = partial(dml.element_wise_quantize_linear, output_dtype=np.int8)
    for scale, got in zip(SCALES, mode(quantize, [(NEAR, scale) for scale in SCALES]), strict=True):
        expected = reference.element_wise_quantize_linear(NEAR, scale, output_dtype=np.int8)
        assert_same_bits(got, expected)
    assert np.asarray(quantize(np.nextafter(SMALLEST, np.float32(0)).reshape(1), SMALLEST)) == 0
    assert np.asarray(quantize(SMALLEST.reshape(1), SMALLEST)) == 1


@pytest.mark.sampled(3)
@modes
def test_dequantize(mode, x64):
    x = np.arange(-128, 128).astype(np.int8)
    for scale, got in zip(SCALES, mode(dml.element_wise_dequantize_linear, [(x, s) for s in SCALES]), strict=True):
        assert_same_bits(bits(got), bits(reference.element_wise_dequantize_linear(x, scale)))


def test_float16_keeps_its_subnormals():
    x, scale = np.arange(-128, 128).astype(np.int8), np.float16(6e-8)
    expected = x.astype(np.float32) * np.float32(scale)
    for mode in (called, jitted):
        got = np.asarray(mode(dml.element_wise_dequantize_linear, [(x, scale)])[0])
        assert_same_bits(got, expected.astype(np.float16))
        assert (np.abs(got[got != 0]) < np.finfo(np.float16).smallest_normal).all()
        halves = np.arange(1, 1024, dtype=np.uint16).view(np.float16)  # all of its positive subnormals
        quantize = partial(dml.element_wise_quantize_linear, output_dtype=np.uint16, feature_level=JAXDML)
        (steps,) = mode(quantize, [(halves, scale)])
        assert_same_values(steps, np.arange(1, 1024))


@pytest.mark.sampled(3)
@modes
def test_sums_that_cancel(mode, x64):
    """The dequantized values are normal, their sum is not."""
    a = np.arange(-128, 128).astype(np.int8)
    b = a[::-1].copy()

    def add(a, a_scale, b_scale, output_scale):
        return dml.element_wise_quantized_linear_add(a, a_scale, None, b, b_scale, None, output_scale, None)

    scales = SMALLEST * np.float32([1, 1.25, 1 + 2**-20])
    outputs = np.float32([SMALLEST, ONE_STEP, SMALLEST / 4])
    lists = [(a, *chosen) for chosen in itertools.product(scales, scales, outputs)]
    has_subnormal_sums = []
    for (_, a_scale, b_scale, output_scale), got in zip(lists, mode(add, lists), strict=True):
        arguments = a, a_scale, None, b, b_scale, None, output_scale, None
        assert_same_bits(got, reference.element_wise_quantized_linear_add(*arguments))
        sums = np.abs(a.astype(np.float32) * a_scale + b.astype(np.float32) * b_scale)
        has_subnormal_sums.append((0 < sums[sums != 0].min() < SMALLEST) if sums.any() else False)
    assert any(has_subnormal_sums)


@pytest.mark.sampled(2)
@modes
def test_products_of_scales(mode, x64):
    """Normal scales whose product, or that product's quotient by the output scale, is close to 2**-126."""
    a, b = np.arange(-8, 8).astype(np.int8).reshape(4, 4), np.arange(120, 128).astype(np.int8).reshape(4, 2)

    def multiply(a, a_scale, b_scale, output_scale):
        return dml.quantized_linear_matrix_multiply(a, a_scale, None, b, b_scale, None, output_scale, None)

    root = np.float32(2.0**-63)
    near = [np.nextafter(root, np.float32(0)), root, np.nextafter(root, np.float32(1)), root / 2, ONE_STEP, SMALLEST]
    chosen = np.float32([*near, 2.0**100])  # which would turn a subnormal number into a normal one
    outputs = np.float32([SMALLEST, SMALLEST * 16, ONE_STEP, 1])
    lists = [(a, *scales) for scales in itertools.product(chosen, chosen, outputs)]
    differ = 0
    for (_, a_scale, b_scale, output_scale), got in zip(lists, mode(multiply, lists), strict=True):
        arguments = a, a_scale, None, b, b_scale, None, output_scale, None
        expected = reference.quantized_linear_matrix_multiply(*arguments)
        assert_same_bits(got, expected)
        with np.errstate(all="ignore"):
            kept = (a.astype(np.float32) @ b.astype(np.float32)) * (a_scale * b_scale / output_scale)
        differ += (np.clip(np.rint(np.nan_to_num(kept)), -128, 127) != expected).any()
    assert differ > 10  # if subnormals were kept, the results would differ


@modes
def test_a_subnormal_scale_is_zero_where_the_result_is_a_float(mode):
    """If it were kept, the other scale would turn it into a normal number."""
    a, b = np.uint8([[3, 4]]), np.uint8([[5], [6]])

    def multiply(a, a_scale, b_scale):
        return dml.matrix_multiply_integer_to_float(a, a_scale, None, b, b_scale, None, None)

    large, small = np.float32(1e38), np.float32(SMALLEST / 2)
    lists = [(a, small, large), (a, large, small)]
    assert_same_bits(mode(multiply, lists), [np.zeros((1, 1), np.float32)] * 2)


@modes
def test_bias_of_a_float_result(mode):
    """A subnormal bias is zero, and so is a subnormal sum of two normal terms."""
    one, scale = np.uint8([[1]]), np.float32(1)

    def multiply(bias, a_scale):
        return dml.matrix_multiply_integer_to_float(one, a_scale, None, one, scale, None, bias)

    sums = [(3 * ONE_STEP, SMALLEST), (-SMALLEST - 3 * ONE_STEP, SMALLEST), (SMALLEST + ONE_STEP, -SMALLEST)]
    lists = [(np.float32([[bias]]), a_scale) for bias, a_scale in sums]
    expected = [reference.matrix_multiply_integer_to_float(one, s, None, one, scale, None, b) for b, s in lists]
    assert_same_bits(bits(mode(multiply, lists)), bits(expected))
    assert_same_bits(bits(expected).ravel(), bits(np.float32([SMALLEST, -0.0, 0])))


@modes
def test_means(mode):
    """Subnormal scales are zero, and so is a subnormal mean."""
    x = np.uint8([[[[6, 0, 0], [0, 0, 0], [0, 0, 0]]], [[[200] * 3] * 3], [[[1] * 3] * 3]])

    def average(x, scale, output_scale):
        return dml.quantized_linear_average_pooling(
            x, scale, None, output_scale, None, strides=(1, 1), window_size=(3, 3), start_padding=(0, 0),
            end_padding=(0, 0), dilations=(1, 1), include_padding=False, output_dtype=np.uint8,
        )  # fmt: skip

    lists = [(x, SMALLEST, SMALLEST), (x, SMALLEST / 2, SMALLEST), (x, SMALLEST, SMALLEST / 2)]
    assert_same_bits(np.asarray(mode(average, lists)).reshape(3, 3), np.uint8([[0, 200, 1], [0, 0, 0], [0, 255, 255]]))


@pytest.mark.sampled(4)
@modes
def test_ranges(mode):
    """The ends of a range and its step: a subnormal step is 0, so the scale is 1."""
    rows = [(-SMALLEST / 2, 255 * SMALLEST), (-255 * SMALLEST, SMALLEST / 2), (-SMALLEST, 64 * SMALLEST)]
    lists = [(np.float32(row),) for row in rows]
    scales = [scale for _, scale, _ in mode(dml.dynamic_quantize_linear, lists)]
    assert_same_bits(bits(scales).ravel(), bits(np.float32([SMALLEST, SMALLEST, 1])))


@pytest.mark.sampled(3)
@modes
def test_products_of_scales_that_are_large(mode, x64):
    """Up to the largest finite number, products follow IEEE 754, and no factor makes them infinite."""
    largest = np.float32(np.finfo(np.float32).max)
    pairs = [
        (2.0**64, 1.5 * 2.0**63),
        (2.0**127, 1.5),
        (largest, 1),
        (1, largest),
        (-largest, 1),
        (largest, 2),
        (0.5, largest),
        (0.5, -largest),
        (-largest, 0.5),
    ]
    lists = [tuple(map(np.float32, pair)) for pair in pairs]
    with np.errstate(over="ignore"):
        expected = [x * y for x, y in lists]
    assert_same_bits(bits(mode(rounding.product, lists)), bits(expected))


@pytest.mark.sampled(3)
@modes
def test_fake_quantize(mode):
    lists = [(NEAR, SMALLEST), (NEAR, np.float32(SMALLEST / 2))]
    for (_, scale), got in zip(lists, mode(dml.fake_quantize, lists), strict=True):
        quantized = reference.element_wise_quantize_linear(NEAR, scale)
        expected = reference.element_wise_dequantize_linear(quantized, scale)
        assert_same_bits(bits(got), bits(expected))


@pytest.mark.rare
@pytest.mark.parametrize("part", range(8))
def test_quantize_all_small_floats(part):
    """All 2**25 floats whose exponent field is 0 or 1, in eight parts, jitted, with scales that show each bit."""
    size = (1 << 24) >> 3
    x = floats(part * size, (part + 1) * size)
    quantize = jax.jit(partial(dml.element_wise_quantize_linear, output_dtype=np.int16, feature_level=JAXDML))
    for scale in (SMALLEST, SMALLEST * np.float32(1.5), -SMALLEST, np.float32(2.0**-120), SMALLEST / 2, np.float32(0)):
        expected = reference.element_wise_quantize_linear(x, scale, output_dtype=np.int16)
        assert_same_values(quantize(x, scale), expected)
    flushed = jax.jit(rounding.flushed)(x)
    assert_same_values(bits(flushed), bits(operators._flushed(x)))


def test_an_unflushed_scale_would_be_seen():
    """This platform or its compiler keeps subnormals somewhere; otherwise the tests above would show little."""
    x = jnp.float32(1)
    kept = jax.jit(lambda: x * (SMALLEST / 2))()
    computed = jax.jit(lambda x, scale: x * scale)(x, SMALLEST / 2)
    assert {float(kept), float(computed)} != {0.0}
