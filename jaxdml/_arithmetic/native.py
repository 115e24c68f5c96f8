"""Native kernels for products and convolutions.

Each takes the arguments of the JAX function that it replaces, with `leading` vmap dimensions prepended to every array.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.kernel_call import Kernel
from jaxdml._arithmetic.native_call import Result, in_two_dimensions, int64s, library_call, operand
from jaxdml._arithmetic.packing import packed_layout
from jaxdml._arithmetic.prepared import Prepared
from jaxdml._shapes import aligned, output_extent

Array = jax.Array


def _takes(*arguments: Any, **_: Any) -> bool:
    """Whether a kernel takes the call. Kernels do not take prepared weights that are not packed for them."""
    return all(x.layout == packed_layout() for x in arguments if isinstance(x, Prepared))


# Products ------------------------------------------------------------------------------------------------------------


def _dot(
    a: Array, a_scale: Array, a_zero_point: Array | None, b: Any, b_scale: Array, b_zero_point: Array | None,
    bias: Array | None, output_scale: Array, output_zero_point: Array | None, *, output_dtype: Any, leading: int,
) -> Array:  # fmt: skip
    rank = a.ndim - leading
    operands = (
        a,
        *grid(a_scale, a_zero_point, a.dtype, rank, leading),
        *matrix(b, b_scale, b_zero_point, bias, output_dtype, rank, leading),
        *grid(output_scale, output_zero_point, output_dtype, rank, leading),
    )
    is_packed = isinstance(b, Prepared)
    if leading and rank == 2 and _are_of_one_matrix(operands, leading):
        merged = [_in_rows(x, leading) for x in operands]
        result = (math.prod(a.shape[:-1]), b.shape[-1]), output_dtype
        y = library_call("matmul", 0, result, merged, is_packed=is_packed)
        return lax.reshape(y, (*a.shape[:-1], b.shape[-1]))
    result = (*a.shape[leading:-1], b.shape[-1]), output_dtype
    return library_call("matmul", leading, result, operands, is_packed=is_packed)


def grid(scale: Array | None, zero_point: Array | None, dtype: Any, rank: int, leading: int) -> tuple[Array, Array]:
    """A scale and a zero point of a matrix, or placeholders, as the library takes them."""
    scale = _one(leading) if scale is None else scale
    return _parameter(scale, None, rank, leading), _parameter(zero_point, dtype, rank, leading)


def matrix(
    b: Any, scale: Array, zero_point: Array | None, bias: Array | None, output_dtype: Any, rank: int, leading: int
) -> tuple[Array, ...]:
    """The right operand of a product, its scale and zero point, and the bias, as the library takes them."""
    dtype = jnp.float32 if output_dtype == jnp.float32 else jnp.int32
    return (
        lax.expand_dims(b.data, (b.data.ndim - 1,)) if isinstance(b, Prepared) else b,
        *grid(scale, zero_point, b.dtype, rank, leading),
        _bias(bias, leading, (1,) * (rank - 2), dtype),
    )


def _parameter(x: Array | None, dtype: Any, rank: int, leading: int) -> Array:
    return operand(x, leading, lambda shape: aligned(shape, rank), dtype)


def _are_of_one_matrix(operands: Sequence[Array], leading: int) -> bool:
    """Whether products under vmap share b and its parameters, and no others share the parameters of several rows."""
    a, a_scale, a_zero_point, *of_b, y_scale, y_zero_point = operands
    of_rows = (a_scale, a_zero_point, y_scale, y_zero_point)
    are_alike = all(x.size == 1 or x.shape[: leading + 1] == a.shape[: leading + 1] for x in of_rows)
    return are_alike and all(math.prod(x.shape[:leading]) == 1 for x in of_b)


def _in_rows(x: Array, leading: int) -> Array:
    """x with the dimensions of vmap merged into the one that follows."""
    return lax.reshape(x, (math.prod(x.shape[: leading + 1]), *x.shape[leading + 1 :]))


def _dot_result(a: Any, a_scale: Any, a_zero_point: Any, b: Any, *_: Any, output_dtype: Any) -> Result:
    return (*a.shape[:-1], b.shape[-1]), output_dtype


def _integer_dot(a: Array, a_zero_point: Array | None, b: Any, b_zero_point: Array | None, *, leading: int) -> Array:
    one = _one(leading)
    return _dot(a, one, a_zero_point, b, one, b_zero_point, None, one, None, output_dtype=jnp.int32, leading=leading)


def _integer_dot_result(a: Any, a_zero_point: Any, b: Any, b_zero_point: Any) -> Result:
    return _dot_result(a, None, a_zero_point, b, output_dtype=jnp.int32)


def _float_dot(
    a: Array, a_scale: Array, a_zero_point: Array | None, b: Any, b_scale: Array, b_zero_point: Array | None,
    bias: Array | None, *, leading: int,
) -> Array:  # fmt: skip
    operands = a, a_scale, a_zero_point, b, b_scale, b_zero_point, bias, _one(leading), None
    return _dot(*operands, output_dtype=jnp.float32, leading=leading)


def _float_dot_result(a: Any, a_scale: Any, a_zero_point: Any, b: Any, *_: Any) -> Result:
    return _dot_result(a, None, a_zero_point, b, output_dtype=jnp.float32)


def takes_float_dot(
    a: Any, a_scale: Any, a_zero_point: Any, b: Any, b_scale: Any, b_zero_point: Any, bias: Any
) -> bool:
    """Whether the kernel takes the call. A bias must have one element for each column."""
    is_of_columns = bias is None or (bias.shape[-1:] == b.shape[-1:] and bias.size == bias.shape[-1])
    return _takes(b) and is_of_columns


def _bias(bias: Array | None, leading: int, batch: tuple[int, ...], dtype: Any = jnp.int32) -> Array:
    """The elements of a bias, after the dimensions of a batch; an empty array if there is no bias."""
    if bias is None:
        return lax.full((*(1,) * leading, *batch, 0), 0, dtype)
    return operand(bias, leading, lambda shape: (*batch, math.prod(shape)), None)


def _one(leading: int) -> Array:
    """A placeholder for scales that the library does not read."""
    return lax.full((1,) * leading, 1, jnp.float32)


# Convolutions --------------------------------------------------------------------------------------------------------


def _conv(
    x: Array, x_scale: Array, x_zero_point: Array | None,
    filter: Any, filter_scale: Array, filter_zero_point: Array | None,
    bias: Array | None, output_scale: Array, output_zero_point: Array | None, *,
    output_dtype: Any, strides: Sequence[int], dilations: Sequence[int], padding: Sequence[tuple[int, int]],
    group_count: int, leading: int,
) -> Array:  # fmt: skip
    is_packed = isinstance(filter, Prepared)
    filter_shape = filter.shape[-(x.ndim - leading) :]
    space = _output_extents(x, filter_shape, strides=strides, dilations=dilations, padding=padding)

    def parameter(x: Array | None, dtype: Any) -> Array:
        return operand(x, leading, lambda shape: (math.prod(shape),), dtype)

    operands = (
        in_two_dimensions(x, len(strides)),
        parameter(x_scale, None),
        parameter(x_zero_point, x.dtype),
        filter.data if is_packed else in_two_dimensions(filter, len(strides)),
        parameter(filter_scale, None),
        parameter(filter_zero_point, filter.dtype),
        _bias(bias, leading, ()),
        parameter(output_scale, None),
        parameter(output_zero_point, output_dtype),
    )
    images = library_call(
        "convolve",
        leading,
        ((x.shape[leading], filter_shape[0], *(1, *space)[-2:]), output_dtype),
        operands,
        is_packed=is_packed,
        filter_shape=int64s((*filter_shape[:2], *(1, *filter_shape[2:])[-2:])),
        group_count=np.int64(group_count),
        strides=int64s((1, *strides)[-2:]),
        dilations=int64s((1, *dilations)[-2:]),
        start_padding=int64s((0, *(start for start, _ in padding))[-2:]),
        end_padding=int64s((0, *(end for _, end in padding))[-2:]),
    )
    return lax.reshape(images, (*images.shape[: leading + 2], *space))


def _output_extents(
    x: Any, filter: Sequence[int], *, strides: Sequence[int], dilations: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> tuple[int, ...]:  # fmt: skip
    """The spatial dimensions of the output of a convolution."""
    sizes = zip(x.shape[-len(strides) :], filter[2:], strides, dilations, *zip(*padding, strict=True), strict=True)
    return tuple(output_extent(*size) for size in sizes)


def _conv_result(
    x: Any, x_scale: Any, x_zero_point: Any, filter: Any, *_: Any, output_dtype: Any, group_count: int, **options: Any
) -> Result:
    return (x.shape[0], filter.shape[0], *_output_extents(x, filter.shape, **options)), output_dtype


def _integer_conv(
    x: Array, x_zero_point: Array | None, filter: Any, filter_zero_point: Array | None, *, leading: int, **options: Any
) -> Array:
    one = _one(leading)
    operands = x, one, x_zero_point, filter, one, filter_zero_point, None, one, None
    return _conv(*operands, output_dtype=jnp.int32, leading=leading, **options)


def _integer_conv_result(x: Any, x_zero_point: Any, filter: Any, filter_zero_point: Any, **options: Any) -> Result:
    return _conv_result(x, None, x_zero_point, filter, output_dtype=jnp.int32, **options)


DOT, CONV = Kernel(_dot, _dot_result, _takes), Kernel(_conv, _conv_result, _takes)
INTEGER_DOT = Kernel(_integer_dot, _integer_dot_result, _takes)
FLOAT_DOT = Kernel(_float_dot, _float_dot_result, takes_float_dot, calls_kernels=True)
INTEGER_CONV = Kernel(_integer_conv, _integer_conv_result, _takes)
