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
        return _by_convolution(tuple(strides), tuple(dilations))(x, filter)
    return forms.matrix(x, filter, strides, dilations)


def _by_convolution(strides: tuple[int, ...], dilations: tuple[int, ...]) -> Callable[[Array, PreparedFilter], Array]:
    """_convolution with a rule of its own for vmap: JAX would make groups of a batch of filters.

    Those take more than twice as long. Filters that see the same x become rows of one product of matrices: 32 filters,
    8 x 32 to 32 channels at 14 x 14, take 6.6 ms, against 11.1 in a loop. Filters that see one x each go one by one.
    """

    @jax.custom_batching.custom_vmap
    def convolve(x: Array, filter: PreparedFilter) -> Array:
        return _convolution(x, filter, strides, dilations)

    @convolve.def_vmap
    def _(size: int, batched: tuple[bool, PreparedFilter], x: Array, filter: PreparedFilter) -> tuple[Array, bool]:
        has_inputs, has_filters = batched[0], batched[1].values
        if has_inputs and has_filters:
            return lax.map(lambda one: convolve(*one), (x, filter)), True
        if has_filters:
            return jax.vmap(lambda filter: forms.matrix(x, filter, strides, dilations))(filter), True
        total = convolve(x.reshape(-1, *x.shape[2:]), filter)
        return total.reshape(*x.shape[:2], *total.shape[1:]), True

    return convolve


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
    # nobody reads in between, which the padding cuts off, it does not.
    x = lax.pad(jnp.moveaxis(x, 1, -1), np.int8(0), [(0, 0, 0), (0, 0, 0), (0, 1, 0), (0, 0, 0)])
    x = lax.optimization_barrier(x)
    totals = [
        lax.conv_general_dilated(
            channels,
            values,
            window_strides=strides,
            padding=[(0, 0), (0, -1)],
            rhs_dilation=dilations,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            preferred_element_type=jnp.int32,
            out_sharding=out_sharding((x, 0), (x, 1), (x, 2), (values, 3)),
        )
        for channels, values in zip(jnp.split(x, filter.group_count, axis=-1), values, strict=True)
    ]
    return jnp.moveaxis(jnp.concatenate(totals, axis=-1), -1, 1)
