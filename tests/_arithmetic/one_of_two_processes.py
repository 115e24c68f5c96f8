"""Run twice by test_sharding.py, as two processes with four CPU devices each. Arguments: address, process.

Both compute, print a line, and wait; one of them is then killed.
"""

import sys

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxdml as dml
from helpers.compare import assert_same_bits
from jaxdml import reference
from jaxdml.examples import digits

address, process = sys.argv[1], int(sys.argv[2])
jax.config.update("jax_num_cpu_devices", 4)
jax.distributed.initialize(address, 2, process, initialization_timeout=60, heartbeat_timeout_seconds=10)
assert (jax.process_count(), jax.device_count(), jax.local_device_count()) == (2, 8, 4)
mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))


def spread(x, spec):
    return jax.make_array_from_callback(x.shape, NamedSharding(mesh, spec), lambda index: x[index])


def multiply(a, b, module=dml):
    return module.quantized_linear_matrix_multiply(a, 0.1, np.uint8(3), b, 0.1, None, 20.0, np.uint8(5))


rng = np.random.default_rng(0)
a, b = rng.integers(0, 256, (16, 64), np.uint8), rng.integers(-128, 128, (64, 32), np.int8)
sharded = spread(a, P(None, "x")), spread(b, P("x"))
whole = jax.jit(multiply, out_shardings=NamedSharding(mesh, P()))

assert_same_bits(multihost_utils.process_allgather(whole(*sharded), tiled=True), multiply(a, b, reference))
network = jax.jit(digits.int8_network)
images, _, parameters, _ = digits.load()
images = np.asarray(images[:64])
got = network(parameters, spread(images, P("x")))
expected = digits.int8_network(jax.tree.map(np.asarray, parameters), images, reference)
assert_same_bits(multihost_utils.process_allgather(got, tiled=True), expected)
print("ok", process, flush=True)
sys.stdin.readline()  # the victim never gets a line; the survivor goes on alone
whole(*sharded).block_until_ready()
