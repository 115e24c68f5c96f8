"""Batches of quantized products with parameters of their own, and batches of nothing, against onnxruntime."""

import jax
import numpy as np
import pytest

from helpers.compare import assert_same_bits, assert_same_values
from helpers.formula_cases import integers
from helpers.one_node import fed
from jaxdml._quantized import directml

F = np.float32
OWN = (2, 3, 1, 40)  # a scale or zero point for each column of each matrix
SHAPES = {
    "one a": ((20, 30), (2, 30, 40), (2, 1, 40)),
    "each a": ((2, 3, 20, 30), (2, 3, 30, 40), OWN),
    "rows that broadcast": ((3, 20, 30), (2, 3, 30, 40), OWN),
    "a line": ((30,), (2, 3, 30, 40), OWN),
    "three dimensions of batch": ((2, 2, 3, 20, 30), (2, 2, 3, 30, 40), (2, *OWN)),
    "one number": ((2, 2, 3, 20, 30), (2, 2, 3, 30, 40), ()),
}


def operands(shapes, b_type):
    """a, its scale and zero point, b, its scales and zero points; 7-bit b, with which sums do not saturate."""
    rng, (a, b, columns) = np.random.default_rng(0), shapes
    low, high = (0, 128) if b_type == np.uint8 else (-64, 64)
    of_b = rng.integers(low, high, b).astype(b_type), np.asarray(rng.uniform(1e-3, 1e-2, columns), F)
    of_a = integers(rng, np.uint8, a), F(0.03), np.uint8(110)
    return *of_a, *of_b, np.asarray(rng.integers(low, high, columns), b_type)


def compare(operator, function, arguments, output, domain=""):
    expected = fed(operator, arguments, output, domain=domain)(*arguments)
    assert expected.size
    assert len(np.unique(expected)) > 20
    assert_same_bits(np.asarray(jax.jit(function)(*arguments)), expected)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("b_type", [np.uint8, np.int8])
@pytest.mark.parametrize("name", SHAPES)
def test_products(name, b_type):
    a, a_scale, a_zero_point, b, b_scale, b_zero_point = operands(SHAPES[name], b_type)
    of_a, of_b = (a, a_scale, a_zero_point), (b, b_scale, b_zero_point)
    compare("QLinearMatMul", directml.product, (*of_a, *of_b, F(0.3), np.uint8(120)), "uint8")
    compare("MatMulInteger", directml.integer_product, (a, b, a_zero_point, b_zero_point), "int32")
    floats = a, b, a_scale, b_scale, a_zero_point, b_zero_point
    compare("MatMulIntegerToFloat", directml.float_product, floats, "float32", "com.microsoft")
    biased = *floats, np.linspace(-2, 2, 40, dtype=F)
    compare("MatMulIntegerToFloat", directml.float_product, biased, "float32", "com.microsoft")


def test_rows_of_each_matrix():
    """ONNX allows these, and onnxruntime does not, so the matrices are compared one after the other."""
    rng = np.random.default_rng(1)
    a, b = integers(rng, np.int8, (3, 4, 5)), integers(rng, np.int8, (5, 6))
    scales, zero_points = rng.uniform(1e-3, 1e-2, (3, 4, 1)).astype(F), integers(rng, np.int8, (3, 4, 1))
    exact = np.matmul(a.astype(np.int64) - zero_points, b.astype(np.int64) - 3)
    of_b, of_y = (b, F(0.1), np.int8(3)), (F(1), np.int8(7))
    got = directml.product(a, scales, zero_points, *of_b, *of_y)
    multiplier = (scales * F(0.1)).astype(F)
    expected = np.clip(np.rint(exact.astype(F) * multiplier) + 7, -128, 127)
    assert_same_bits(np.asarray(got), expected.astype(np.int8))
    assert_same_values(np.asarray(directml.integer_product(a, b, zero_points, np.int8(3))), exact)


@pytest.mark.parametrize("zero_points", [(4,), (4, 1)])
def test_integer_products_of_rows_with_their_own_zero_points(zero_points):
    rng = np.random.default_rng(2)
    a, b = integers(rng, np.uint8, (4, 50)), integers(rng, np.int8, (50, 6))
    of_a, of_b = integers(rng, np.uint8, zero_points), integers(rng, np.int8, (6,))
    expected = np.matmul(a.astype(np.int32) - of_a.reshape(4, 1), b.astype(np.int32) - of_b)
    got = directml.integer_product(a, b, of_a, of_b)
    assert_same_bits(np.asarray(got), expected.astype(np.int32))


def none(*shape):
    return np.ones(shape, np.int8)


ONE, ZERO = F(1), np.int8(0)
NOTHING = {
    "QLinearConv": (directml.convolution, (none(0, 3, 4, 5), ONE, ZERO, none(2, 3, 2, 2), ONE, ZERO, ONE, ZERO), ""),
    "QLinearMatMul": (directml.product, (none(0, 3), ONE, ZERO, none(3, 2), ONE, ZERO, ONE, ZERO), ""),
    "MatMulInteger": (directml.integer_product, (none(4, 0, 3), none(3, 2)), ""),
    "MatMulIntegerToFloat": (directml.float_product, (none(2, 3), none(3, 0), ONE, ONE), "com.microsoft"),
    "QLinearAdd": (directml.add, (none(0, 3), ONE, ZERO, none(3), ONE, ZERO, ONE, ZERO), "com.microsoft"),
    "QLinearGlobalAveragePool": (
        directml.global_average_pool, (none(0, 3, 4, 5), ONE, ZERO, ONE, ZERO), "com.microsoft"
    ),
}  # fmt: skip
OUTPUTS = {"MatMulInteger": "int32", "MatMulIntegerToFloat": "float32"}


@pytest.mark.parametrize("operator", NOTHING)
def test_nothing(operator):
    function, arguments, domain = NOTHING[operator]
    expected = fed(operator, arguments, OUTPUTS.get(operator, "int8"), domain=domain)(*arguments)
    assert expected.size == 0
    assert_same_bits(np.asarray(function(*arguments)), expected)


def test_convolutions_in_integers_of_nothing():
    x, w = np.ones((0, 3, 4, 5), np.uint8), np.ones((2, 3, 2, 2), np.uint8)
    expected = fed("ConvInteger", (x, w), "int32", domain="")(x, w)
    assert_same_bits(np.asarray(directml.integer_convolution(x, w)), expected)
