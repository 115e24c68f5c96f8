"""The int8 products and convolutions, for each platform of XLA, and the layout of prepared weights.

The functions of all platforms return the same integers.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from jaxdml._arithmetic import cpu, cuda, int8, int32, tpu
from jaxdml._arithmetic.layouts import Filter

Array = jax.Array
Forms = dict[str, Callable[..., Array]]  # keyed by platform
DOTS: Forms = {"cpu": cpu.dot, "cuda": cuda.dot}
DOTS_IN_FLOATS: Forms = {"cpu": cpu.dot_in_floats}
CONVS: Forms = {"cpu": cpu.conv, "cuda": cuda.conv, "tpu": tpu.conv}

# All platforms use the CPU's layouts: weights may move between platforms, and must be the same pytree on each.
arrange_matrix, arrange_filter = cpu.arrange_matrix, cpu.arrange_filter
fits_floats = cpu.fits_floats


def int8_dot(a: Array, b: Array, layout: str = "KN") -> Array:
    """int8 [..., M, K] times int8 [..., K, N] or, with layout "NK", [..., N, K], in int32: [..., M, N]."""
    return by_platform(DOTS, int8.product_in_parts, a, b, layout=layout)


def dot_in_floats(
    by_integers: Callable[..., Array], a: Array, a_zero_point: Any, b: Array, b_zero_point: Any, layout: str
) -> Array:
    """An int8 product minus zero points, if `fits_floats` holds: in floats on CPUs, elsewhere by `by_integers`."""
    return by_platform(DOTS_IN_FLOATS, by_integers, a, a_zero_point, b, b_zero_point, layout=layout)


def int8_conv(x: Array, filter: Filter, strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """Convolution of padded int8 [N, C, *spatial] with the filter, in int32: [N, O, *output]."""
    return by_platform(CONVS, int32.conv, x, filter, strides=strides, dilations=dilations)


def by_platform(forms: Forms, default: Callable[..., Array], *operands: Any, **statics: Any) -> Array:
    """The form for the platform for which XLA compiles, else the default, applied to pytrees of arrays."""
    bound = {platform: functools.partial(form, **statics) for platform, form in forms.items()}
    result: Array = lax.platform_dependent(*operands, **bound, default=functools.partial(default, **statics))
    return result
