"""XLA:CPU, which has int8 kernels for products and NHWC convolutions of int8, int32 out.

Everything else that is integer it runs as scalar loops: mixed types, uint8 by uint8, a single row or column,
convolutions in NCHW, in one dimension, or with few channels. Times are those of two cores of a Zen 3, AVX2.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import int8, windows
from jaxdml._arithmetic.prepared import PreparedFilter, in_layout
from jaxdml._arithmetic.sharding import out_sharding, whole_in_space

Array = jax.Array


def with_vmap_rule(function: Callable[..., Array], rule: Callable[..., tuple[Array, bool]]) -> Callable[..., Array]:
    """function, with a rule of its own for vmap; where nothing is traced there is no vmap, and no rule to trace."""
    batched = jax.custom_batching.custom_vmap(function)
    batched.def_vmap(rule)

    def call(*operands: Array) -> Array:
        is_traced = any(isinstance(operand, jax.core.Tracer) for operand in operands)
        result: Array = (batched if is_traced else function)(*operands)
        return result

    return call


# Products ------------------------------------------------------------------------------------------------------------


def dot(a: Array, b: Array, layout: str) -> Array:
    """int8 [..., M, K] times int8 [..., K, *N], or [..., N, K], in int32.

    Under vmap over b alone JAX would make one product of it, and XLA transpose all of b for that. With a repeated there
    is a product for each: 8 of 1 x 1024 x 1024 take 1.3 ms, not 6.2.
    """

    def rule(size: int, is_batched: Sequence[bool], a: Array, b: Array) -> tuple[Array, bool]:
        if is_batched[1]:
            return dot(a if is_batched[0] else jnp.broadcast_to(a, (size, *a.shape)), b, layout), True
        return jax.vmap(lambda a: _dot(a, b, layout))(a), True

    return with_vmap_rule(partial(_dot, layout=layout), rule)(a, b)


def _dot(a: Array, b: Array, layout: str) -> Array:
    """One row or column is computed as two: there is no kernel for one.

    There is none for outputs as small as 2 x 2 either, but so little to do for those that the loop is as fast.
    """
    row = a.ndim - 2
    columns = (row,) if layout == "NK" else tuple(range(row + 1, b.ndim))
    one_row, one_column = a.shape[row] == 1, all(b.shape[axis] == 1 for axis in columns)
    a, b = _with_one_more(a, row, one_row), _with_one_more(b, columns[-1], one_column)
    total = int8.product(a, b, layout)
    total = lax.slice_in_dim(total, 0, 1, axis=row) if one_row else total
    return lax.slice_in_dim(total, 0, 1, axis=-1) if one_column else total


def _with_one_more(x: Array, axis: int, is_needed: bool) -> Array:
    """x with a zero behind the last entry of an axis."""
    return lax.pad(x, np.int8(0), [(0, int(i == axis), 0) for i in range(x.ndim)]) if is_needed else x


def arrange_matrix(values: Array) -> tuple[Array, str]:
    """The faster layout is "NK", which is not worth a transpose for one product."""
    return in_layout(values, "NK"), "NK"


# Convolutions --------------------------------------------------------------------------------------------------------


def conv(x: Array, filter: PreparedFilter, strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """In the form that the filter's shape asks for, in part when it was arranged."""
    if windows.suits_depthwise(filter):
        form: Any = windows.depthwise
    elif filter.layout.endswith("IO"):
        form = _channels_last
    else:
        form = matrix
    return _by_form(form, filter, tuple(strides), tuple(dilations))(x, filter.values)


def _by_form(
    form: windows.Form, filter: PreparedFilter, strides: tuple[int, ...], dilations: tuple[int, ...]
) -> Callable[[Array, Array], Array]:
    """form as a function of x and the filter's values, with a rule of its own for vmap.

    Inputs that see one filter become one batch, and 8 of 28 x 28 with 4 groups take 1.3 ms, as in a loop, not 4.1.
    Batches of filters JAX would make groups of one convolution, which takes more than twice as long: those that see one
    input become a product of matrices, 32 of 8 x 32 to 32 channels at 14 x 14 in 6.6 ms, 11.1 in a loop; those that see
    an input each go one by one, and so do large kernels, whose windows take as much more memory.
    """

    def run(x: Array, values: Array) -> Array:
        return form(x, dataclasses.replace(filter, values=values), strides, dilations)

    def as_matrix(values: Array, x: Array) -> Array:
        return matrix(x, dataclasses.replace(filter, values=values), strides, dilations)

    def rule(size: int, is_batched: Sequence[bool], x: Array, values: Array) -> tuple[Array, bool]:
        many_inputs, many_filters = is_batched
        if not many_filters:
            total = batched(x.reshape(-1, *x.shape[2:]), values)
            return total.reshape(*x.shape[:2], *total.shape[1:]), True
        if form is not _channels_last:
            return jax.vmap(run, (0 if many_inputs else None, 0))(x, values), True
        if many_inputs:
            return lax.map(lambda pair: batched(*pair), (x, values)), True
        if math.prod(filter.shape[2:]) > 9:
            return lax.map(lambda one: batched(x, one), values), True
        return jax.vmap(partial(as_matrix, x=x))(values), True

    batched = with_vmap_rule(run, rule)
    return batched


matrix = partial(windows.matrix, dot=dot)


def _channels_last(x: Array, filter: PreparedFilter, strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """A convolution of one group.

    64 channels at 56 x 56, 3 x 3: 1.6 ms, against 2.1 ms as a product of matrices, which also lays windows side by side
    in nine times the memory, and 40 ms as scalar loops.
    """
    values = lax.squeeze(filter.values, (0,))
    if x.ndim == 3:  # the kernel takes two dimensions
        lifted = dataclasses.replace(filter, values=values[None, None], layout="HWIO")
        return _channels_last(x[:, :, None], lifted, (1, *strides), (1, *dilations))[:, :, 0]
    # A transpose that XLA sees in front of a convolution becomes part of it, and loses the kernel. With a column that
    # nobody reads in between, which the padding cuts off, it does not.
    x = lax.pad(lax.transpose(x, (0, 2, 3, 1)), np.int8(0), [(0, 0, 0), (0, 0, 0), (0, 1, 0), (0, 0, 0)])
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
    return lax.transpose(whole_in_space(total, 1, 2), (0, 3, 1, 2))


def arrange_filter(values: Array, group_count: int) -> tuple[Array, str]:
    """Channels last where the convolution takes the filter and is fast."""
    outputs, channels, *kernel = values.shape
    space = "HW"[-len(kernel) :]
    values = values.reshape((group_count, outputs // group_count, channels, *kernel))
    if not _suits_convolution(outputs // group_count, channels, math.prod(kernel), group_count):
        return values, f"OI{space}"
    order = (0, *range(3, values.ndim), 2, 1)
    if isinstance(values, np.ndarray):
        return values.transpose(order), f"{space}IO"
    # A transpose that XLA sees in front of a convolution becomes part of it, and loses the kernel. With an element of
    # the kernel in between that is cut off again, it does not.
    values = lax.transpose(values, order)
    values = lax.pad(values, np.int8(0), [(0, int(axis == 1), 0) for axis in range(values.ndim)])
    return lax.slice_in_dim(values, 0, values.shape[1] - 1, axis=1), f"{space}IO"


def _suits_convolution(outputs: int, channels: int, elements: int, group_count: int) -> bool:
    """Whether XLA:CPU's int8 convolution takes such a filter, and is faster than a product of matrices.

    It takes more than 16 input or output channels. A product is faster for a 1 x 1 kernel, for few input channels, and
    for filters of a megabyte, which the convolution reads again for each row of the output: 512 to 512 channels at
    7 x 7 take 4.6 ms in a network, and 1.5 as a product. Groups would be a convolution each, from 0.8 to 1.4 times as
    fast as one product for all; XLA crashes when their channels are sharded.
    """
    is_wide = channels >= 8 and max(outputs, channels) > 16
    return is_wide and elements > 1 and group_count == 1 and outputs * channels * elements < 2**20
