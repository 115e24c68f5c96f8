"""Quotients on platforms whose own division is inexact: exact, from divisions that err by up to 3 ulp."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import jaxdml as dml
from helpers.compare import assert_same_bits
from jaxdml._arithmetic.division import divided, divided_by_integers

ERRORS = range(-3, 4)
SMALLEST = np.float32(2.0**-126)
SPECIAL = np.float32(
    [0, 1, 3, np.inf, np.nan, SMALLEST, 3 * SMALLEST, 3.4e38, 2 - 2.0**-23, 1 + 2.0**-23, 1 - 2.0**-24]
)
RNG = np.random.default_rng(5)


def erring(ulps, x, y):
    """x / y, off by `ulps` units in the last place."""
    return lax.bitcast_convert_type(lax.bitcast_convert_type(lax.div(x, y), jnp.int32) + np.int32(ulps), jnp.float32)


DIVISIONS = [functools.partial(erring, ulps) for ulps in ERRORS]


def of(mantissa, exponent):
    """float32 of 23 bits of mantissa and a biased exponent, with random signs."""
    sign = RNG.integers(0, 2, mantissa.shape) << 31
    return (mantissa | (exponent << 23) | sign).astype(np.uint32).view(np.float32)


def anything(size):
    return tuple(of(RNG.integers(0, 2**23, size), RNG.integers(1, 255, size)) for _ in range(2))


def nearly_equal(size):
    """Quotients next to 1, where the exponent of a bad candidate may differ."""
    x = RNG.integers(0, 2**23, size)
    y = np.clip(x + RNG.integers(-9, 10, size), 0, 2**23 - 1)
    return of(x, RNG.integers(60, 190, size)), of(y, RNG.integers(60, 190, size))


def next_to_ties(size):
    """x next to y * (q + 1/2) for q of 24 bits: quotients next to the midpoint of two floats."""
    y = RNG.integers(2**23, 2**24, size)
    middle = y.astype(object) * (2 * RNG.integers(2**23, 2**24, size).astype(object) + 1)
    x = np.array([int(each) >> (int(each).bit_length() - 24) for each in middle]) + RNG.integers(-1, 2, size)
    return of(np.clip(x, 2**23, 2**24 - 1) - 2**23, np.full(size, 127)), of(y - 2**23, np.full(size, 127))


def at_the_ends(size):
    """Quotients that overflow or underflow, or nearly do."""
    exponent = RNG.integers(1, 128, size)
    ends = RNG.choice([-128, -127, -126, 126, 127, 128], size)
    x_exponent = np.where(ends < 0, exponent, 255 - exponent)
    y_exponent = x_exponent - ends
    near = RNG.integers(0, 4, size) * RNG.choice([1, -1], size) % 2**23
    return of(near, np.clip(x_exponent, 1, 254)), of(RNG.permutation(near), np.clip(y_exponent, 1, 254))


KINDS = {"anything": anything, "nearly equal": nearly_equal, "next to ties": next_to_ties, "at the ends": at_the_ends}


def check(x, y, divide):
    """Compares with NumPy's quotients; subnormal quotients count as zeros of the same sign."""
    with np.errstate(all="ignore"):
        expected = x / y
        tiny = abs(x.astype(np.float64) / y) < SMALLEST * (1 - 2.0**-25)  # a quotient that rounds to 2**-126 is normal
    expected = np.where(tiny, np.copysign(np.float32(0), expected), expected)
    received = np.asarray(divided_by_integers(x, y, divide))
    wrong = (received.view(np.int32) != expected.view(np.int32)) & ~(np.isnan(received) & np.isnan(expected))
    first = np.flatnonzero(wrong)[:3]
    assert not wrong.any(), (wrong.sum(), x[first], y[first], received[first], expected[first])
    return x.size


@pytest.mark.parametrize("kind", KINDS)
def test_a_division_that_errs_is_corrected(kind):
    for divide in DIVISIONS:
        check(*KINDS[kind](20_000), divide)


@pytest.mark.rare
def test_a_hundred_million_quotients():
    assert sum(check(*anything(2_000_000), DIVISIONS[i % len(DIVISIONS)]) for i in range(50)) == 100_000_000


def test_special_values():
    values = np.concatenate([SPECIAL, -SPECIAL])
    x, y = (each.ravel() for each in np.meshgrid(values, values))
    for divide in DIVISIONS:
        check(x, y, divide)


def test_a_division_that_errs_more_is_wrong():
    """The bound is tight: these tests can fail."""
    with pytest.raises(AssertionError):
        check(*nearly_equal(20_000), functools.partial(erring, -20))


def test_derivatives_are_those_of_a_quotient():
    x, y = np.float32([3, -5]), np.float32([7, 2])
    own, expected = (jax.vjp(divide, x, y)[1](np.float32([1, 2])) for divide in (divided, lax.div))
    for one, other in zip(own, expected, strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_a_cpu_divides_by_itself(platform):
    x = jax.ShapeDtypeStruct((4, 8), jnp.float32)
    f = jax.jit(lambda x, scale: dml.element_wise_quantize_linear(x, scale, np.uint8(3)))
    text = export.export(f, platforms=[platform])(x, jax.ShapeDtypeStruct((), jnp.float32)).mlir_module()
    assert "stablehlo.divide" in text
    assert ("stablehlo.shift_left" in text) == (platform != "cpu")
