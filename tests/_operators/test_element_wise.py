"""Dequantize, add and quantize against the oracle: exhaustive where the types allow it, bit for bit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.cases import BYTES
from helpers.compare import assert_same_bits
from helpers.marks import rarely_on_xla
from helpers.modes import as_jax, stacked
from jaxdml import reference

pytestmark = rarely_on_xla

INTEGERS = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32)
FLOATS = (np.float32, np.float16)
# Powers of two, decimals, both signs, the extremes of the normal range, and values that no scale should have.
SCALES = (1.0, 0.25, 0.1, 1 / 3, 0.0078125, 3.7e-3, -0.5, 300.0, 65504.0, 0.0, -0.0, np.inf, -np.inf, np.nan)


def assert_every_form_gives(expected, function, arguments, **statics):
    """Called and jitted, with 64-bit types off and on. The oracle is slow, so its answer is computed once for all."""
    for enabled in (False, True):
        with jax.enable_x64(enabled):
            assert_same_bits(function(*arguments, **statics), expected)
            assert_same_bits(jitted(function, *statics)(*arguments, **statics), expected)


@functools.cache
def jitted(function, *statics):
    return jax.jit(function, static_argnames=statics)


def every_value(dtype):
    """All values of an 8- or 16-bit type; of a 32-bit type both ends, and where float32 begins to round."""
    limits = np.iinfo(dtype)
    if limits.bits < 32:
        return np.arange(limits.min, limits.max + 1).astype(dtype)
    centres = [limits.min, limits.max, 0, 2**31 - 1, -(2**24), *(3 * 2**e for e in range(20, 31)), *2 ** np.arange(31)]
    near = np.add.outer(np.asarray(centres, np.int64), np.arange(-70, 71)).reshape(-1)
    return near[(near >= limits.min) & (near <= limits.max)].astype(dtype)


def zero_points(dtype):
    limits = np.iinfo(dtype)
    inner = [0, 1, limits.max // 2, limits.max // 2 + 1, limits.min // 2]
    return [None, *(np.asarray(z, dtype) for z in (limits.min, limits.min + 1, limits.max - 1, limits.max, *inner))]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scale_dtype", FLOATS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_dequantize_every_value(dtype, scale_dtype):
    x = every_value(dtype)
    for zero_point in zero_points(dtype):
        for scale in SCALES:
            arguments = (x, np.asarray(scale).astype(scale_dtype), zero_point)
            expected = reference.element_wise_dequantize_linear(*arguments)
            assert_every_form_gives(expected, dml.element_wise_dequantize_linear, arguments)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("scale_dtype", FLOATS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_dequantize_vmapped(dtype, scale_dtype, x64):
    x = every_value(dtype)
    lists = [(x[::-1] if i % 2 else x, np.asarray(s, scale_dtype), z) for i, s in enumerate(SCALES)
             for z in zero_points(dtype)[1:]]  # fmt: skip
    got = np.asarray(jax.vmap(dml.element_wise_dequantize_linear)(*as_jax(stacked(lists))))
    for one, arguments in zip(got, lists, strict=True):
        assert_same_bits(one, reference.element_wise_dequantize_linear(*arguments))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rank", range(1, 9))
@pytest.mark.parametrize("dtype", INTEGERS)
def test_dequantize_ranks_and_broadcasting(dtype, rank):
    rng = np.random.default_rng(rank)
    shape = (2, 1, 3, 2, 1, 2, 2, 3)[:rank]
    x = rng.choice(every_value(dtype), shape)
    lists = []
    for axis in range(rank):
        form = tuple(size if d == axis else 1 for d, size in enumerate(shape))[axis:]
        scale = rng.normal(size=form).astype(np.float32)
        zero_point = rng.choice(every_value(dtype), form)
        lists += [(x, scale, zero_point), (x, rng.normal(size=shape).astype(np.float32), zero_point)]
    dequantize = dml.element_wise_dequantize_linear
    together = jax.jit(lambda lists: [dequantize(*a) for a in lists])(lists)
    expected = [reference.element_wise_dequantize_linear(*arguments) for arguments in lists]
    for got, right in zip(together, expected, strict=True):
        assert_same_bits(got, right)
    for arguments, right in zip(lists[:2], expected, strict=False):
        assert_same_bits(dequantize(*arguments), right)


def add_parameters():
    """At least 200 sets: (a_scale, b_scale, output_scale) and where in its range each zero point lies."""
    rng = np.random.default_rng(5)
    fixed = [(1, 1, 1), (0.5, 0.5, 1), (0.5, 0.25, 0.5), (0.1, 0.1, 0.1), (0.1, 0.2, 0.3), (0.05, 0.02, 0.07),
             (-0.1, 0.3, 0.2), (0.1, -0.3, 0.2), (0.1, 0.3, -0.2), (0.007, 0.9, 0.3), (1, 1, 1e-8), (0.3, 0.7, 1e6),
             (1e30, -1e30, 1e28), (3e38, 3e38, 1), (1, 1, 0), (1, np.nan, 1), (np.inf, 1, 1)]  # fmt: skip
    decimals = rng.integers(1, 400, (100, 3)) / [1000, 100, 100]
    powers = 2.0 ** rng.integers(-8, 3, (40, 3))
    ratios = np.exp(rng.normal(-3, 1, (60, 3))) * rng.choice([-1, 1], (60, 3))
    scales = [*fixed, *decimals, *powers, *ratios]
    places = rng.choice([0.0, 1.0, 0.5, 0.497, 0.253], (len(scales), 3))
    return [(np.asarray(s, np.float32), p) for s, p in zip(scales, places, strict=True)]


ADD_PARAMETERS = add_parameters()
MIXES = [(a, b, o) for a in BYTES for b in BYTES for o in BYTES]


def at(place, dtype):
    limits = np.iinfo(dtype)
    return np.asarray(round(limits.min + place * (limits.max - limits.min)), dtype)


@functools.cache
def pairs(a_dtype, b_dtype):
    a, b = np.meshgrid(every_value(a_dtype), every_value(b_dtype), indexing="ij")
    return a.reshape(-1), b.reshape(-1)


def add_arguments(mix, parameters):
    (a_scale, b_scale, output_scale), places = parameters
    zero_points = [at(place, dtype) for place, dtype in zip(places, mix, strict=True)]
    a, b = pairs(*mix[:2])
    return a, a_scale, zero_points[0], b, b_scale, zero_points[1], output_scale, zero_points[2]


def test_add_parameters_are_many():
    assert len(ADD_PARAMETERS) >= 200


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: "-".join(np.dtype(t).name for t in mix))
def test_add_every_pair(mix):
    """All 65,536 pairs for every parameter set: called, jitted, and vmapped over the sets."""
    lists = [add_arguments(mix, parameters) for parameters in ADD_PARAMETERS]
    vmapped = jax.vmap(dml.element_wise_quantized_linear_add, in_axes=(None, 0, 0, None, 0, 0, 0, 0))
    parameters = as_jax(stacked([(*a[1:3], *a[4:]) for a in lists]))
    batches = []
    for enabled in (False, True):
        with jax.enable_x64(enabled):
            batches.append(np.asarray(vmapped(lists[0][0], *parameters[:2], lists[0][3], *parameters[2:])))
    for arguments, *in_batches in zip(lists, *batches, strict=True):
        expected = reference.element_wise_quantized_linear_add(*arguments)
        assert_every_form_gives(expected, dml.element_wise_quantized_linear_add, arguments)
        for in_batch in in_batches:
            assert_same_bits(in_batch, expected)


@pytest.mark.parametrize("rank", range(1, 9))
def test_add_ranks_and_missing_zero_points(rank):
    rng = np.random.default_rng(rank)
    shape = (2, 3, 1, 2, 2, 1, 2, 3)[:rank]
    lists, mixes = [], []
    for mask in np.ndindex(2, 2, 2):
        mix = MIXES[rng.integers(8)]
        zero_points = [at(rng.random(), dtype) if here else None for here, dtype in zip(mask, mix, strict=True)]
        a, b = (rng.choice(every_value(dtype), shape) for dtype in mix[:2])
        one = (1,) * rng.integers(0, rank + 1)
        scales = [np.full(one, scale, np.float32) for scale in rng.random(3)]
        lists.append((a, scales[0], zero_points[0], b, scales[1], zero_points[1], scales[2], zero_points[2]))
        mixes.append(mix)
    add, pairs_of_both = dml.element_wise_quantized_linear_add, list(zip(lists, mixes, strict=True))

    def all_of_them(lists):
        return [add(*arguments, output_dtype=mix[2]) for arguments, mix in zip(lists, mixes, strict=True)]

    together = jax.jit(all_of_them)(lists)
    for got, (arguments, mix) in zip(together, pairs_of_both, strict=True):
        assert_same_bits(got, reference.element_wise_quantized_linear_add(*arguments, output_dtype=mix[2]))
    for arguments, mix in pairs_of_both[:2]:
        expected = reference.element_wise_quantized_linear_add(*arguments, output_dtype=mix[2])
        assert_same_bits(add(*arguments, output_dtype=mix[2]), expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [*BYTES, np.uint16, np.int16])
@pytest.mark.parametrize("input_dtype", [np.float32, np.float16, np.int32])
def test_quantize(input_dtype, dtype):
    """Ties, every quotient around the limits, infinities and NaN, with zero points at both ends."""
    halves = np.arange(-140_000, 140_000, dtype=np.int64)
    with np.errstate(over="ignore"):
        x = halves.astype(np.int32) if input_dtype == np.int32 else (halves / 2).astype(input_dtype)
    if input_dtype != np.int32:
        x = np.concatenate([x, np.asarray([np.inf, -np.inf, np.nan, -0.0, 65504, 1e-5], input_dtype)])
    statics = {"output_dtype": dtype, "feature_level": dml.FeatureLevel.JAXDML}
    scale_dtype = np.float32 if input_dtype == np.int32 else input_dtype
    for scale in SCALES:
        scale = np.asarray(scale).astype(scale_dtype)
        for zero_point in zero_points(dtype):
            expected = reference.element_wise_quantize_linear(x, scale, zero_point, output_dtype=dtype)
            assert_every_form_gives(expected, dml.element_wise_quantize_linear, (x, scale, zero_point), **statics)


def test_quantize_vmapped_over_scales_and_zero_points():
    x = np.random.default_rng(0).normal(0, 50, (30, 40)).astype(np.float32)
    scales, zeros = np.linspace(0.01, 1, 200, dtype=np.float32), np.arange(200).astype(np.uint8)
    batch = jax.vmap(dml.element_wise_quantize_linear, in_axes=(None, 0, 0))(x, jnp.asarray(scales), jnp.asarray(zeros))
    for one, scale, zero_point in zip(np.asarray(batch), scales, zeros, strict=True):
        assert_same_bits(one, reference.element_wise_quantize_linear(x, scale, zero_point))


@pytest.mark.parametrize("form", [(4,), (3, 1), (1, 1, 1, 4)], ids=str)
def test_quantize_by_parameters_of_other_ranks(form):
    rng = np.random.default_rng(0)
    x = rng.normal(0, 50, (2, 3, 4)).astype(np.float32)
    arguments = (x, rng.uniform(0.1, 1, form).astype(np.float32), rng.integers(0, 256, form, np.uint8))
    expected = reference.element_wise_quantize_linear(*arguments).reshape(x.shape)
    assert_same_bits(dml.element_wise_quantize_linear(*arguments), expected)


def test_quantize_then_dequantize_is_within_half_a_step():
    x = np.random.default_rng(0).uniform(-10, 10, 10_000).astype(np.float32)
    quantized = dml.element_wise_quantize_linear(x, 0.1, 128)
    back = np.asarray(dml.element_wise_dequantize_linear(quantized, 0.1, 128), np.float64)
    assert np.abs(back - x).max() <= 0.05 + 1e-6  # half a step, and the rounding of float32
    assert np.abs(back - x).max() > 0.045


def test_the_reference_takes_the_type_of_a_zero_point_of_jax():
    x = np.float32([-1, 0, 1])
    expected = reference.element_wise_quantize_linear(x, 0.5, np.int8(3))
    assert_same_bits(reference.element_wise_quantize_linear(x, 0.5, jnp.int8(3)), expected)
