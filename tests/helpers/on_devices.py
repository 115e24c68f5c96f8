"""Models in a process with eight CPU devices: arrays of a mesh and parts in shard_map have the bits of one device."""

import os
import subprocess
import sys
from pathlib import Path

import jax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

TESTS = Path(__file__).parents[1]


def run_on_eight(script, *arguments):
    """The output of a script in a process of its own, where jax has eight devices."""
    return run_on(8, script, *arguments)


def run_on(count, script, *arguments):
    """The output of a script in a process of its own, where jax has `count` devices."""
    path = os.pathsep.join([str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")])
    devices = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={count}",
        "PYTHONPATH": path,
    }
    command = [sys.executable, script, *map(str, arguments)]
    environment = os.environ | devices
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr
    return run.stdout


def on_mesh(kind, model, x):
    """The results without and with a mesh set; the batch has an image on each device, the params are replicated."""
    mesh = jax.make_mesh((8,), ("batch",), axis_types=(kind,))
    x = jax.device_put(x, NamedSharding(mesh, P("batch")))
    params = jax.device_put(model.params, NamedSharding(mesh, P()))
    received = jax.jit(model.apply)(params, x)
    assert all(len(leaf.sharding.device_set) == 8 for leaf in jax.tree.leaves(received))
    with jax.set_mesh(mesh):
        return received, jax.jit(model.apply)(params, x)


def in_shard_map(model, x):
    """The result of shard_map: each device computes its own image."""
    mesh = jax.make_mesh((8,), ("batch",), axis_types=(AxisType.Auto,))
    mapped = jax.shard_map(model.apply, mesh=mesh, in_specs=(P(), P("batch")), out_specs=P("batch"))
    return jax.jit(mapped)(model.params, x)
