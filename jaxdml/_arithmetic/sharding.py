"""The shardings that results need on explicit mesh axes, and that convolutions need on automatic mesh axes."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

Array = jax.Array


def out_sharding(*dimensions: tuple[Array, int] | None) -> NamedSharding | None:
    """The sharding of an array whose dimensions are sharded like the given axes of arrays; None means not sharded.

    The result is None on meshes without explicit axes. On explicit axes JAX requires a sharding if a contracted
    dimension is sharded; XLA then adds partial sums, which is exact in int32.
    """
    given = [dimension for dimension in dimensions if dimension is not None]
    mesh = jax.typeof(given[0][0]).sharding.mesh
    if AxisType.Explicit not in mesh.axis_types:
        return None
    spec = [
        None if dimension is None else jax.typeof(dimension[0]).sharding.spec[dimension[1]] for dimension in dimensions
    ]
    return NamedSharding(mesh, PartitionSpec(*spec))


def replicated_along(x: Array, axis: int) -> Array:
    """x with an axis replicated, if x lies on explicit mesh axes. JAX cannot slice a sharded axis there."""
    sharding = out_sharding(*((x, each) for each in range(x.ndim)))
    if sharding is None:
        return x
    spec = [None if each == axis else names for each, names in enumerate(sharding.spec)]
    return jax.sharding.reshard(x, NamedSharding(sharding.mesh, PartitionSpec(*spec)))


def broadcast_like(x: Array, like: Array) -> Array:
    """x, which is a scalar or has the rank of `like`, broadcast to the shape and sharding of `like`."""
    if x.shape == like.shape:
        return x
    sharding = out_sharding(*((like, axis) for axis in range(like.ndim)))
    return lax.broadcast_in_dim(x, like.shape, tuple(range(x.ndim)), out_sharding=sharding)


def replicated_in_space(x: Array, *dimensions: int) -> Array:
    """x with its spatial dimensions replicated, if XLA chooses its sharding.

    XLA partitions convolutions incorrectly along spatial dimensions. With a row of the image on each device, it
    computes wrong sums, or fails with "element types of the operands to Pad do not match".
    """
    mesh = jax.typeof(x).sharding.mesh
    mesh = jax.sharding.get_abstract_mesh() if mesh.empty else mesh
    if mesh.empty or AxisType.Auto not in mesh.axis_types or AxisType.Explicit in mesh.axis_types:
        return x
    spec = [None if axis in dimensions else PartitionSpec.UNCONSTRAINED for axis in range(x.ndim)]
    return lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*spec)))


def on_mesh_of(arrays: Iterable[Any]) -> AbstractContextManager[Any]:
    """Sets the mesh on whose explicit axes arrays lie.

    Without it, JAX forgets the sharding of arrays that equations without operands make, and cannot run these equations
    one by one, because it does not know their devices.
    """
    arrays = [x for x in arrays if isinstance(x, jax.Array)]
    meshes = (jax.typeof(x).sharding.mesh for x in arrays)
    mesh = next((each for each in meshes if AxisType.Explicit in each.axis_types), None)
    if mesh is None:
        return nullcontext()
    if isinstance(jnp.zeros(()), jax.core.Tracer):
        return jax.sharding.use_abstract_mesh(mesh)  # the compiled function takes the devices from its arguments
    on_devices = (x for x in arrays if not isinstance(x, jax.core.Tracer) and jax.typeof(x).sharding.mesh == mesh)
    try:
        return next((jax.set_mesh(x.sharding.mesh) for x in on_devices), nullcontext())
    except ValueError:  # not allowed inside vmap and grad
        return nullcontext()
