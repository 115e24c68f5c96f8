"""Scales, zero points, integer weights and biases: from the definition, in NumPy and under jit with the same bits."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.compare import assert_same_bits
from jaxdml.errors import PtqError
from jaxdml.ptq._grids import ranges
from jaxdml.ptq._grids.ranges import quantize_bias, quantize_weights, scale_and_zero_point

RNG = np.random.default_rng(14)
DTYPES = ("int8", "uint8", "int16", "uint16")
TINY = 2.0**-126
LARGEST = float(np.finfo(np.float32).max)
SUBNORMAL = 2.0**-130
EXTREME = [
    (0, 0), (-0.0, 0), (0, SUBNORMAL), (-SUBNORMAL, SUBNORMAL), (0, TINY), (-TINY, TINY), (0, 200 * TINY),
    (-300 * TINY, 7 * TINY), (-70_000 * TINY, 0), (0, LARGEST), (-LARGEST, 0), (-LARGEST / 2, LARGEST / 2), (3, 5),
    (-0.9 * TINY, 10 * TINY),    (-5, -3), (1, 1), (-1, 255), (-1e-30, 1e30), (-255, 0.5), (-1, 1),
]  # fmt: skip
ENDS = np.concatenate([EXTREME, RNG.lognormal(0, 3, (3000, 2)) * [-1, 1], np.sort(RNG.normal(0, 1, (3000, 2)))])
LOW, HIGH = ENDS.astype(np.float32).T
FORMS = pytest.mark.parametrize("symmetric", [False, True])


def fl(x):
    """float64 results of one operation on float32 numbers, rounded to float32; subnormals as zeros."""
    x = np.asarray(x, np.float32).astype(np.float64)
    return np.where(np.abs(x) < TINY, 0.0, x)


def expected_grid(low, high, dtype, symmetric):
    limits = np.iinfo(dtype)
    low, high = np.minimum(fl(low), 0), np.maximum(fl(high), 0)
    if symmetric:
        extent, steps = np.maximum(-low, high), {127: 127, 255: 127, 32767: 32767, 65535: 32767}[limits.max]
    else:
        extent, steps = fl(high - low), limits.max - limits.min
    scale = np.where(extent == 0, 1, np.maximum(fl(extent / steps), TINY))
    if symmetric:
        zero_point = np.full(low.shape, {"int8": 0, "uint8": 128, "int16": 0, "uint16": 32768}[dtype])
    else:
        zero_point = np.clip(np.rint(fl(limits.min - fl(low / scale))), limits.min, limits.max)
    return scale.astype(np.float32), zero_point.astype(dtype)


def same(received, expected):
    for one, other in zip(received, expected, strict=True):
        assert one.dtype == other.dtype
        assert_same_bits(np.asarray(one), other)


@pytest.mark.sampled(1)
@FORMS
@pytest.mark.parametrize("dtype", DTYPES)
def test_grids_are_as_defined_in_every_form(dtype, symmetric):
    form = functools.partial(scale_and_zero_point, dtype=dtype, symmetric=symmetric)
    expected = expected_grid(LOW, HIGH, dtype, symmetric)
    same(form(LOW, HIGH), expected)
    same(form(jnp.asarray(LOW), HIGH), expected)
    same(jax.jit(form)(LOW, HIGH), expected)
    same(jax.jit(lambda low: form(low, HIGH))(LOW), expected)
    with jax.enable_x64(True):
        same(jax.jit(jax.vmap(form))(LOW, HIGH), expected)


def test_results_are_of_jax_where_an_argument_is():
    kinds = [(1.0, 2.0), (jnp.ones(3), np.ones(3)), (np.zeros(3), np.ones(3))]
    received = [isinstance(scale_and_zero_point(low, high, jnp.uint8)[0], jax.Array) for low, high in kinds]
    assert received == [False, True, False]
    assert scale_and_zero_point(-1, 1, np.int8)[1].shape == ()
    assert isinstance(quantize_bias(np.ones(3), jnp.float32(1), 1.0), jax.Array)
    assert isinstance(quantize_bias(np.ones(3), 1.0, 1.0), np.ndarray)


def test_a_grid_holds_zero_and_both_ends():
    for dtype in DTYPES:
        limits = np.iinfo(dtype)
        scale, zero_point = (np.asarray(x, np.float64) for x in scale_and_zero_point(LOW, HIGH, dtype))
        assert ((limits.min <= zero_point) & (zero_point <= limits.max)).all()
        extent = np.float64(HIGH) - LOW
        usual = (extent > 1e-30) & (extent < 1e30)  # beyond are subnormal ends, and half steps that exceed float32
        for end in (LOW, HIGH):
            clipped = np.clip(np.rint(end / scale), limits.min - zero_point, limits.max - zero_point)
            assert (np.abs(clipped * scale - end) <= 0.51 * scale)[usual].all()


def test_a_traced_range_that_is_wrong_has_a_scale_that_shows_it():
    low, high = np.float32([np.nan, -LARGEST, 0]), np.float32([1, LARGEST, np.inf])
    scale, _ = jax.jit(lambda low, high: scale_and_zero_point(low, high, jnp.uint8))(low, high)
    assert not np.isfinite(scale).any()


WRONG_RANGES = {
    "low holds NaN or infinity in channel 1: calibrate": ([0, np.nan], [1, 2]),
    "high holds NaN or infinity in channels 0, 1: calibrate": ([0, 1], [np.inf, np.nan]),
    "low holds NaN or infinity: calibrate with finite data; an observer that has seen no data": (np.inf, -np.inf),
    "low is above high in channel 1: swap them": ([0, 2], [1, 1]),
    "low is above high: swap them": (2, 1),
    "high - low is not a finite float32 number in channel 0: clip": ([-3e38, 0], [3e38, 1]),
    r"low has shape \(2,\) and high \(\), expected equal shapes": ([0, 1], 2),
    r"high holds NaN or infinity: calibrate": (0.0, 1e300),
}


@pytest.mark.parametrize("text", WRONG_RANGES)
@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_wrong_ranges(text, kind):
    low, high = (kind(x, np.float32) if np.max(x) < 1e39 else x for x in map(np.asarray, WRONG_RANGES[text]))
    with pytest.raises(PtqError, match=f"^scale_and_zero_point: {text}"):
        scale_and_zero_point(low, high, jnp.uint8)


@pytest.mark.parametrize("dtype", [jnp.int4, np.int32, np.float32, "no type", None])
def test_wrong_types(dtype):
    with pytest.raises(PtqError, match=r"zero_point: dtype is .*, expected int8 or uint8 or int16 or uint16"):
        scale_and_zero_point(0, 1, dtype)
    with pytest.raises(PtqError, match=r"quantize_weights: dtype is .*, expected int8 or int16"):
        quantize_weights(np.ones(3), dtype=dtype)


W = RNG.normal(0, 1, (12, 5, 7)).astype(np.float32) * np.exp2(RNG.integers(-30, 30, (12, 1, 1))).astype(np.float32)
W[1], W[2], W[3], W[4], W[5, 0, :2] = 0, SUBNORMAL, TINY, LARGEST, [-8e9, 8e9]
W[3, 0] = 0.9 * TINY
W[6, 0] = np.arange(7) / 2 * 2**-3  # ties: the scale of the channel is 2**-3
W[6, 1:] = 0
W[6, 4, 6] = 127 * 2**-3


def expected_weights(w, axis, dtype):
    """One scale after the other, in float64."""
    steps = np.iinfo(dtype).max
    channels = [fl(w)] if axis is None else list(np.moveaxis(fl(w), axis, 0))
    scales = [max(float(fl(np.abs(c).max() / steps)), TINY) if c.any() else 1.0 for c in channels]
    integers = np.stack([np.rint(fl(c / scale)) for c, scale in zip(channels, scales, strict=True)]).astype(dtype)
    integers = integers[0] if axis is None else np.moveaxis(integers, 0, axis)
    return integers, np.float32(scales[0] if axis is None else scales)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("axis", [None, 0, 2, -2])
def test_weights_are_as_defined_in_every_form(axis):
    for dtype in (np.int8, np.int16):
        expected = expected_weights(W, axis, dtype)
        same(quantize_weights(W, axis, dtype), expected)
        same(quantize_weights(jnp.asarray(W), axis, dtype), expected)
    same(jax.jit(lambda w: quantize_weights(w, axis))(W), expected_weights(W, axis, np.int8))
    assert isinstance(quantize_weights(W, axis)[0], np.ndarray)


def test_weights_use_no_minus_128_and_ties_round_to_even():
    integers, scale = quantize_weights(W, 0)
    assert integers.min() == -127
    assert integers.max() == 127
    assert scale[6] == 2**-3
    assert integers[6, 0].tolist() == [0, 0, 1, 2, 2, 2, 3]
    assert (scale[1], scale[2]) == (1, 1)
    assert not integers[1:3].any()


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, np.float64])
def test_weights_of_other_float_types_are_those_in_float32(dtype):
    w = RNG.normal(0, 1, (3, 4)).astype(dtype)
    same(quantize_weights(w, 1), quantize_weights(w.astype(np.float32), 1))


def test_weights_without_elements_and_of_rank_0():
    integers, scale = quantize_weights(np.zeros((3, 0), np.float32), 0)
    assert integers.shape == (3, 0)
    assert scale.tolist() == [1, 1, 1]
    same(quantize_weights(np.float32(-2)), (np.asarray(-127, np.int8), np.asarray(fl(2 / 127), np.float32)))


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_wrong_weights(kind):
    w = np.ones((4, 3), np.float32)
    for value in (np.nan, np.inf, -np.inf):
        wrong = w.copy()
        wrong[2, 1] = value
        with pytest.raises(PtqError, match="quantize_weights: w holds NaN or infinity in channel 2: training"):
            quantize_weights(kind(wrong), 0)
        with pytest.raises(PtqError, match="w holds NaN or infinity: training"):
            quantize_weights(kind(wrong))
    for axis in (2, -3):
        with pytest.raises(PtqError, match=rf"axis is {axis}, .* which has rank 2 and shape \(4, 3\)"):
            quantize_weights(kind(w), axis)
    for axis in ((0, 1, 2), [0], 1.0, True, "O"):
        with pytest.raises(PtqError, match=r"axis is .*, expected an integer or None: give the axis of"):
            quantize_weights(kind(w), axis)
    assert quantize_weights(kind(w), np.int64(-1))[1].shape == (3,)
    with pytest.raises(PtqError, match="w holds int8, expected floats"):
        quantize_weights(kind(w).astype(np.int8))


CHANNELS = 4000
BIAS = RNG.normal(0, 1, CHANNELS).astype(np.float32)
FILTER_SCALE = RNG.lognormal(-7, 2, CHANNELS).astype(np.float32)
INPUT_SCALE = np.float32(0.0123)
BIAS[:6] = [0, SUBNORMAL, 2.5, -3.5, -(2.0**31), 2.0**31 - 2**7]
FILTER_SCALE[:6] = np.float32(1) / INPUT_SCALE


@pytest.mark.parametrize("filter_scale", [FILTER_SCALE, np.float32(0.7)], ids=["per channel", "one"])
def test_bias_is_as_defined_in_every_form(filter_scale):
    bias = BIAS if filter_scale.ndim else BIAS[6:]
    expected = np.rint(fl(fl(bias) / fl(fl(INPUT_SCALE) * fl(filter_scale)))).astype(np.int64)
    assert (expected == expected.astype(np.int32)).all()
    expected = (expected.astype(np.int32),)
    same((quantize_bias(bias, INPUT_SCALE, filter_scale),), expected)
    same((quantize_bias(jnp.asarray(bias), INPUT_SCALE, filter_scale),), expected)
    same((jax.jit(quantize_bias)(bias, INPUT_SCALE, filter_scale),), expected)
    same((jax.jit(lambda bias: quantize_bias(bias, INPUT_SCALE, filter_scale))(bias),), expected)


def test_bias_ties_round_to_even():
    assert quantize_bias(np.float32([0.5, 1.5, 2.5, -0.5, -1.5]), 0.5, 2.0).tolist() == [0, 2, 2, 0, -2]


def test_a_subnormal_bias_is_zero():
    arguments = np.float32([0.9 * TINY, -1.1 * TINY]), np.float32(2.0**-60), np.float32(2.0**-66 * 1.01)
    for form in (quantize_bias, jax.jit(quantize_bias)):
        assert form(*arguments).tolist() == [0, -1]


def test_the_remedy_for_a_bias_that_overflows():
    bias, filter_scale = np.float32([1, 100, -3e5, 2**31, -(2**31)]), np.float32([1e-3, 1e-9, 1e-12, 1, 1])
    with pytest.raises(PtqError, match=r"does not fit int32 in channels 1, 2, 3\. Quantize the filter") as error:
        quantize_bias(bias, 1.0, filter_scale)
    needed = [float(x) for x in re.search("at least (.*)$", str(error.value))[1].split(", ")]
    mended = filter_scale.copy()
    mended[1:4] = needed
    assert_same_bits(mended[1:4], np.maximum(filter_scale, np.abs(bias) / np.float32(2**30))[1:4])
    steps = quantize_bias(bias, 1.0, mended)
    assert steps.tolist() == [1000, 2**30, -(2**30), 2**30, -(2**31)]
    traced = jax.jit(quantize_bias)(bias, 1.0, filter_scale)
    assert traced.tolist() == [1000, 2**31 - 2**7, -(2**31), 2**31 - 2**7, -(2**31)]


def test_wrong_biases():
    bias = np.ones(3, np.float32)
    with pytest.raises(PtqError, match="bias holds NaN or infinity in channel 1: training"):
        quantize_bias(np.float32([0, np.nan, 1]), 1.0, 1.0)
    for scales in [(0.0, 1.0), (1.0, -1.0), (np.inf, 1.0), (1.0, np.nan), (1e-20, 1e-20), (1e30, 1e30)]:
        words = r"must be above 0, and their product finite and above 2\*\*-126; they are not in channels 0, 1, 2"
        with pytest.raises(PtqError, match=words):
            quantize_bias(bias, *scales)
    for shapes in [((3, 1), (), ()), ((3,), (3,), ()), ((3,), (), (4,)), ((), (), ())]:
        with pytest.raises(PtqError, match=r"bias has .*, expected a bias \[channels\], an input_scale of shape \(\)"):
            quantize_bias(*(np.ones(shape, np.float32) for shape in shapes))


def test_many_wrong_channels_are_not_all_listed():
    with pytest.raises(PtqError, match=r"in channels 0, 1, 2, 3, 4, 5, 6, 7, \.\.\.:"):
        quantize_bias(np.full(100, np.nan), 1.0, 1.0)


def test_numpy_compiles_nothing(monkeypatch):
    """NumPy computes NumPy arrays: on JAX, each shape of weights would be another program to compile."""
    monkeypatch.setattr(ranges, "_weights_of_jax", None)
    monkeypatch.setattr(ranges, "jnp", ranges.np)
    monkeypatch.setattr(ranges, "rounding", None)
    scale_and_zero_point(LOW[:2], HIGH[:2], "uint8")
    quantize_bias(np.ones(2), 1.0, quantize_weights(np.ones((2, 2)), 0, "int8")[1])
