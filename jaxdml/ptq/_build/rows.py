"""The rows that contractions multiply: each result is the dot product of a row and a column of weights."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml.ptq._build.operators import CONVOLUTION, PRODUCT

Array = Any
Sizes = Sequence[int]
Pairs = Sequence[tuple[int, int]]


def groups_and_depth(shape: Sizes, group_count: int | None) -> tuple[int, int]:
    """The number of groups of rows, and the length of each row, in a contraction with weights of this shape.

    Args:
      shape: the shape of the weights, [O, I, *kernel] of a convolution, [*batch, depth, outputs] of a product.
      group_count: the number of groups of a convolution; None for a product.
    """
    return (math.prod(shape[:-2]), shape[-2]) if group_count is None else (group_count, math.prod(shape[1:]))


def _of_convolution(
    x: Array, *, shape: Sizes, strides: Sizes, dilations: Sizes, padding: Pairs, group_count: int
) -> Array:  # fmt: skip
    """The patches of images [N, C, *spatial] for a filter of shape [O, I, *kernel], as [groups, rows, elements]."""
    kernel = shape[2:]
    x = lax.pad(x, np.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *((*pair, 0) for pair in padding)])
    spans = [dilation * (size - 1) for dilation, size in zip(dilations, kernel, strict=True)]
    ends = [size - span for size, span in zip(x.shape[2:], spans, strict=True)]

    def taken(place: Sizes) -> Array:
        starts = [dilation * i for dilation, i in zip(dilations, place, strict=True)]
        slices = (slice(i, i + max(end, 0), by) for i, end, by in zip(starts, ends, strides, strict=True))
        return x[(..., *slices)]

    patches = jnp.stack([taken(place) for place in itertools.product(*map(range, kernel))], 2)
    groups, depth = groups_and_depth(shape, group_count)
    return patches.reshape(len(x), groups, depth, -1).transpose(1, 0, 3, 2).reshape(groups, -1, depth)


def _of_product(x: Array, *, shape: Sizes, **_: Any) -> Array:
    """The rows of x for weights of shape [*batch, depth, outputs], as [groups, rows, depth]."""
    batch = range(len(shape) - 2)
    x = x.reshape(*x.shape[: len(batch)], -1, shape[-2])
    order = sorted(batch, key=lambda axis: shape[axis] == 1)  # a matrix that is stored once multiplies all rows
    groups, depth = groups_and_depth(shape, None)
    return x.transpose(*order, -2, -1).reshape(groups, -1, depth)


def parts(x: Array, shape: Sizes, group_count: int | None) -> Array:
    """x in equal parts [parts, ...] along its first axis. The rows of a part have about as many elements as x, if x can
    be divided into so many parts. A product's rows are x itself, in one part.

    Args:
      x: the array that a contraction multiplies by weights.
      shape: the shape of the weights.
      group_count: the number of groups of a convolution; None for a product.
    """
    copies = 1 if group_count is None else math.prod(shape[2:])
    least = max(1, min(copies, len(x)))
    count = next(count for count in range(least, least + len(x) + 1) if len(x) % count == 0)
    return x.reshape(count, len(x) // count, *x.shape[1:])


def columns(w: np.ndarray, groups: int | None) -> np.ndarray:
    """Weights as columns [groups, depth, outputs]; `groups` is a convolution's group count, None for a product."""
    if groups is None:
        return w.reshape(-1, *w.shape[-2:])
    return w.reshape(groups, len(w) // groups, -1).swapaxes(1, 2)


def weights(columns: np.ndarray, shape: Sizes, groups: int | None) -> np.ndarray:
    """Weights of this shape from their columns; the inverse of `columns`."""
    return (columns if groups is None else columns.swapaxes(1, 2)).reshape(shape)


ROWS = {CONVOLUTION.name: _of_convolution, PRODUCT.name: _of_product}
