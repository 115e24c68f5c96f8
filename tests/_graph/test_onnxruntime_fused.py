"""Fused multiply-adds out of single operations, and the sum in them: exact, wherever a tie is."""

import platform
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from formula_cases import scale
from jaxdml._graph.onnxruntime import add
from jaxdml._graph.onnxruntime.fused import multiply_add, steps_multiply_add
from one_node import fed

F = np.float32
# 3 * TIE lies halfway between 128.5 and the float32 above it: what is added decides, however small.
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
    np.testing.assert_array_equal(got, [nearest(p * q + r) for p, q, r in fractions(x, y, addend)])


def test_what_is_added_to_a_tie_is_not_lost():
    added = F([-TINY, 0, TINY])
    expected = [nearest(3 * Fraction(float(TIE)) + Fraction(float(each))) for each in added]
    assert expected == [128.5, 128.5, np.nextafter(F(128.5), F(200))]
    np.testing.assert_array_equal(steps_multiply_add(jnp.float32(3), jnp.asarray(TIE), jnp.asarray(added)), expected)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="onnxruntime has another formula")
def test_a_tie_in_a_sum():
    """Far from one grid, where the quick form would lose what the second element of b adds."""
    a, b, zero = np.uint8([3, 3]), np.uint8([0, 1]), np.uint8(0)
    arguments = a, TIE, zero, b, TINY, zero, F(1), zero
    for got in fed("QLinearAdd", arguments, "uint8")(*arguments), add.qlinear_add(*arguments):
        assert got.tolist() == [128, 129]
    assert add._on_grid(a, b, *map(jnp.asarray, (TIE, TINY, F(0)))).tolist() == [128, 128]


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
            np.testing.assert_array_equal(*both(p, q, r))
