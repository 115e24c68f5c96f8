"""The contractions in the forms that XLA:CPU has int8 kernels for: products and NHWC convolutions of int8, int32 out.

Everything else that is integer it runs as scalar loops: mixed types, uint8 by uint8, a single row or column,
convolutions in NCHW, in one dimension, or with few channels. Times are those of two cores of a Zen 3, AVX2.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._lowering import forms
from jaxdml._lowering.int8 import out_sharding, whole_in_space
from jaxdml._lowering.prepared import PreparedFilter

Array = jax.Array


def form(x: Array, filter: PreparedFilter, strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """Chosen by the filter's shape, in part when it was prepared."""
    if forms.suits_depthwise(filter):
        chosen = forms.depthwise
    elif filter.layout.endswith("IO"):
        chosen = _convolution
    else:
        chosen = forms.matrix
    return _batched(chosen, filter, tuple(strides), tuple(dilations))(x, filter.values)


def _batched(
    form: forms.Form, filter: PreparedFilter, strides: tuple[int, ...], dilations: tuple[int, ...]
) -> Callable[[Array, Array], Array]:
    """form as a function of x and the filter's values, with a rule of its own for vmap.

    Inputs that see one filter become one batch, and 8 of 28 x 28 with 4 groups take 1.3 ms, as in a loop, not 4.1.
    Batches of filters JAX would make groups of one convolution, which takes more than twice as long: those that see one
    input become a product of matrices, 32 of 8 x 32 to 32 channels at 14 x 14 in 6.6 ms, 11.1 in a loop; those that see
    an input each go one by one, and so do large kernels, whose windows take as much more memory.
    """

    def run(x: Array, values: Array, form: forms.Form = form) -> Array:
        return form(x, dataclasses.replace(filter, values=values), strides, dilations)

    @jax.custom_batching.custom_vmap
    def batched(x: Array, values: Array) -> Array:
        return run(x, values)

    @batched.def_vmap
    def _(size: int, is_batched: Sequence[bool], x: Array, values: Array) -> tuple[Array, bool]:
        many_inputs, many_filters = is_batched
        if not many_filters:
            total = batched(x.reshape(-1, *x.shape[2:]), values)
            return total.reshape(*x.shape[:2], *total.shape[1:]), True
        if form is not _convolution:
            return jax.vmap(run, (0 if many_inputs else None, 0))(x, values), True
        if many_inputs:
            return lax.map(lambda pair: batched(*pair), (x, values)), True
        if math.prod(filter.shape[2:]) > 9:
            return lax.map(lambda one: batched(x, one), values), True
        return jax.vmap(partial(run, x, form=forms.matrix))(values), True

    return batched


def _convolution(x: Array, filter: PreparedFilter, strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """A convolution of one group, channels last.

    64 channels at 56 x 56, 3 x 3: 1.6 ms, against 2.1 ms as a product of matrices, which also lays windows side by side
    in nine times the memory, and 40 ms as scalar loops.
    """
    (values,) = filter.values
    if x.ndim == 3:  # the kernel takes two dimensions
        lifted = dataclasses.replace(filter, values=values[None, None], layout="HWIO")
        return _convolution(x[:, :, None], lifted, (1, *strides), (1, *dilations))[:, :, 0]
    # A transpose that XLA sees in front of a convolution becomes part of it, and loses the kernel. With a column that
    # nobody reads in between, which the padding cuts off, it does not.
    x = lax.pad(jnp.moveaxis(x, 1, -1), np.int8(0), [(0, 0, 0), (0, 0, 0), (0, 1, 0), (0, 0, 0)])
    x = whole_in_space(lax.optimization_barrier(x), 1, 2)
    total = lax.conv_general_dilated(
        x,
        values,
        window_strides=strides,
        padding=[(0, 0), (0, -1)],
        rhs_dilation=dilations,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        preferred_element_type=jnp.int32,
        out_sharding=out_sharding((x, 0), (x, 1), (x, 2), (values, 3)),
    )
    return jnp.moveaxis(whole_in_space(total, 1, 2), -1, 1)
