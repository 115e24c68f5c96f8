"""Arithmetic on shapes."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

Shape = tuple[int, ...]


def is_integer(value: Any) -> bool:
    """Whether value is a Python or NumPy integer and not a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def without_leading_ones(shape: Sequence[int]) -> Shape:
    """`shape` without its leading ones, which NumPy broadcasting ignores."""
    shape = tuple(shape)
    while shape and shape[0] == 1:
        shape = shape[1:]
    return shape


def known_elements(sizes: Shape) -> int:
    """The product of the sizes that are not symbolic."""
    return math.prod(filter(is_integer, sizes))


def aligned(shape: Sequence[int], rank: int) -> Shape:
    """`shape` with leading ones added or removed, so that its rank becomes `rank` if possible."""
    bare = without_leading_ones(shape)
    return (1,) * (rank - len(bare)) + bare


def broadcast(x: Shape, y: Shape) -> Shape | None:
    """The shape to which two shapes broadcast; None if they do not."""
    rank = max(len(x), len(y))
    pairs = list(zip((1,) * (rank - len(x)) + x, (1,) * (rank - len(y)) + y, strict=True))
    return tuple(b if a == 1 else a for a, b in pairs) if all(a == b or 1 in (a, b) for a, b in pairs) else None


def per_channel(shape: Sequence[int], rank: int, channels: int | None) -> Shape:
    """Like `aligned`, except that the shape [channels] becomes [1, channels, 1, ...]."""
    if channels is not None and tuple(shape) == (channels,):
        return (1, channels) + (1,) * (rank - 2)
    return aligned(shape, rank)


def output_extent(size: int, kernel: int, stride: int, dilation: int, start: int, end: int) -> int:
    """The size of a convolution's output in one spatial dimension; below 1 if the kernel does not fit.

    For a symbolic size, the result is the expression that JAX's convolutions and poolings use, because JAX compares
    symbolic sizes by their expressions.
    """
    extent = 1 + (size + start + end - (1 + (kernel - 1) * dilation)) // stride
    return extent if is_integer(extent) else jax.core.max_dim(extent, 0)


def is_surely_a_size(number: int) -> bool:
    """Whether JAX can tell that a number, which may be symbolic, is not negative."""
    return bool(jax.core.max_dim(number, 0) == number)


def rounded_up_extent(size: Any, reach: int, stride: int, start: int, end: int) -> Any:
    """Like `output_extent`, rounded up, for windows that span `reach` elements; no window starts in the end padding."""
    count = (size + start + end - reach + stride - 1) // stride + 1
    return count if reach - end >= stride else min(count, (size + start - 1) // stride + 1)


def same_padding(size: Any, kernel: int, stride: int, dilation: int) -> Any:
    """The total padding that gives a dimension ``ceil(size / stride)`` windows; other libraries call it SAME."""
    last = size - 1 if stride == 1 else (size + stride - 1) // stride * stride - stride
    missing = last + (kernel - 1) * dilation + 1 - size
    return max(missing, 0) if isinstance(missing, int) else missing


def elements_inside(size: int, place: int, window: int, stride: int, dilation: int, start: int) -> int:
    """In one dimension, how many elements of the window at index `place` lie in the input, not in padding."""
    first = place * stride - start  # element t of the window has the index first + t * dilation in the input
    lowest = -(min(first, 0) // dilation)
    highest = min((size - 1 - first) // dilation, window - 1)
    return max(highest - lowest + 1, 0)
