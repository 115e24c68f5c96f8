"""The error of each function in ulp, and its bits against the reference, over all of float32."""

import jax
import numpy as np
import pytest
from scipy import special

from helpers.compare import assert_same_bits
from helpers.every_float import every
from jaxdml._exact import pairs
from jaxdml._exact.powers import integer_power
from jaxdml._exact.rules import FUNCTIONS
from jaxdml.reference import floats

RIGHT = {  # in float64, and the largest error in ulp that docs/exact_rules.md gives
    "exp": (np.exp, 0.85),
    "exp2": (np.exp2, 0.85),
    "expm1": (np.expm1, 1.2),
    "logistic": (special.expit, 1.35),
    "tanh": (np.tanh, 0.85),
    "log": (np.log, 0.85),
    "log1p": (np.log1p, 0.9),
    "erf": (special.erf, 1.2),
    "erfc": (special.erfc, 1.9),
    "erf_inv": (special.erfinv, 0.9),
    "sin": (np.sin, 1.0),
    "cos": (np.cos, 1.0),
    "tan": (np.tan, 1.5),
    "asin": (np.arcsin, 0.8),
    "acos": (np.arccos, 0.8),
    "atan": (np.arctan, 1.5),
    "sinh": (np.sinh, 1.0),
    "cosh": (np.cosh, 1.0),
    "asinh": (np.arcsinh, 0.9),
    "acosh": (np.arccosh, 0.9),
    "atanh": (np.arctanh, 0.9),
    "sqrt": (np.sqrt, 0.5),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5),
}
CHUNK = 2**22


def errors(got, right):
    """In ulp of the right value's binade; 0 where the right value is not a normal number."""
    size = np.abs(right)
    unit = np.ldexp(1.0, np.maximum(np.frexp(size)[1], -125) - 24)
    is_normal = (size >= 2.0**-126) & (size <= np.finfo(np.float32).max)
    return np.where(is_normal, np.abs(got - right) / unit, 0)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("step", [65_521, pytest.param(1_021, marks=pytest.mark.rare)])
def test_bits_and_errors(name, step):
    check(name, step, with_bits=True)


@pytest.mark.rare
@pytest.mark.parametrize("name", RIGHT)
def test_errors_of_every_17th_float(name):
    check(name, 17, with_bits=False)


def check(name, step, with_bits):
    function, (right, limit) = jax.jit(FUNCTIONS[name]), RIGHT[name]
    for x in map(floats.flushed, every(step, CHUNK)):
        got = np.asarray(function(x))
        with np.errstate(all="ignore"):
            assert np.nanmax(errors(got.astype(np.float64), right(x.astype(np.float64)))) <= limit
        if with_bits:
            assert_same_bits(got, getattr(floats, name)(x), name)


def test_polynomials_with_a_negative_first_coefficient_are_not_contracted():
    """LLVM knows that c0 * x**2 is not positive, and therefore drops the minimum that prevents contraction."""
    x = np.linspace(0, 1, 2**16, dtype=np.float32)
    got = jax.jit(lambda x: pairs.horner((-0.3, 0.7, -0.1), pairs.times(x, x)))(x)
    square = x * x
    right = (np.float32(-0.3) * square + np.float32(0.7)) * square + np.float32(-0.1)
    assert_same_bits(got, right)


@pytest.mark.parametrize("count", [2**14, pytest.param(2**22, marks=pytest.mark.rare)])
def test_powers(count):
    rng = np.random.default_rng(0)
    power = jax.jit(FUNCTIONS["pow"])
    for spread, exponents in ((20, 2), (0.01, 3000), (5, 8), (1e-6, 1e7)):
        y = (rng.standard_normal(count) * exponents).astype(np.float32)
        with np.errstate(all="ignore"):
            x = floats.flushed(np.exp(rng.standard_normal(count) * spread).astype(np.float32))
            got, right = np.asarray(power(x, y)), np.power(x.astype(np.longdouble), y.astype(np.longdouble))
            assert errors(got, right).max() <= 0.85
        assert_same_bits(got, floats.power(x, y))


@pytest.mark.parametrize("count", [2**14, pytest.param(2**22, marks=pytest.mark.rare)])
def test_angles_of_points(count):
    rng = np.random.default_rng(0)
    angle = jax.jit(FUNCTIONS["atan2"])
    for spread in (0.01, 1, 15):
        y, x = np.exp(rng.standard_normal((2, count)) * spread).astype(np.float32) * rng.choice(
            np.float32([-1, 1]), (2, count)
        )
        got, right = np.asarray(angle(y, x)), np.arctan2(y.astype(np.longdouble), x.astype(np.longdouble))
        assert errors(got, right).max() <= 1.5
        assert_same_bits(got, floats.atan2(y, x))


def test_special_powers():
    values = np.float32(
        [0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, np.inf, -np.inf, np.nan, 1e-30, -1e30, 2**24 + 2, 1.5]
    )
    x, y = map(np.ravel, np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        right = floats.flushed(np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32))
    assert_same_bits(jax.jit(FUNCTIONS["pow"])(x, y), right)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("exponent", [-7, -3, -2, -1, 0, 1, 2, 3, 4, 5, 11])
def test_constant_integer_powers(exponent):
    x = np.concatenate([np.float32([0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e30, -1]), np.linspace(-9, 9, 500)])
    x = x.astype(np.float32)
    got = jax.jit(lambda x: integer_power(x, exponent))(x)
    with np.errstate(all="ignore"):
        right = np.power(x.astype(np.float64), exponent)
        assert np.nanmax(errors(np.asarray(got, np.float64), right)) <= 1.5
        is_special = ~(np.abs(right) < 1e38) | (np.abs(right) < 1e-37)
        assert_same_bits(np.asarray(got)[is_special], floats.flushed(right.astype(np.float32))[is_special])
