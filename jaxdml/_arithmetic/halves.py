"""Products and convolutions of 16-bit by 8-bit tensors, and products of 16-bit tensors, by the 8-bit kernels.

With x = 256 * upper + lower, and the zero point split likewise, the sum of (x - x_zero_point) * (y - y_zero_point) is
256 times the sum of the upper bytes plus the sum of the lower bytes. Each sum fits int32, and only their total is
rounded to float32. If y has 16 bits, too, there are four such sums.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxdml._arithmetic import contractions, planes
from jaxdml._arithmetic.prepared import PreparedMatrix

Array = jax.Array
TERMS = (2**31 - 1) // 255**2  # int32 holds the sum of this many products of bytes


def fit(x: Any, y: Any, terms: int) -> bool:
    """Whether x and y have 8 or 16 bits, and int32 holds the sum of `terms` products of their bytes.

    If both have 16 bits, int32 also holds the total of two such sums: of upper by lower and of lower by upper bytes.
    """
    sizes = x.dtype.itemsize, y.dtype.itemsize
    return max(sizes) <= 2 and terms <= TERMS // min(sizes)


def dot(a: Array, a_zero_point: Array | None, b: Array | PreparedMatrix, b_zero_point: Array | None) -> Array:
    """fl(sum (a - a_zero_point) * (b - b_zero_point)), float32 [..., M, N]; a or b has 16 bits, or both."""
    sums: list[Array] = []
    for i, of_a in enumerate(_parts(a, a_zero_point)):
        for j, of_b in enumerate(_parts(b, b_zero_point)):
            # Both sums of one place and their total fit int32 (see `fit`), so a matrix unit that accumulates one sum
            # onto the other does not saturate.
            total = contractions.integer_dot(*of_a, *of_b)
            if i + j < len(sums):
                sums[i + j] = lax.add(sums[i + j], total)
            else:
                sums.append(total)
    return _rounded(*sums)


def by_bytes(multiply: Callable[[Any, Any], Array], x: Array, x_zero_point: Array | None) -> Array:
    """The float32 nearest to a product or convolution of 16-bit x.

    Args:
      multiply: returns the int32 sums, given 8-bit x and its zero point.
      x: array of int16 or uint16.
      x_zero_point: its zero point; None means 0.
    """
    upper, lower = (multiply(*each) for each in zip(_bytes(x), _bytes(x_zero_point), strict=True))
    return _rounded(lower, upper)


def _rounded(*places: Array) -> Array:
    """The float32 nearest to the sum of int32 places[i] * 256**i, of at most five places."""
    zero = lax.full_like(places[0], 0)
    return planes.exactly_combined([zero] * (5 - len(places)) + [*reversed(places)])


def _parts(x: Any, zero_point: Any) -> list[tuple[Any, Any]]:
    """The bytes of x with those of its zero point, the lowest byte first; 8-bit x itself."""
    if x.dtype.itemsize == 1:
        return [(x, zero_point)]
    return list(zip(_bytes(x), _bytes(zero_point), strict=True))[::-1]


def _bytes(x: Any) -> tuple[Any, Any]:
    """The upper byte, which has x's sign, and the lower byte."""
    if x is None:
        return None, None
    upper = jnp.int8 if jnp.issubdtype(x.dtype, jnp.signedinteger) else jnp.uint8
    return (x >> 8).astype(upper), (x & 255).astype(jnp.uint8)
