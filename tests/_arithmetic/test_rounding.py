"""The guards against XLA's float rewrites. Each of these tests fails if its guard is removed."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.marks import on_both_kernels
from jaxdml import reference
from jaxdml._arithmetic import rounding

pytestmark = [on_both_kernels, pytest.mark.oldest]

RNG = np.random.default_rng(7)
A = RNG.integers(0, 256, (96, 64)).astype(np.uint8)
B = RNG.integers(-128, 128, (96, 64)).astype(np.int8)
W = RNG.integers(-128, 128, (64, 48)).astype(np.int8)
X = RNG.normal(0, 3, (96, 64)).astype(np.float32)
SCALES = RNG.integers(1, 400, (12, 3)).astype(np.float32) / np.float32(1000)


def add(a, a_scale, b, b_scale, output_scale):
    return dml.element_wise_quantized_linear_add(a, a_scale, 3, b, b_scale, -7, output_scale, 101)


def multiply(a, a_scale, b, b_scale, output_scale):
    return dml.quantized_linear_matrix_multiply(a, a_scale, 3, b, b_scale, -7, output_scale, 101)


def add_expected(a, a_scale, b, b_scale, output_scale):
    arguments = (a, a_scale, np.uint8(3), b, b_scale, np.int8(-7), output_scale, np.uint8(101))
    return reference.element_wise_quantized_linear_add(*arguments)


def multiply_expected(a, a_scale, b, b_scale, output_scale):
    arguments = (a, a_scale, np.uint8(3), b, b_scale, np.int8(-7), output_scale, np.uint8(101))
    return reference.quantized_linear_matrix_multiply(*arguments)


def partial_jit(function, arguments, traced):
    """function under jit with only the arguments at `traced` traced; the others are constants."""

    def call(given):
        return function(*(given.get(i, argument) for i, argument in enumerate(arguments)))

    return jax.jit(call)({i: jnp.asarray(arguments[i]) for i in traced})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("traced", [t for r in range(6) for t in itertools.combinations(range(5), r)], ids=str)
@pytest.mark.parametrize("name", ["add", "multiply"])
def test_constants_change_no_bit(name, traced):
    """Whichever arguments are constants: XLA divides by constants differently, and fuses differently."""
    function, oracle, second, output = {
        "add": (add, add_expected, B, 1),
        "multiply": (multiply, multiply_expected, W, 60),
    }[name]
    a_scale, b_scale, output_scale = SCALES[0]
    arguments = (A, a_scale, second, b_scale, output_scale * np.float32(output))
    assert_same_bits(partial_jit(function, arguments, traced), oracle(*arguments))


def test_sum_of_products_is_no_fused_multiply_add():
    for a_scale, b_scale, output_scale in SCALES:
        arguments = (A, a_scale, B, b_scale, output_scale)
        assert_same_bits(jax.jit(add)(*arguments), add_expected(*arguments))


def test_dequantize_keeps_its_rounding_in_the_callers_sum():
    """A jitted caller that adds to the result gets the same bits as outside jit."""

    def caller(a, a_scale, b, b_scale):
        return dml.element_wise_dequantize_linear(a, a_scale, 3) + dml.element_wise_dequantize_linear(b, b_scale, -7)

    for a_scale, b_scale, _ in SCALES:
        expected = reference.element_wise_dequantize_linear(A, a_scale, np.uint8(3))
        expected = expected + reference.element_wise_dequantize_linear(B, b_scale, np.int8(-7))
        assert_same_bits(jax.jit(caller)(A, a_scale, B, b_scale), expected)


def test_float16_result_stays_float16_in_the_callers_code():
    """XLA may drop a conversion to float16 that is followed by a conversion back."""

    def caller(a, scale):
        return dml.element_wise_dequantize_linear(a, scale, 3).astype(jnp.float32) * np.float32(3)

    scale = np.float16(0.0123)
    expected = reference.element_wise_dequantize_linear(A, scale, np.uint8(3)).astype(np.float32) * np.float32(3)
    assert_same_bits(jax.jit(caller)(A, scale), expected)


def test_float16_is_sealed_against_a_conversion_back():
    """XLA for GPUs drops a conversion to float16 that is directly followed by one back; XLA for CPUs keeps it."""
    program = jax.make_jaxpr(lambda x: rounding.rounded_to(x, jnp.float16).astype(jnp.float32))(X)
    *_, last, back = program.eqns
    assert (back.primitive.name, last.primitive.name) == ("convert_element_type", "select_n")
    assert back.invars == last.outvars


def near_ties(scale):
    """Values whose quotient by scale is k + 1/2, or a few ulps away from it, where one wrong bit shows."""
    ties = ((np.arange(-1000, 1000) + 0.5) * np.float64(scale)).astype(np.float32)
    return np.concatenate([ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))])


def quantize(x, scale):
    return dml.element_wise_quantize_linear(x, scale, 0, output_dtype=jnp.int16, feature_level=dml.FeatureLevel.JAXDML)


def quantize_expected(x, scale):
    return reference.element_wise_quantize_linear(x, scale, 0, output_dtype=np.int16)


Y = RNG.uniform(0.5, 2, 6000).astype(np.float32)
DIVISIONS = {
    "by a scalar": (lambda x, y, s: quantize(x, s), lambda x, y, s: quantize_expected(x, s)),
    "by an array": (lambda x, y, s: quantize(x, s * y), lambda x, y, s: quantize_expected(x, s * y)),
    "of a quotient": (lambda x, y, s: quantize(x / y, s), lambda x, y, s: quantize_expected(x / y, s)),
    "of a product": (lambda x, y, s: quantize(x * y, s), lambda x, y, s: quantize_expected(x * y, s)),
    "by a quotient": (lambda x, y, s: quantize(x, s / y), lambda x, y, s: quantize_expected(x, s / y)),
}


# The arguments that are traced. jaxdml cannot guard the caller's own division, so its divisor y is never constant.
TRACED = [
    (name, traced)
    for name in DIVISIONS
    for r in range(4)
    for traced in itertools.combinations(range(3), r)
    if "quotient" not in name or 1 in traced
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "traced"), TRACED, ids=str)
def test_division_is_one_division(name, traced):
    """x / s is never x * (1 / s), (x / y) / s never x / (y * s), x / (s / y) never x * y / s, whatever is constant."""
    function, oracle = DIVISIONS[name]
    for _, _, scale in SCALES[:3]:
        x = near_ties(scale)
        x = {"of a quotient": x * Y, "by a quotient": x / Y}.get(name, x)
        arguments = (x, Y, scale if name == "by a scalar" else np.full_like(x, scale))
        assert_same_bits(partial_jit(function, arguments, traced), oracle(*arguments))


def test_requantize_multiplier_is_a_division():
    """(a_scale * b_scale) / output_scale, in this order, with a_scale a column and output_scale a scalar.

    A multiplier that is one bit off changes one of 100,000 outputs: here are three million.
    """
    a, b = np.arange(256, dtype=np.uint8).reshape(256, 1), np.arange(-128, 128).astype(np.int8).reshape(1, 256)
    rows = RNG.integers(1, 400, (256, 1)).astype(np.float32) / np.float32(1000)
    for _ in range(48):
        b_scale, output_scale = (RNG.integers(1, 400, 2) / 1000).astype(np.float32) * np.float32([1, 40])
        arguments = (a, rows, b, b_scale, output_scale)
        assert_same_bits(jax.jit(multiply)(*arguments), multiply_expected(*arguments))


def test_the_rewrites_exist():
    """This backend makes the rewrites that the guards prevent; otherwise the tests above would prove nothing."""
    s, t = np.float32(0.1), np.float32(0.3)
    x = near_ties(s)
    assert (np.asarray(jax.jit(lambda x, s: x / s)(x, s)) != x / s).any()
    assert (np.asarray(jax.jit(lambda x, y, s: (x / y) / s)(x, Y, s)) != (x / Y) / s).any()
    assert (np.asarray(jax.jit(lambda x, y: x * s + y * t)(x, Y)) != x * s + Y * t).any()


@pytest.mark.parametrize(
    ("zero_point", "expected"), [(0, [0, 0, 2, 2]), (1, [1, 1, 3, 3]), (128, [128, 128, 130, 130])]
)
def test_ties_round_to_even_before_the_zero_point(zero_point, expected):
    x = np.asarray([0, 0.5, 1.5, 2.5], np.float32)
    assert dml.element_wise_quantize_linear(x, 1.0, zero_point).tolist() == expected


@pytest.mark.parametrize("scale", [0.0, -0.0, np.nan, np.inf, -np.inf])
def test_scales_that_no_one_should_use(scale):
    """Results follow IEEE 754: infinities saturate, NaN gives the minimum, nothing crashes."""
    scale = np.float32(scale)
    for arguments in ((A, scale, B, 0.5, 0.25), (A, 0.5, B, 0.5, scale), (A, scale, B, scale, scale)):
        arguments = [np.float32(x) if isinstance(x, float) else x for x in arguments]
        assert_same_bits(add(*arguments), add_expected(*arguments))
    for arguments in ((A, scale, W, 0.5, 0.25), (A, 0.5, W, 0.5, scale)):
        arguments = [np.float32(x) if isinstance(x, float) else x for x in arguments]
        assert_same_bits(multiply(*arguments), multiply_expected(*arguments))
