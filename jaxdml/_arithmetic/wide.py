"""Matrix products of 8- to 32-bit integers, exact for sums of any size, then rounded to float32 once.

Differences of operands and zero points are split into digits of base 256, from -128 to 127. Products of digits are
summed in int32. These sums are split into bytes and added with carries; the top 32 bits of the magnitude are rounded.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.platforms import int8_dot

Array = jax.Array
DEPTH = 2**14  # int32 holds the sum of 5 * DEPTH products; at most 5 pairs of digits share a place value
BYTES = 16  # the size of a sum: 2**32 products of at most 2**66 need 99 bits


def dot(a: Array, a_zero_point: Array | None, b: Array, b_zero_point: Array | None) -> Array:
    """fl(sum (a - a_zero_point) * (b - b_zero_point)), float32 [..., M, N]; zero points are scalars or of a's rank."""
    of_a = [_in_parts(x, -1) for x in _digits(a, a_zero_point)]
    of_b = [_in_parts(x, -2) for x in _digits(b, b_zero_point)]
    places: list[list[Array]] = [[] for _ in range(BYTES)]
    for place, total in enumerate(_products(of_a, of_b)):
        for k in range(4):
            byte = _byte(total, k)
            places[place + k].append(lax.reduce(byte, np.int32(0), lax.add, (0,)) if total.ndim > a.ndim else byte)
    return _rounded([_sum(terms) if terms else None for terms in places])


def _in_parts(x: Array, axis: int) -> Array:
    """x, padded with zeros and split into parts along a new first dimension if its axis is longer than DEPTH."""
    axis, depth = axis % x.ndim, x.shape[axis]
    if depth <= DEPTH:
        return x
    parts = -(-depth // DEPTH)
    x = lax.pad(x, np.int8(0), [(0, (parts * DEPTH - depth) * (i == axis), 0) for i in range(x.ndim)])
    x = lax.reshape(x, (*x.shape[:axis], parts, DEPTH, *x.shape[axis + 1 :]))
    return lax.transpose(x, (axis, *(i for i in range(x.ndim) if i != axis)))


def _products(of_a: list[Array], of_b: list[Array]) -> list[Array]:
    """The int32 products of digits; products with the same place value are added."""
    places: list[list[Array]] = [[] for _ in range(len(of_a) + len(of_b) - 1)]
    for i, x in enumerate(of_a):
        for j, y in enumerate(of_b):
            places[i + j].append(int8_dot(x, y))
    return [_sum(terms) for terms in places]


def _sum(terms: list[Array]) -> Array:
    return functools.reduce(lax.add, terms)


def _digits(x: Array, zero_point: Array | None) -> list[Array]:
    """x - zero_point as int8 digits of base 256, the lowest first. There is one digit more than x has bytes."""
    wide, bits = lax.convert_element_type(x, jnp.uint32), 8 * x.dtype.itemsize
    is_negative = lax.lt(x, lax.full_like(x, 0))
    if zero_point is not None:
        wide = lax.sub(wide, lax.convert_element_type(zero_point, jnp.uint32))
        is_negative = lax.lt(x, zero_point)
    digits, carry = [], lax.full_like(x, 0, jnp.int32)
    for place in range(bits // 8):
        digit = lax.add(_int32(lax.bitwise_and(_shifted(wide, 8 * place), np.uint32(255))), carry)
        carry = _int32(lax.ge(digit, np.int32(128)))
        digits.append(lax.sub(digit, lax.mul(carry, np.int32(256))))
    digits.append(lax.sub(carry, _int32(is_negative)))
    return [lax.convert_element_type(digit, jnp.int8) for digit in digits]


def _byte(x: Array, place: int) -> Array:
    """The byte of int32 x at `place`, 0 to 3; byte 3 has x's sign. x is the sum of byte * 256**place."""
    shifted = lax.shift_right_arithmetic(x, np.int32(8 * place))
    return shifted if place == 3 else lax.bitwise_and(shifted, np.int32(255))


def _rounded(places: list[Any]) -> Array:
    """The float32 nearest to the sum of int32 places[i] * 256**i, ties to even."""
    digits, carry = _carried(places)
    is_negative = lax.lt(carry, np.int32(0))
    flip, one = (_int32(is_negative) * np.int32(value) for value in (255, 1))
    digits, _ = _carried([lax.bitwise_xor(digit, flip) for digit in digits], one)  # the magnitude
    words = [_word(digits[place : place + 4]) for place in range(0, BYTES, 4)]
    top, following, rest, exponent = words[0], jnp.zeros_like(words[0]), jnp.zeros_like(words[0]), carry * 0
    below = jnp.zeros_like(words[0])
    for k in range(1, len(words)):
        is_higher = lax.ne(words[k], np.uint32(0))
        top, following = (lax.select(is_higher, *pair) for pair in ((words[k], top), (words[k - 1], following)))
        rest = lax.select(is_higher, below, rest)
        exponent = lax.select(is_higher, lax.full_like(exponent, 32 * k), exponent)
        below = lax.bitwise_or(below, words[k - 1])
    zeros = lax.clz(top)
    lost = lax.bitwise_or(lax.shift_left(following, zeros), rest)
    significand = lax.bitwise_or(lax.shift_left(top, zeros), lax.shift_right_logical(following, np.uint32(32) - zeros))
    # The lost bits are less than half a unit in the last place: a sticky bit says whether any of them is set.
    significand = lax.bitwise_or(significand, _uint32(lax.ne(lost, np.uint32(0))))
    power = lax.shift_left(exponent - _int32(zeros) + np.int32(127), np.int32(23))
    magnitude = lax.convert_element_type(significand, jnp.float32) * lax.bitcast_convert_type(power, jnp.float32)
    return lax.select(is_negative, lax.neg(magnitude), magnitude)


def _word(digits: list[Array]) -> Array:
    """Four bytes, the lowest first, as one uint32."""
    shifted = [lax.shift_left(_uint32(digit), np.uint32(8 * place)) for place, digit in enumerate(digits)]
    return functools.reduce(lax.bitwise_or, shifted)


def _carried(places: list[Any], carry: Any = None) -> tuple[list[Array], Array]:
    """The sum of places[i] * 256**i as bytes, and the carry out of the last one; `carry` goes into the first."""
    carry = jnp.zeros_like(places[0]) if carry is None else carry
    digits = []
    for place in places:
        total = carry if place is None else lax.add(place, carry)
        digits.append(lax.bitwise_and(total, np.int32(255)))
        carry = lax.shift_right_arithmetic(total, np.int32(8))
    return digits, carry


def _shifted(x: Array, bits: int) -> Array:
    return lax.shift_right_logical(x, np.uint32(bits))


def _int32(x: Array) -> Array:
    return lax.convert_element_type(x, jnp.int32)


def _uint32(x: Array) -> Array:
    return lax.convert_element_type(x, jnp.uint32)
