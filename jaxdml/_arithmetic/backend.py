"""The seam between what is the same on every platform and what a platform may compute in a way of its own."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

Array = jax.Array
Offer = Callable[..., Any] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backend:
    """What a platform offers; None leaves it to the common form. An offer returns the common form's very bits.

    Attributes:
      int8_dot: (a, b, layout) -> int32 [..., M, N], of int8 [..., M, K] and [..., K, N] or, by layout, [..., N, K].
      int8_conv: (x, filter, strides, dilations) -> int32 [N, O, *output], of int8 [N, C, *spatial], padded, and a
        `PreparedFilter`.
      requantized_dot, requantized_conv, integer_dot, integer_conv: whole operators; the signatures of `contractions`.
      dequantized, quantized, quantized_sum, extremes: element-wise operators; the signatures of `elementwise`.
      sums_of_images: a part of pooling; the signature of `pooling`.
      arrange_matrix: int8 [..., K, N] -> (values, layout), for a matrix that is prepared once.
      arrange_filter: int8 [O, C / groups, *kernel], group_count -> (values, layout), the groups first.
    """

    int8_dot: Offer = None
    int8_conv: Offer = None
    requantized_dot: Offer = None
    requantized_conv: Offer = None
    integer_dot: Offer = None
    integer_conv: Offer = None
    dequantized: Offer = None
    quantized: Offer = None
    quantized_sum: Offer = None
    extremes: Offer = None
    sums_of_images: Offer = None
    arrange_matrix: Offer = None
    arrange_filter: Offer = None
