"""Arithmetic on strides: which elements of a flat buffer a tensor occupies, and whether they overlap."""

import math
from collections.abc import Sequence

import numpy as np

from jaxdml._shapes import Shape


def packed_strides(sizes: Sequence[int]) -> Shape:
    """The strides of row-major order without gaps."""
    return tuple(math.prod(sizes[axis + 1 :]) for axis in range(len(sizes)))


def is_packed(sizes: Shape, strides: Shape | None) -> bool:
    """Whether strides are those of row-major order without gaps, ignoring dimensions of one element."""
    if strides is None:
        return True
    return all(size == 1 or s == t for size, s, t in zip(sizes, strides, packed_strides(sizes), strict=True))


def reach(sizes: Shape, strides: Shape | None) -> int:
    """The number of places in the buffer from the tensor's first element to its last, inclusive."""
    return 1 + sum(
        (n - 1) * s for n, s in zip(sizes, packed_strides(sizes) if strides is None else strides, strict=True)
    )


def by_stride(sizes: Shape, strides: Shape) -> list[int]:
    """The dimensions of more than one element, in the order of decreasing strides."""
    return sorted((axis for axis, size in enumerate(sizes) if size > 1), key=lambda axis: -strides[axis])


def is_nested(sizes: Shape, strides: Shape) -> bool:
    """Whether each stride is at least the reach of all dimensions with smaller strides, as in a transposed array."""
    inner = 1
    for axis in reversed(by_stride(sizes, strides)):
        if strides[axis] < inner:
            return False
        inner += (sizes[axis] - 1) * strides[axis]
    return True


def may_overlap(sizes: Shape, strides: Shape) -> bool:
    """Whether two elements share a place in the buffer; True if that takes too long to decide."""
    if is_nested(sizes, strides):
        return False
    if math.prod(sizes) > reach(sizes, strides) or reach(sizes, strides) >= 2**62:
        return True
    dimensions = by_stride(sizes, strides)
    # The view extends beyond the array, but NumPy only compares addresses and reads nothing.
    view = np.lib.stride_tricks.as_strided(
        np.empty(1, np.uint8),
        [sizes[axis] for axis in dimensions],
        [strides[axis] for axis in dimensions],
        writeable=False,
    )
    # Each round compares elements whose indices are equal in all earlier dimensions and differ in this one.
    # If two of them overlap, they still do after both are shifted until one has index 0 in this dimension.
    while view.ndim:
        try:
            if np.shares_memory(view[0, ...], view[1:], max_work=10**6):
                return True
        except np.exceptions.TooHardError:
            return True
        view = view[0, ...]
    return False
