"""Run by test_ways_to_call.py in a process of its own, with eight CPU devices: the bits of one device."""

import sys
from pathlib import Path

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxdml as dml
from ptq_quantized import network

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def check(name, received, expected):
    np.testing.assert_array_equal(received, expected, err_msg=name, strict=True)
    print("ok", name)


def on_mesh(kind, model, data):
    """The batch has an image on each device, the params are on all."""
    mesh = jax.make_mesh((8,), ("batch",), axis_types=(kind,))
    x = jax.device_put(data["x"], NamedSharding(mesh, P("batch")))
    params = jax.device_put(model.params, NamedSharding(mesh, P()))
    received = jax.jit(model.apply)(params, x)
    check(f"{kind.name}: arrays of a mesh", received, data["y"])
    assert len(received.sharding.device_set) == 8
    with jax.set_mesh(mesh):
        check(f"{kind.name}: under a mesh", jax.jit(model.apply)(params, x), data["y"])


def in_shard_map(model, data):
    """Each device computes the image that it has, by itself."""
    mesh = jax.make_mesh((8,), ("batch",), axis_types=(AxisType.Auto,))
    mapped = jax.shard_map(model.apply, mesh=mesh, in_specs=(P(), P("batch")), out_specs=P("batch"))
    check("shard_map", jax.jit(mapped)(model.params, data["x"]), data["y"])


if __name__ == "__main__":
    assert jax.device_count() == 8, sys.argv
    folder, *names = map(Path, sys.argv[1:])
    for name in map(str, names):
        apply, params, _ = network(name)
        model = dml.ptq.load(folder / f"{name}.npz", apply, params)
        with np.load(folder / f"{name}.data.npz") as data:
            for kind in (AxisType.Auto, AxisType.Explicit):
                on_mesh(kind, model, data)
            in_shard_map(model, data)
