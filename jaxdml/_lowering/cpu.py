"""The contractions in the forms that XLA:CPU has int8 kernels for: products and NHWC convolutions of int8, int32 out.

Everything else that is integer it runs as scalar loops: mixed types, uint8 by uint8, a single row or column,
convolutions in NCHW, in one dimension, or with few channels. Times are those of two cores of a Zen 3, AVX2.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._lowering import forms
from jaxdml._lowering.int8 import out_sharding
from jaxdml._lowering.prepared import PreparedFilter

Array = jax.Array


def form(x: Array, filter: PreparedFilter, strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """Chosen by the filter's shape, in part when it was prepared."""
    if forms.suits_depthwise(filter):
        return forms.depthwise(x, filter, strides, dilations)
    if filter.layout == "HWIO":
        return _convolution(x, filter, strides, dilations)
    return forms.matrix(x, filter, strides, dilations)


def _convolution(x: Array, filter: PreparedFilter, strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """A convolution for each group, channels last.

    64 channels at 56 x 56, 3 x 3: 1.6 ms, against 2.1 ms as a product of matrices, which also lays windows side by side
    in nine times the memory, and 40 ms as scalar loops.
    """
    values = filter.values
    if x.ndim == 3:  # the kernel takes two dimensions
        total = _convolution(
            x[:, :, None], dataclasses.replace(filter, values=values[:, None]), (1, *strides), (1, *dilations)
        )
        return total[:, :, 0]
    # A transpose that XLA sees in front of a convolution becomes part of it, and loses the kernel. With a column that
    # nobody reads in between it does not.
    x = lax.pad(jnp.moveaxis(x, 1, -1), np.int8(0), [(0, 0, 0), (0, 0, 0), (0, 1, 0), (0, 0, 0)])
    x = lax.optimization_barrier(x)
    convolve = _convolve(tuple(strides), tuple(dilations))
    groups = zip(jnp.split(x, filter.group_count, axis=-1), values, strict=True)
    totals = [convolve(channels, values) for channels, values in groups]
    return jnp.moveaxis(jnp.concatenate(totals, axis=-1), -1, 1)


def _convolve(strides: tuple[int, ...], dilations: tuple[int, ...]) -> Callable[[Array, Array], Array]:
    """The convolution of [N, H, W, C] with [KH, KW, C, O], less the last column of x.

    Batches of filters go one by one: JAX would make them groups, which take more than twice as long.
    """

    @jax.custom_batching.custom_vmap
    def convolve(x: Array, values: Array) -> Array:
        return lax.conv_general_dilated(
            x,
            values,
            window_strides=strides,
            padding=[(0, 0), (0, -1)],
            rhs_dilation=dilations,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            preferred_element_type=jnp.int32,
            out_sharding=out_sharding((x, 0), (x, 1), (x, 2), (values, 3)),
        )

    @convolve.def_vmap
    def _(size: int, batched: Sequence[bool], x: Array, values: Array) -> tuple[Array, bool]:
        if batched[1]:
            total = lax.map(
                lambda index: convolve(x[index] if batched[0] else x, values[index]), jnp.arange(size, dtype=jnp.int32)
            )
        else:
            total = convolve(x.reshape(-1, *x.shape[2:]), values)
            total = total.reshape(*x.shape[:2], *total.shape[1:])
        return total, True

    return convolve
