"""Arithmetic on shapes, and what counts as an integer."""

from collections.abc import Sequence
from typing import Any

import numpy as np

Shape = tuple[int, ...]


def is_integer(value: Any) -> bool:
    """Whether value is an integer of Python or NumPy; a bool is none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def without_leading_ones(shape: Sequence[int]) -> Shape:
    """shape as NumPy broadcasting sees it: leading ones say nothing."""
    shape = tuple(shape)
    while shape and shape[0] == 1:
        shape = shape[1:]
    return shape


def aligned(shape: Sequence[int], rank: int) -> Shape:
    """shape with leading ones added, or taken away, up to rank."""
    bare = without_leading_ones(shape)
    return (1,) * (rank - len(bare)) + bare


def per_channel(shape: Sequence[int], rank: int, channels: int | None) -> Shape:
    """aligned, except that [channels] stands for [1, channels, 1, ...]."""
    if channels is not None and tuple(shape) == (channels,):
        return (1, channels) + (1,) * (rank - 2)
    return aligned(shape, rank)


def output_extent(size: int, kernel: int, stride: int, dilation: int, start: int, end: int) -> int:
    """Elements of one spatial dimension of a convolution's output; below 1 where the kernel does not fit."""
    return 1 + (size + start + end - (1 + (kernel - 1) * dilation)) // stride


def rounded_up_extent(size: Any, reach: int, stride: int, start: int, end: int) -> Any:
    """`output_extent` with a last window that may end behind the padding, but not start there; reach is a window's."""
    count = (size + start + end - reach + stride - 1) // stride + 1
    return count if reach - end >= stride else min(count, (size + start - 1) // stride + 1)


def same_padding(size: Any, kernel: int, stride: int, dilation: int) -> Any:
    """How many elements make ``ceil(size / stride)`` windows of a dimension, which other libraries call SAME."""
    last = size - 1 if stride == 1 else (size + stride - 1) // stride * stride - stride
    missing = last + (kernel - 1) * dilation + 1 - size
    return max(missing, 0) if isinstance(missing, int) else missing


def elements_inside(size: int, place: int, window: int, stride: int, dilation: int, start: int) -> int:
    """How many elements of the window at a place of the output lie in the input, in one dimension; others are padding.

    Element t of the window is element first + t * dilation of the input.
    """
    first = place * stride - start
    lowest = -(min(first, 0) // dilation)
    highest = min((size - 1 - first) // dilation, window - 1)
    return max(highest - lowest + 1, 0)
