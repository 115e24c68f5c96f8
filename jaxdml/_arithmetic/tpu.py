"""The convolution for TPUs, whose matrix units multiply int8. Tests lower it; it has not run on a TPU."""

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax import lax

from jaxdml._arithmetic import int8, int32, windows
from jaxdml._arithmetic.layouts import Filter
from jaxdml._arithmetic.sharding import broadcast_like

Array = jax.Array
WIDTH = 128  # the minimum width of a matrix unit


def conv(x: Array, filter: Filter, strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """The convolution of `lax`, on int8; a matrix product if its sums may not fit int32."""
    if math.prod(filter.shape[1:]) > int8.MOST_TERMS:
        return windows.matrix(x, filter, strides, dilations)
    values, group_count = _wide_groups(filter)
    return int32.convolution(x, values, group_count, strides, dilations)


def _wide_groups(filter: Filter) -> tuple[Array, int]:
    """The filter's values and their number of groups, merged into groups as wide as a matrix unit.

    In a merged group, the weights between one group's outputs and another group's inputs are 0. Groups of one channel
    stay apart: XLA convolves them on vector units.
    """
    values, groups = filter.array(), filter.group_count
    outputs, channels, *kernel = values.shape
    width = min(WIDTH, int8.MOST_TERMS // math.prod(kernel))
    merged = max((m for m in range(1, groups + 1) if groups % m == 0 and m * channels <= width), default=1)
    if merged == 1 or channels == 1:
        return values, groups
    wide = lax.concatenate([values] * merged, 1)
    group_of_output = np.arange(outputs) // (outputs // groups) % merged
    own = group_of_output[:, None] == np.arange(merged * channels)[None] // channels
    mask = broadcast_like(own.reshape(*own.shape, *(1,) * len(kernel)), wide)
    return lax.select(mask, wide, lax.full_like(wide, 0)), groups // merged
