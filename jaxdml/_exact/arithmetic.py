"""Sums, differences, products, quotients and square roots of float32, each rounded once.

No operand or result is subnormal.
"""

from typing import Any

import jax
import numpy as np
from jax import lax

from jaxdml._arithmetic import rounding
from jaxdml._arithmetic.rounding import SMALLEST_NORMAL
from jaxdml._arithmetic.square_root import square_root
from jaxdml._exact.pairs import Pair, exact_product, where, with_sign

Array = jax.Array
UP, DOWN = np.float32(2.0**64), np.float32(2.0**-62)


def added(x: Array, y: Array) -> Array:
    """fl(x + y); +0 where it is zero or subnormal. XLA drops an added constant 0, so x + y alone may give -0."""
    return without_zero_signs(x + y)


def subtracted(x: Array, y: Array) -> Array:
    """fl(x - y); +0 where it is zero or subnormal."""
    return without_zero_signs(x - y)


def without_zero_signs(x: Array) -> Array:
    """x, or +0 where it is zero or subnormal."""
    return lax.select(lax.abs(x) < SMALLEST_NORMAL, lax.full_like(x, 0), x)


def multiplied(x: Array, y: Array) -> Array:
    """fl(x * y), or a zero of the same sign where x * y, rounded to 24 bits, is below the smallest normal number.

    Processors disagree on products that only rounding makes normal: ARM processors flush them to zero. Scaled by 2**64,
    such a product is normal, and its size tells whether the result is a zero or the smallest normal number. The result
    is built from bits: LLVM may turn a select between x * y and x * 0 into a product of x and a select, and contract
    this product with a sum.
    """
    product = x * y
    size = lax.abs((x * UP) * y)
    least = lax.select(size < DOWN, lax.full_like(size, 0), lax.full_like(size, SMALLEST_NORMAL))
    return lax.select(size <= DOWN, with_sign(least, product), product)


def one_minus_square(x: Array) -> Array:
    """fl(fl(1 - x) * fl(1 + x)), which JAX uses in the derivative of tanh."""
    return multiplied(subtracted(lax.full_like(x, 1), x), added(lax.full_like(x, 1), x))


def divided(x: Any, y: Array) -> Array:
    """fl(x / y), or a zero of the same sign where |x / y| is below the smallest normal number.

    Where subnormals are not flushed, as in constants that XLA folds, plain division rounds some of these quotients up
    to the smallest normal number.
    """
    result = quotient(x, y)
    return lax.select(lax.abs(x) < lax.abs(y) * SMALLEST_NORMAL, result * np.float32(0), result)


def quotient(x: Any, y: Array) -> Array:
    """fl(x / y) where it is not subnormal; x may be a scalar."""
    return rounding.quotient(lax.full_like(y, x) if np.ndim(x) == 0 and np.ndim(y) else x, y)


def rooted(x: Array) -> Array:
    """fl(sqrt(x)); NaN where x < 0, and x itself for zeros."""
    return square_root(x)


def inverse_root(x: Array) -> Array:
    """fl(1 / fl(sqrt(x))); a zero gives an infinity of the same sign.

    XLA rewrites (1 / sqrt(x)) / y as 1 / (sqrt(x) * y) unless a select, as in `divided`, lies between.
    """
    return divided(np.float32(1), square_root(x))


def root_of(square: Pair) -> Pair:
    """The square root of a pair, as a pair; 0 for 0."""
    root = rooted(square[0])
    product, rest = exact_product(root, root)
    rest = ((square[0] - product) - rest) + square[1]
    return root, where(root == 0, np.float32(0), quotient(rest, root + root))
