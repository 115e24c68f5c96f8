"""Square roots on platforms whose own root is inexact: exact, from roots that err by up to 3 ulp."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from helpers.compare import assert_same_bits
from jaxdml._arithmetic.square_root import square_root, square_root_by_integers

SPECIAL = np.float32([0, 1, 2, 4, np.inf, np.nan, 2.0**-126, 2.0**-125, 3.4028235e38])
RNG = np.random.default_rng(6)


def erring(ulps, x):
    """A square root, off by `ulps` units in the last place."""
    return lax.bitcast_convert_type(lax.bitcast_convert_type(lax.sqrt(x), jnp.int32) + np.int32(ulps), jnp.float32)


ROOTS = [functools.partial(erring, ulps) for ulps in range(-3, 4)]


def check(x, root):
    """Compares with NumPy's roots of float64, whose rounding to float32 is that of the exact root."""
    with np.errstate(invalid="ignore"):
        expected = np.sqrt(x.astype(np.float64)).astype(np.float32)
    received = np.asarray(square_root_by_integers(x, root))
    wrong = (received.view(np.int32) != expected.view(np.int32)) & ~(np.isnan(received) & np.isnan(expected))
    first = np.flatnonzero(wrong)[:3]
    assert not wrong.any(), (wrong.sum(), x[first], received[first], expected[first])
    return x.size


def every(exponent):
    """All floats of a biased exponent."""
    return (np.arange(2**23, dtype=np.uint32) | np.uint32(exponent << 23)).view(np.float32)


def test_a_root_that_errs_is_corrected():
    x = RNG.integers(2**23, 255 << 23, 50_000).astype(np.uint32).view(np.float32)
    ends = np.concatenate(
        [every(exponent)[part] for exponent in (127, 128) for part in (slice(999), slice(-999, None))]
    )
    for root in ROOTS:
        check(x, root)
        check(ends, root)


@pytest.mark.rare
def test_every_mantissa_of_an_even_and_an_odd_exponent():
    assert sum(check(every(exponent), root) for exponent in (127, 128) for root in ROOTS) == 7 * 2**24


def test_special_values():
    for root in ROOTS:
        check(np.concatenate([SPECIAL, -SPECIAL]), root)
    zeros = square_root_by_integers(np.float32([2.0**-127, -(2.0**-149)]))
    assert_same_bits(zeros, np.float32([0, -0.0]))


def test_a_root_that_errs_more_is_wrong():
    """The bound is tight: these tests can fail."""
    with pytest.raises(AssertionError):
        check(every(127)[:9999], functools.partial(erring, -20))


def test_derivatives_are_those_of_a_root():
    x = np.float32([3, 5])
    own, expected = (jax.vjp(root, x)[1](np.float32([1, 2])) for root in (square_root, lax.sqrt))
    for one, other in zip(own, expected, strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_a_cpu_takes_roots_by_itself(platform):
    lowered = export.export(jax.jit(square_root), platforms=[platform])(jax.ShapeDtypeStruct((4,), jnp.float32))
    text = lowered.mlir_module()
    assert "stablehlo.sqrt" in text
    assert ("stablehlo.shift_left" in text) == (platform != "cpu")
