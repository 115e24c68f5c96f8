"""Contractions for XLA:CPU, which has fast int8-to-int32 kernels for matrix products and for NHWC convolutions.

XLA:CPU compiles all other integer contractions to scalar loops: products of mixed types, of uint8 and uint8, or of a
single row or column, and convolutions in NCHW, in one dimension, or with few channels.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import int8, rounding, windows
from jaxdml._arithmetic.layouts import Filter, in_layout
from jaxdml._arithmetic.matrix_product import matrix_product
from jaxdml._arithmetic.sharding import out_sharding, replicated_in_space

Array = jax.Array
MOST_PRODUCTS_IN_FLOATS = 2**14


def with_vmap_rule(function: Callable[..., Array], rule: Callable[..., tuple[Array, bool]]) -> Callable[..., Array]:
    """`function` with its own rule for vmap. A call with concrete arrays is not under vmap and needs no rule."""
    batched = jax.custom_batching.custom_vmap(function)
    batched.def_vmap(rule)

    def call(*operands: Array) -> Array:
        is_traced = any(isinstance(operand, jax.core.Tracer) for operand in operands)
        result: Array = (batched if is_traced else function)(*operands)
        return result

    return call


# Products ------------------------------------------------------------------------------------------------------------


def dot(a: Array, b: Array, layout: str) -> Array:
    """int8 [..., M, K] times int8 [..., K, *N] or, with layout "NK", [..., N, K], in int32.

    Under vmap over only `b`, JAX would merge the batch into one product, for which XLA would transpose all of `b`.
    Repeating `a` gives a batched product, which needs no transpose.
    """

    def rule(size: int, is_batched: Sequence[bool], a: Array, b: Array) -> tuple[Array, bool]:
        if is_batched[1]:
            return dot(a if is_batched[0] else jnp.broadcast_to(a, (size, *a.shape)), b, layout), True
        return jax.vmap(lambda a: _dot(a, b, layout))(a), True

    return with_vmap_rule(partial(_dot, layout=layout), rule)(a, b)


def _dot(a: Array, b: Array, layout: str) -> Array:
    """The product. The kernel needs two or more rows and columns, so zeros are appended to a single row or column.

    Outputs of 2 x 2 have no kernel either, but for them a scalar loop is as fast.
    """
    row = a.ndim - 2
    columns = (row,) if layout == "NK" else tuple(range(row + 1, b.ndim))
    one_row, one_column = a.shape[row] == 1, all(b.shape[axis] == 1 for axis in columns)
    a, b = _padded(a, row, one_row), _padded(b, columns[-1], one_column)
    total = int8.product(a, b, layout)
    total = lax.slice_in_dim(total, 0, 1, axis=row) if one_row else total
    return lax.slice_in_dim(total, 0, 1, axis=-1) if one_column else total


def _padded(x: Array, axis: int, is_needed: bool) -> Array:
    """x, with zeros appended along `axis` if `is_needed`."""
    return lax.pad(x, np.int8(0), [(0, int(i == axis), 0) for i in range(x.ndim)]) if is_needed else x


def dot_in_floats(a: Array, a_zero_point: Any, b: Array, b_zero_point: Any, layout: str) -> Array:
    """The int32 product of an int8 row and an int8 matrix, both minus their zero points, computed in float32.

    `fits_floats` tells when the product is exact. XLA:CPU has no kernel for an int8 row, but multiplies a row of floats
    by a small matrix without calling a library.
    """
    if np.ndim(b_zero_point):
        b_zero_point = in_layout(b_zero_point, layout)
    x, y = rounding.difference(a, a_zero_point), rounding.difference(b, b_zero_point)
    return lax.convert_element_type(matrix_product(x, y, layout, lax.Precision.HIGHEST, jnp.float32), jnp.int32)


def fits_floats(rows: Any, depth: Any, columns: Any, has_a_zero_point: bool, has_b_zero_point: bool) -> bool:
    """Whether `dot_in_floats` is exact for a product, and faster than a product of int8.

    The magnitude of an int8 number is at most 128; after a zero point is subtracted, it is at most 255. All partial
    sums of products are integers, which float32 holds up to 2**24, so the order of the additions does not matter.
    """
    if not all(isinstance(size, int) for size in (rows, depth, columns)):
        return False
    largest = (255 if has_a_zero_point else 128) * (255 if has_b_zero_point else 128)
    return bool(rows == 1 and depth * columns <= MOST_PRODUCTS_IN_FLOATS and depth * largest <= 2**24)


def arrange_matrix(values: Array) -> tuple[Array, str]:
    """Prepares weights in layout "NK", which is faster.

    Unprepared weights stay in layout "KN": for a single product, a transpose does not pay off.
    """
    return in_layout(values, "NK"), "NK"


# Convolutions --------------------------------------------------------------------------------------------------------


def conv(x: Array, filter: Filter, strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """The convolution, by a method chosen for the filter; `filter.layout` decides between the two general methods."""
    if windows.suits_depthwise(filter):
        form: Any = windows.depthwise
    elif filter.layout.endswith("IO"):
        form = _channels_last
    else:
        form = matrix
    elements = math.prod(filter.shape[2:])
    return _by_form(form, filter.layout, elements, tuple(strides), tuple(dilations))(x, filter.values)


def _by_form(
    form: windows.Form, layout: str, elements: int, strides: tuple[int, ...], dilations: tuple[int, ...]
) -> Callable[[Array, Array], Array]:
    """The method `form` as a function of x and the filter's values, with its own rule for vmap.

    A kernel has `elements` elements. The function captures no arrays: `jax.checking_leaks` reports captured tracers.

    Under vmap over only x, the mapped dimension becomes part of the batch. Under vmap over filters, `jax.vmap` maps
    `matrix` and `windows.depthwise`, but it would turn XLA's convolution into a slow grouped convolution. So, for XLA's
    convolution, filters that share x become one matrix product, and filters that each have their own x run in a loop.
    Large kernels run in a loop, too, because a matrix product copies x once for each element of the kernel.
    """

    def run(x: Array, values: Array) -> Array:
        return form(x, Filter(values, layout), strides, dilations)

    def as_matrix(values: Array, x: Array) -> Array:
        return matrix(x, Filter(values, layout), strides, dilations)

    def rule(size: int, is_batched: Sequence[bool], x: Array, values: Array) -> tuple[Array, bool]:
        many_inputs, many_filters = is_batched
        if not many_filters:
            total = batched(x.reshape(-1, *x.shape[2:]), values)
            return total.reshape(*x.shape[:2], *total.shape[1:]), True
        if form is not _channels_last:
            return jax.vmap(run, (0 if many_inputs else None, 0))(x, values), True
        if many_inputs:
            return lax.map(lambda pair: batched(*pair), (x, values)), True
        if elements > 9:
            return lax.map(lambda one: batched(x, one), values), True
        return jax.vmap(partial(as_matrix, x=x))(values), True

    batched = with_vmap_rule(run, rule)
    return batched


matrix = partial(windows.matrix, dot=dot)


def _channels_last(x: Array, filter: Filter, strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """An NHWC convolution of one group, for which XLA:CPU has a kernel. It needs less memory than a matrix product."""
    values = lax.squeeze(filter.values, (0,))
    if x.ndim == 3:  # the kernel takes two spatial dimensions
        lifted = Filter(values[None, None], "HWIO")
        return _channels_last(x[:, :, None], lifted, (1, *strides), (1, *dilations))[:, :, 0]
    # If XLA folded this transpose into the convolution, it would have no kernel for the result. A barrier and an added
    # column prevent the folding; the convolution's negative padding removes the column.
    x = lax.pad(lax.transpose(x, (0, 2, 3, 1)), np.int8(0), [(0, 0, 0), (0, 0, 0), (0, 1, 0), (0, 0, 0)])
    x = replicated_in_space(lax.optimization_barrier(x), 1, 2)
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
    return lax.transpose(replicated_in_space(total, 1, 2), (0, 3, 1, 2))


def arrange_filter(values: Array, group_count: int) -> tuple[Array, str]:
    """The values in groups: in layout "HWIO" or "WIO" for XLA's convolution, else in the order of the array."""
    outputs, channels, *kernel = values.shape
    space = "HW"[-len(kernel) :]
    values = values.reshape((group_count, outputs // group_count, channels, *kernel))
    if not _suits_convolution(outputs // group_count, channels, math.prod(kernel), group_count):
        return values, f"OI{space}"
    order = (0, *range(3, values.ndim), 2, 1)
    if isinstance(values, np.ndarray):
        return values.transpose(order), f"{space}IO"
    # If XLA folded this transpose into the convolution, it would have no kernel for the result. Padding and slicing
    # prevent the folding.
    values = lax.transpose(values, order)
    values = lax.pad(values, np.int8(0), [(0, int(axis == 1), 0) for axis in range(values.ndim)])
    return lax.slice_in_dim(values, 0, values.shape[1] - 1, axis=1), f"{space}IO"


def _suits_convolution(outputs: int, channels: int, elements: int, group_count: int) -> bool:
    """Whether XLA:CPU's int8 convolution takes such a filter, and is faster than a matrix product.

    The convolution needs more than 16 input or output channels. A matrix product is faster for a 1 x 1 kernel, for few
    input channels, and for a filter of a megabyte or more, which the convolution rereads for each row of the output.
    Several groups run as matrix products: one convolution per group is hardly faster, and XLA crashes if the channels
    of groups are sharded.
    """
    is_wide = channels >= 8 and max(outputs, channels) > 16
    return is_wide and elements > 1 and group_count == 1 and outputs * channels * elements < 2**20
