"""Native kernels for pooling, for look-up tables, and for elementwise products as in ONNX Runtime.

Each takes the arguments of the JAX function that it replaces, with `leading` vmap dimensions prepended to every array.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxdml._arithmetic.kernel_call import Kernel
from jaxdml._arithmetic.native_call import (
    Result,
    in_two_dimensions,
    int64s,
    is_at_most_two_bytes,
    is_byte,
    library_call,
    operand,
)
from jaxdml._shapes import output_extent

Array = jax.Array
Sizes = Sequence[int]


def _number(x: Array | None, leading: int, dtype: Any) -> Array:
    return operand(x, leading, lambda shape: (), dtype)


# Means ---------------------------------------------------------------------------------------------------------------


def _means(
    x: Array, scale: Array, zero_point: Array | None, output_scale: Array, output_zero_point: Array | None, *,
    output_dtype: Any, leading: int,
) -> Array:  # fmt: skip
    outer, space = x.shape[leading : leading + 2], x.shape[leading + 2 :]
    operands = (
        lax.reshape(x, (*x.shape[:leading], math.prod(outer), math.prod(space))),
        _number(scale, leading, None),
        _number(zero_point, leading, x.dtype),
        _number(output_scale, leading, None),
        _number(output_zero_point, leading, output_dtype),
    )
    result = (math.prod(outer),), output_dtype
    y = library_call("means", leading, result, operands, leading_count=np.int64(leading))
    return lax.reshape(y, (*y.shape[:leading], *outer, *(1 for _ in space)))


def _means_result(x: Any, *_: Any, output_dtype: Any) -> Result:
    return (*x.shape[:2], *(1,) * (x.ndim - 2)), output_dtype


def _takes_means(x: Any, *parameters: Any, output_dtype: Any) -> bool:
    """Whether x has 8-bit elements and known sizes, and each parameter has one element."""
    are_numbers = all(parameter is None or parameter.size == 1 for parameter in parameters)
    return are_numbers and is_byte(x.dtype) and all(isinstance(size, int) for size in x.shape)


# Max pooling ---------------------------------------------------------------------------------------------------------


def _greatest(x: Array, *, leading: int, **options: Any) -> Array:
    window, strides, dilations, padding = _pooled(**options)
    outer = x.ndim - len(window)
    images = in_two_dimensions(x, len(window))
    space = _output_extents(x.shape[outer:], window, strides, dilations, padding)
    result = library_call(
        "max_pool",
        outer,
        ((1, *space)[-2:], x.dtype),
        (images,),
        window=int64s((1, *window)[-2:]),
        strides=int64s((1, *strides)[-2:]),
        dilations=int64s((1, *dilations)[-2:]),
        start_padding=int64s((0, *(start for start, _ in padding))[-2:]),
        end_padding=int64s((0, *(end for _, end in padding))[-2:]),
    )
    return lax.reshape(result, (*x.shape[:outer], *space))


def _pooled(
    *, window: Sizes, strides: Sizes, dilations: Sizes, padding: Sequence[tuple[int, int]]
) -> tuple[Any, Any, Any, Any]:
    """The options of the last dimensions, from the first one that pooling changes."""
    each = enumerate(zip(window, strides, padding, strict=True))
    first = next((i for i, one in each if one != (1, 1, (0, 0))), len(window))
    return window[first:], strides[first:], dilations[first:], padding[first:]


def _output_extents(
    sizes: Sizes, window: Sizes, strides: Sizes, dilations: Sizes, padding: Sequence[tuple[int, int]]
) -> tuple[int, ...]:
    each = zip(sizes, window, strides, dilations, *zip(*padding, strict=True), strict=True)
    return tuple(output_extent(*one) for one in each)


def _greatest_result(x: Any, **options: Any) -> Result:
    outer = x.ndim - len(options["window"])
    return (*x.shape[:outer], *_output_extents(x.shape[outer:], **options)), x.dtype


def _takes_windows(x: Any, **options: Any) -> bool:
    """Whether x has 8-bit elements and known sizes, and is pooled along its last one or two dimensions.

    No padding may be negative, and the output may not be empty.
    """
    pads = [pad for pair in options["padding"] for pad in pair]
    if not is_byte(x.dtype) or not all(isinstance(number, int) for number in (*x.shape, *pads)):
        return False
    if any(pad < 0 for pad in pads):
        return False
    pooled = _pooled(**options)
    spatial = len(pooled[0])
    return spatial in (1, 2) and min(_output_extents(x.shape[-spatial:], *pooled)) > 0


# Tables --------------------------------------------------------------------------------------------------------------


def _entries(x: Array, table: Array, *, leading: int) -> Array:
    result = x.shape[leading:], table.dtype
    return library_call("looked_up", leading, result, (x, table), leading_count=np.int64(leading))


def _entries_result(x: Any, table: Any) -> Result:
    return x.shape, table.dtype


def _takes_table(x: Any, table: Any) -> bool:
    """Whether x and the table have 8-bit or 16-bit integers."""
    return is_at_most_two_bytes(x.dtype) and is_at_most_two_bytes(table.dtype)


# Products ------------------------------------------------------------------------------------------------------------


def _products(
    a: Array, a_zero_point: Array | None, b: Array, b_zero_point: Array | None, multiplier: Array,
    output_zero_point: Array | None, *, leading: int,
) -> Array:  # fmt: skip
    b = lax.expand_dims(b, range(leading, leading + a.ndim - b.ndim))
    operands = (
        a,
        _number(a_zero_point, leading, a.dtype),
        b,
        _number(b_zero_point, leading, b.dtype),
        _number(multiplier, leading, None),
        _number(output_zero_point, leading, a.dtype),
    )
    return library_call("products", leading, (a.shape[leading:], a.dtype), operands, leading_count=np.int64(leading))


def _products_result(a: Any, *_: Any) -> Result:
    return a.shape, a.dtype


def _takes_products(a: Any, a_zero_point: Any, b: Any, *_: Any) -> bool:
    """Whether a and b have 8-bit elements, and b has a's shape, or a's first sizes followed by ones."""
    if not is_byte(a.dtype) or not is_byte(b.dtype) or b.ndim > a.ndim:
        return False
    sizes = (1,) * (a.ndim - b.ndim) + b.shape
    same = next((i for i, (x, y) in enumerate(zip(a.shape, sizes, strict=True)) if x != y), a.ndim)
    return all(isinstance(size, int) and size == 1 for size in sizes[same:])


MEANS = Kernel(_means, _means_result, _takes_means)
MAX_POOL = Kernel(_greatest, _greatest_result, _takes_windows)
LOOK_UP = Kernel(_entries, _entries_result, _takes_table)
PRODUCTS = Kernel(_products, _products_result, _takes_products)
