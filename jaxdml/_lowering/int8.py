"""int8 operands and their product, the one contraction that every backend of XLA has a kernel for."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

Array = jax.Array


def signed(x: Array) -> Array:
    """x as int8: uint8 loses 128, by flipping its top bit."""
    return x if x.dtype == jnp.int8 else lax.bitcast_convert_type(x ^ np.uint8(128), jnp.int8)


def unsigned(x: Array, dtype: np.dtype) -> Array:
    return x if dtype == jnp.int8 else lax.bitcast_convert_type(x, jnp.uint8) ^ np.uint8(128)


def signed_zero_point(zero_point: Array | None, dtype: np.dtype, rank: int) -> Array | None:
    """The int32 zero point that goes with what `signed` makes of a tensor of dtype."""
    if dtype == jnp.int8:
        return None if zero_point is None else zero_point.astype(jnp.int32)
    zero_point = jnp.zeros((1,) * rank, jnp.int32) if zero_point is None else zero_point.astype(jnp.int32)
    return zero_point - np.int32(128)


def product(a: Array, b: Array, layout: str = "KN") -> Array:
    """int8 [..., M, K] times int8 [..., K, *N], or [..., N, K], in int32: [..., M, *N].

    Under vmap over b alone JAX would make one product of it, and XLA transpose all of b for that. With a repeated there
    is a product for each: 8 of 1 x 1024 x 1024 take 1.3 ms, not 6.2.
    """

    @jax.custom_batching.custom_vmap
    def multiply(a: Array, b: Array) -> Array:
        return _product(a, b, layout)

    @multiply.def_vmap
    def _(size: int, is_batched: Sequence[bool], a: Array, b: Array) -> tuple[Array, bool]:
        if is_batched[1]:
            return multiply(a if is_batched[0] else jnp.broadcast_to(a, (size, *a.shape)), b), True
        return jax.vmap(lambda a: _product(a, b, layout))(a), True

    return multiply(a, b)


def _product(a: Array, b: Array, layout: str) -> Array:
    """One row or column is computed as two: XLA:CPU has no kernel for one.

    It has none for outputs as small as 2 x 2 either, but there is so little to do for those that its loop is as fast.
    """
    rank, batch = a.ndim, tuple(range(a.ndim - 2))
    depth = rank - 2 if layout == "KN" else rank - 1
    columns = tuple(axis for axis in range(rank - 2, b.ndim) if axis != depth)
    one_row, one_column = a.shape[-2] == 1, all(b.shape[axis] == 1 for axis in columns)
    a = lax.pad(a, np.int8(0), [(0, int(one_row and axis == rank - 2), 0) for axis in range(rank)])
    b = lax.pad(b, np.int8(0), [(0, int(one_column and axis == columns[-1]), 0) for axis in range(b.ndim)])
    # The algorithm keeps JAX from widening the operands to int32 before XLA sees them.
    total = lax.dot_general(
        a,
        b,
        (((rank - 1,), (depth,)), (batch, batch)),
        precision=lax.DotAlgorithmPreset.DEFAULT,
        preferred_element_type=jnp.int32,
        out_sharding=out_sharding(*((a, axis) for axis in (*batch, rank - 2)), *((b, axis) for axis in columns)),
    )
    if one_row:
        total = lax.slice_in_dim(total, 0, 1, axis=rank - 2)
    return total[..., :1] if one_column else total


def out_sharding(*dimensions: tuple[Array, int] | None) -> NamedSharding | None:
    """The sharding of an array whose dimensions are those of others, or new; None unless the mesh's axes are explicit.

    There JAX asks for it where a contracted dimension is sharded: the partial sums are then added up, which int32 does
    exactly.
    """
    spec = [
        None if dimension is None else jax.typeof(dimension[0]).sharding.spec[dimension[1]] for dimension in dimensions
    ]
    mesh = next(jax.typeof(dimension[0]).sharding.mesh for dimension in dimensions if dimension is not None)
    return NamedSharding(mesh, PartitionSpec(*spec)) if AxisType.Explicit in mesh.axis_types else None


def whole_in_space(x: Array, *dimensions: int) -> Array:
    """x with its spatial dimensions on every device, on a mesh whose sharding XLA chooses.

    XLA partitions convolutions along space wrongly: with a row of the image on each device it computes other sums, or
    ends with "element types of the operands to Pad do not match".
    """
    mesh = jax.typeof(x).sharding.mesh
    mesh = jax.sharding.get_abstract_mesh() if mesh.empty else mesh
    if mesh.empty or AxisType.Auto not in mesh.axis_types or AxisType.Explicit in mesh.axis_types:
        return x
    spec = [None if axis in dimensions else PartitionSpec.UNCONSTRAINED for axis in range(x.ndim)]
    return lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*spec)))


def sums_of_columns(b: Array, layout: str = "KN") -> Array:
    """int8 [..., K, N], or [..., N, K], to int32 [..., 1, N].

    As a product with ones: XLA:CPU writes the operand of a reduction out in int32 first. 4096 x 4096: 3 ms against 30.
    Four rows of ones, because there is no kernel for 2 x 2.
    """
    batch, depth = range(b.ndim - 2), b.ndim - 2 if layout == "KN" else b.ndim - 1
    sharding = out_sharding(*((b, axis) for axis in batch), None, (b, depth))
    shape = (*b.shape[:-2], 4, b.shape[depth])
    ones = lax.broadcast_in_dim(np.int8(1), shape, (), out_sharding=sharding)
    return product(ones, b, layout)[..., :1, :]


def sums_of_rows(a: Array) -> Array:
    """int8 [..., M, K] to int32 [..., M, 1]."""
    return jnp.swapaxes(sums_of_columns(a, "NK"), -1, -2)
