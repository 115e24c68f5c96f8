"""Fused multiply-adds computed by single operations, and calls in which one rounding more or less shows."""

from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.compare import assert_same_bits
from helpers.formula_cases import scale
from helpers.one_node import fed, on_x64_alone
from jaxdml._quantized.onnxruntime import add
from jaxdml._quantized.onnxruntime.fused import multiply_add, steps_multiply_add
from jaxdml._quantized.onnxruntime.lookup import qlinear_concat
from jaxdml._quantized.onnxruntime.mul import qlinear_mul
from jaxdml._quantized.onnxruntime.pooling import qlinear_average_pool
from jaxdml._quantized.onnxruntime.softmax import MANY, _rounded_shares, qlinear_softmax
from jaxdml.errors import ModelError

F = np.float32
# 3 * TIE is halfway between 128.5 and the float32 above it, so the addend decides, however small.
TIE, TINY = F(5614251 * 2.0**-17), F(2.0**-40)


def nearest(exact):
    """The float32 nearest to a fraction, ties to even."""
    near = F(float(exact))
    around = (np.nextafter(near, F(-np.inf)), near, np.nextafter(near, F(np.inf)))
    return min(around, key=lambda x: (abs(Fraction(float(x)) - exact), x.view(np.int32) & 1))


def fractions(*arrays):
    return zip(*([Fraction(float(x)) for x in array] for array in arrays), strict=True)


def test_multiply_add_rounds_once():
    rng = np.random.default_rng(4)
    x, y = (rng.normal(size=2000).astype(F) * F(2) ** rng.integers(-20, 20, 2000).astype(F) for _ in range(2))
    near = -(x * y) * rng.choice(F([0, 1, 1 + 2**-20, 0.5, -1, 300]), 2000)
    addend = np.where(rng.random(2000) < 0.7, near, rng.normal(size=2000).astype(F))
    got = np.asarray(jax.jit(multiply_add)(x, y, addend))
    assert_same_bits(got, [nearest(p * q + r) for p, q, r in fractions(x, y, addend)])


def test_what_is_added_to_a_tie_is_not_lost():
    added = F([-TINY, 0, TINY])
    expected = [nearest(3 * Fraction(float(TIE)) + Fraction(float(each))) for each in added]
    assert expected == [128.5, 128.5, np.nextafter(F(128.5), F(200))]
    assert_same_bits(steps_multiply_add(jnp.float32(3), jnp.asarray(TIE), jnp.asarray(added)), expected)


# Calls in which each rounding shows ----------------------------------------------------------------------------------
ZERO = np.uint8(0)


def both(operator, function, *arguments, **attributes):
    """The outputs of jaxdml under jit, and of onnxruntime."""
    theirs = fed(operator, arguments, "uint8", **attributes)(*arguments)
    ours = jax.jit(function)(*arguments)
    assert ours.shape == theirs.shape
    return ours.tolist(), theirs.tolist()


@on_x64_alone
def test_a_tie_in_a_sum():
    """Far from one grid, where the quick form would lose what the second element of b adds."""
    a, b = np.uint8([3, 3]), np.uint8([0, 1])
    for got in both("QLinearAdd", add.qlinear_add, a, TIE, ZERO, b, TINY, ZERO, F(1), ZERO):
        assert got == [128, 129]
    assert add._on_grid(a, b, *map(jnp.asarray, (TIE, TINY, F(0)))).tolist() == [128, 128]


@on_x64_alone
@pytest.mark.parametrize("a", [np.uint8(3), np.uint8([3]), np.uint8([[3]])])
def test_one_element_that_meets_several_is_added_first(a):
    for got in both("QLinearAdd", add.qlinear_add, a, TIE, ZERO, np.uint8([0, 1]), TINY, ZERO, F(1), ZERO):
        assert np.ravel(got).tolist() == [128, 128]


@on_x64_alone
def test_a_product_is_rounded_before_the_zero_point_is_added():
    """-7 * seventh is above -100.5 by less than half of its last place: with 129 a tie, and unrounded above it."""
    seventh = F(14.357142)
    assert -7 * float(seventh) > -100.5
    arguments = np.uint8([7]), seventh, ZERO, np.uint8([0]), F(1), np.uint8(1), F(1), np.uint8(129)
    for got in both("QLinearMul", qlinear_mul, *arguments):
        assert got == [28]


@on_x64_alone
def test_a_mean_is_rounded_before_it_is_divided():
    """Means of nine integers in steps of 2 / 9, which are nearly halves."""
    x = np.random.default_rng(6).integers(0, 14, (1, 8, 20, 20)).astype(np.uint8)
    function = partial(qlinear_average_pool, window=(3, 3), strides=(1, 1), padding=((0, 0), (0, 0)))
    ours, theirs = both("QLinearAveragePool", function, x, F(1), ZERO, F(2 / 9), ZERO, kernel_shape=(3, 3))
    assert ours == theirs


@on_x64_alone
@pytest.mark.parametrize(("operator", "function"), [("QLinearAdd", add.qlinear_add), ("QLinearMul", qlinear_mul)])
def test_what_int32_does_not_hold_becomes_the_least(operator, function):
    a = np.uint8([0, 1, 2, 3, 254, 255])
    for large in F([2**24, 2**30, 2.0**100]):
        ours, theirs = both(operator, function, a, large, np.uint8(2), a, F(1), np.uint8(3), F(1), np.uint8(7))
        assert ours == theirs
        assert theirs[0] == (0 if operator == "QLinearAdd" or large > 2**29 else 255)


@pytest.mark.sampled(1)
@on_x64_alone
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(
    "scales",
    [(0.1, 1e-4), (0.1, 2.0**-30), (0.1, 1e-38), (50, 1 / 256), (1e38, 1 / 256), (np.inf, 1 / 256), (1e-40, 1 / 256)]
    + [(0.1, y_scale) for y_scale in (0, -0.0, -1 / 256, -1, -1e-9, 0.7, 2, np.nan, np.inf, -np.inf)]
    + [(50, y_scale) for y_scale in (0, -0.0, np.nan)],
    ids=str,
)
def test_shares_that_are_no_numbers_or_do_not_fit(dtype, scales):
    """Two elements have exponentials near the greatest float32; those of others overflow."""
    x, zero_point = np.asarray([[3, 4], [3, 120], [5, 5]], dtype), np.asarray(5, dtype)
    arguments = x, F(scales[0]), zero_point, F(scales[1]), zero_point
    theirs = fed("QLinearSoftmax", arguments, np.dtype(dtype).name, axis=1, opset=13)(*arguments)
    assert qlinear_softmax(*arguments, axis=1).tolist() == theirs.tolist()


@on_x64_alone
@pytest.mark.parametrize("x_scale", [0, -0.1, np.nan])
def test_softmax_of_a_scale_that_is_not_positive(x_scale):
    arguments = np.uint8([[3, 4]]), F(x_scale), ZERO, F(1 / 256), ZERO
    with pytest.raises(Exception, match="x_scale must be positive"):
        fed("QLinearSoftmax", arguments, "uint8", axis=1, opset=13)(*arguments)
    with pytest.raises(ModelError, match="QLinearSoftmax takes a positive scale"):
        qlinear_softmax(*arguments, axis=1)


@pytest.mark.sampled(1)
@on_x64_alone
@pytest.mark.parametrize("depth", [6, 25, 67, 88])
def test_equal_shares(depth):
    """Of as many elements as possible: whether they are ties depends on the last bit of a sum.

    Except at the first depth, NumPy's float32 logarithm differs from the C library's, which makes the table.
    """
    x = np.where(np.tri(depth, dtype=bool), 100, 0).astype(np.uint8)
    arguments = x, F(8), ZERO, F(1), ZERO
    node = fed("QLinearSoftmax", arguments, "uint8", axis=1, opset=13)
    scales = [1 / F(count) for count in range(1, 256)]
    ours = jax.jit(jax.vmap(lambda y_scale: qlinear_softmax(x, F(8), ZERO, y_scale, ZERO, axis=1)))(np.asarray(scales))
    assert_same_bits(ours, np.stack([node(x, F(8), ZERO, y_scale, ZERO) for y_scale in scales]))


@pytest.mark.parametrize("count", [2000, pytest.param(200_000, marks=pytest.mark.rare)])
def test_shares_are_rounded_once(count):
    """At halves, next to them, and anywhere."""
    rng = np.random.default_rng(7)
    shares = np.where(rng.random(count) < 0.7, rng.integers(0, 600, count) + 0.5, rng.uniform(0, 1100, count))
    # Some totals and factors are powers of two, so that there are exact halves.
    totals, factors = (
        np.floor(2 ** np.where(rng.random(count) < 0.5, np.floor(exponents), exponents)).astype(F)
        for exponents in (rng.uniform(89, 121, count), rng.uniform(11, 60, count))
    )
    values = (shares * totals / factors.astype(np.float64)).astype(F)
    values = (values.view(np.int32) + rng.integers(-1, 2, count).astype(np.int32)).view(F)
    got, are_numbers = jax.jit(jax.vmap(_rounded_shares))(values[:, None], factors, totals[:, None])
    exact = [value * factor / total for value, factor, total in fractions(values, factors, totals)]
    assert sum(share.denominator == 2 for share in exact) > count / 50
    assert are_numbers.all()
    assert np.minimum(got[:, 0], MANY).tolist() == np.minimum([round(share) for share in exact], MANY).tolist()


@pytest.mark.parametrize("count", [3, pytest.param(300, marks=pytest.mark.rare)])
def test_both_forms_of_a_sum_agree_on_a_grid(count):
    """Of all pairs of uint8, with scales up to where the grid ends."""
    a, b = (x.ravel() for x in np.meshgrid(*[np.arange(256, dtype=np.uint8)] * 2))
    both = jax.jit(lambda *scalars: (add._on_grid(a, b, *scalars), add._fused(a, b, *scalars)))
    rng, found = np.random.default_rng(5), 0
    while found < count:
        p, q = scale(rng, -8, 8), scale(rng, -8, 8)
        r = F(rng.integers(0, 256) - rng.integers(0, 256) * p - rng.integers(0, 256) * q)
        if add._is_on_one_grid(*map(jnp.asarray, (p, q, r))):
            found += 1
            assert_same_bits(*both(p, q, r))


@pytest.mark.parametrize("axis", [2, 5, -3])
def test_an_axis_that_tensors_do_not_have(axis):
    x = np.ones((2, 2), np.uint8)
    with pytest.raises(ModelError, match=f"axis {axis} is not in"):
        qlinear_concat(F(1), ZERO, x, F(1), ZERO, axis=axis)
