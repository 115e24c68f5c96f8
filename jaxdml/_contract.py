"""The integer contractions of the operators: what they mean, and which lowering computes them.

Both return sums of (x - x_zero_point) * (y - y_zero_point) in int32, modulo 2**32. Every lowering gives those very
integers, so that the choice among them is a matter of speed alone.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
from jax import lax

from jaxdml._lowering import canonical, cpu, cuda, forms, prepared, tpu
from jaxdml._lowering.prepared import PreparedFilter, PreparedMatrix


def int_dot(
    a: jax.Array, a_zero_point: jax.Array | None, b: jax.Array | PreparedMatrix, b_zero_point: jax.Array | None
) -> jax.Array:
    """Matrix product of 8-bit [..., M, K] and [..., K, N]; zero points have the rank of what they broadcast to."""

    def in_int8(a: Any, a_zero_point: Any, b: Any, b_zero_point: Any) -> jax.Array:
        b = b if isinstance(b, PreparedMatrix) else prepared.prepare_matrix(b, "KN")
        return forms.dot(a, a_zero_point, b, b_zero_point)

    def elsewhere(a: Any, a_zero_point: Any, b: Any, b_zero_point: Any) -> jax.Array:
        b = prepared.matrix(b) if isinstance(b, PreparedMatrix) else b
        return canonical.dot(a, a_zero_point, b, b_zero_point)

    operands = a, a_zero_point, b, b_zero_point
    return lax.platform_dependent(*operands, cpu=in_int8, cuda=in_int8, tpu=in_int8, default=elsewhere)


def int_conv(
    x: jax.Array,
    x_zero_point: jax.Array | None,
    filter: jax.Array | PreparedFilter,
    filter_zero_point: jax.Array | None,
    *,
    strides: Sequence[int],
    dilations: Sequence[int],
    padding: Sequence[tuple[int, int]],
    group_count: int,
) -> jax.Array:
    """Convolution of 8-bit [N, C, *spatial] with [O, C / groups, *kernel]; padding is real zero, x_zero_point.

    Zero points have their operand's rank: one element, or one for each O of the filter.
    """
    options: dict[str, Any] = {"strides": strides, "dilations": dilations, "padding": padding}

    def in_int8(form: forms.Form, x: Any, x_zero_point: Any, filter: Any, filter_zero_point: Any) -> jax.Array:
        filter = filter if isinstance(filter, PreparedFilter) else prepared.prepare_filter(filter, group_count)
        return forms.conv(form, x, x_zero_point, filter, filter_zero_point, **options)

    def elsewhere(x: Any, x_zero_point: Any, filter: Any, filter_zero_point: Any) -> jax.Array:
        filter = prepared.filter(filter) if isinstance(filter, PreparedFilter) else filter
        return canonical.conv(x, x_zero_point, filter, filter_zero_point, **options, group_count=group_count)

    operands = x, x_zero_point, filter, filter_zero_point
    on = {name: partial(in_int8, backend.form) for name, backend in {"cpu": cpu, "cuda": cuda, "tpu": tpu}.items()}
    return lax.platform_dependent(*operands, **on, default=elsewhere)
