"""Convolutions for TPUs, whose matrix units multiply int8. Lowered by the tests, not measured."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from jaxdml._lowering.int8 import out_sharding, whole_in_space
from jaxdml._lowering.prepared import PreparedFilter, signed_filter


def form(x: jax.Array, filter: PreparedFilter, strides: Sequence[int], dilations: Sequence[int]) -> jax.Array:
    """The convolution as `lax` spells it, on int8."""
    values = signed_filter(filter)
    space = range(2, x.ndim)
    total = lax.conv_general_dilated(
        whole_in_space(x, *space),
        values,
        window_strides=strides,
        padding=[(0, 0)] * len(strides),
        rhs_dilation=dilations,
        feature_group_count=filter.group_count,
        preferred_element_type=jnp.int32,
        out_sharding=out_sharding((x, 0), (values, 0), *((x, axis) for axis in space)),
    )
    return whole_in_space(total, *space)
