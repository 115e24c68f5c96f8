"""Products and convolutions for CUDA. XLA:GPU multiplies matrices of int8 and of bfloat16 on tensor cores, but few
integer convolutions have a kernel.

Some of XLA's kernels for int8 double the sums: they load 16 terms for an instruction that multiplies 32, which then
gets each term twice. docs/numerics_accelerators.md says where that was seen. bfloat16 has no such kernels, but large
products take twice as long.
"""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import int8, windows
from jaxdml._arithmetic.layouts import Filter
from jaxdml._arithmetic.matrix_product import matrix_product
from jaxdml._arithmetic.sharding import replicated_along
from jaxdml._arithmetic.xla_flags import flags, is_on

Array = jax.Array
MOST_TERMS_IN_FLOATS = 2**10  # the sum of this many products of int8 numbers fits float32
LARGE = 2**31  # products, which bfloat16 takes longer to multiply than a kernel takes to start
OF_CUBLAS = 4  # cuBLAS multiplies int8 matrices if the number of terms is a multiple of this


def dot(a: Array, b: Array, layout: str = "KN") -> Array:
    """int8 [..., M, K] times int8 [..., K, *N] or, with layout "NK", [..., N, K], in int32: [..., M, *N]."""
    depth, of_b = a.shape[-1], b.shape[a.ndim - 2 :]
    columns = of_b[1:] if layout == "KN" else of_b[:1]
    size = math.prod((*a.shape, *columns))
    if isinstance(depth, int):
        is_large = depth > MOST_TERMS_IN_FLOATS or (isinstance(size, int) and size > LARGE)
        if not (is_large and compares_kernels()):
            in_floats = functools.partial(_product_in_floats, layout=layout)
            return int8.in_parts(in_floats, a, b, layout, MOST_TERMS_IN_FLOATS)
    return int8.product_in_parts(*_of_cublas(a, b, layout), layout)


def compares_kernels() -> bool:
    """Whether XLA compares its kernels with those of cuBLAS, and leaves out those that differ; flags turn that off."""
    given = flags()
    takes_the_first = any(
        is_on(given.get(f"xla_gpu_{name}")) for name in ("deterministic_ops", "exclude_nondeterministic_ops")
    )
    has_cublas = is_on(given.get("xla_gpu_cublas_fallback", "true"))
    return has_cublas and not takes_the_first and given.get("xla_gpu_autotune_level", "4") not in ("0", "1", "2", "3")


def _product_in_floats(a: Array, b: Array, layout: str) -> Array:
    """The int8 product on tensor cores for bfloat16: the products and their sums are integers that float32 holds."""
    a, b = (lax.convert_element_type(operand, jnp.bfloat16) for operand in (a, b))
    return lax.convert_element_type(matrix_product(a, b, layout, lax.Precision.DEFAULT, jnp.float32), jnp.int32)


def _of_cublas(a: Array, b: Array, layout: str) -> tuple[Array, Array]:
    """The operands, padded with zeros, and behind barriers, without which XLA may fuse what cuBLAS cannot compute."""
    missing = -a.shape[-1] % OF_CUBLAS

    def longer(x: Array, axis: int) -> Array:
        if not (isinstance(missing, int) and missing == 0):
            x = lax.pad(replicated_along(x, axis), np.int8(0), [(0, missing * (i == axis), 0) for i in range(x.ndim)])
        return lax.optimization_barrier(x)

    return longer(a, a.ndim - 1), longer(b, a.ndim - 2 if layout == "KN" else a.ndim - 1)


def conv(x: Array, filter: Filter, strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """Shifted products for a depthwise filter, else a matrix product for each group."""
    if windows.suits_depthwise(filter):
        return windows.depthwise(x, filter, strides, dilations, has_vector_registers=False)
    if math.prod(filter.shape[2:]) == 1:
        # Without the barrier XLA:GPU fuses the conversion of x to int8 into the product. It compiles such products of
        # some sizes without tensor cores, and refuses others ("No supported config found").
        x = lax.optimization_barrier(x)
    return windows.matrix(x, filter, strides, dilations, dot)
