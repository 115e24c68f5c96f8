"""The convolution of `lax`. It is correct for int32 operands on every platform, but fast on none."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from jaxdml._arithmetic.layouts import Filter
from jaxdml._arithmetic.sharding import out_sharding, replicated_in_space

Array = jax.Array


def conv(x: Array, filter: Filter, strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """Convolution of padded int8 [N, C, *spatial] with the filter, in int32: [N, O, *output]."""
    wide, values = (lax.convert_element_type(operand, jnp.int32) for operand in (x, filter.array()))
    return convolution(wide, values, filter.group_count, strides, dilations)


def convolution(x: Array, values: Array, group_count: int, strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """The convolution of `lax`; `values` is a filter [O, C / group_count, *kernel] in x's type."""
    space = range(2, x.ndim)
    total = lax.conv_general_dilated(
        replicated_in_space(x, *space),
        values,
        window_strides=strides,
        padding=[(0, 0)] * len(strides),
        rhs_dilation=dilations,
        feature_group_count=group_count,
        preferred_element_type=jnp.int32,
        out_sharding=out_sharding((x, 0), (values, 0), *((x, axis) for axis in space)),
    )
    return replicated_in_space(total, *space)
