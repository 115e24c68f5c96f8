"""What must be said of shardings: JAX asks for it on explicit axes, and XLA must be told on automatic ones."""

import jax
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

Array = jax.Array


def out_sharding(*dimensions: tuple[Array, int] | None) -> NamedSharding | None:
    """The sharding of an array whose dimensions are those of others, or new; None unless the mesh's axes are explicit.

    There JAX asks for it where a contracted dimension is sharded: the partial sums are then added up, which int32 does
    exactly.
    """
    given = [dimension for dimension in dimensions if dimension is not None]
    mesh = jax.typeof(given[0][0]).sharding.mesh
    if AxisType.Explicit not in mesh.axis_types:
        return None
    spec = [
        None if dimension is None else jax.typeof(dimension[0]).sharding.spec[dimension[1]] for dimension in dimensions
    ]
    return NamedSharding(mesh, PartitionSpec(*spec))


def broadcast_like(x: Array, like: Array) -> Array:
    """x, a scalar or of like's rank, in like's shape and sharding."""
    if x.shape == like.shape:
        return x
    sharding = out_sharding(*((like, axis) for axis in range(like.ndim)))
    return lax.broadcast_in_dim(x, like.shape, tuple(range(x.ndim)), out_sharding=sharding)


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
