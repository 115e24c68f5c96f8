"""Run by test_floats.py in processes of their own: prints digests of the results of saved models.

Arguments: a folder of files that `jaxdml.ptq.save` wrote, "one" or "sharded", then the names of networks.
"""

import hashlib
import sys
from pathlib import Path

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxdml as dml
from _ptq.quantized import network


def sharded(x):
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    of_last = [*(None,) * (x.ndim - 2), "y" if x.shape[-1] % 4 == 0 else None][: x.ndim - 1]
    return jax.device_put(x, NamedSharding(mesh, P("x", *of_last)))


folder, devices, *names = sys.argv[1:]
for name in names:
    apply, params, make_inputs = network(name)
    model = dml.ptq.load(Path(folder) / f"{name}.npz", apply, params)
    inputs = make_inputs(2)
    if devices == "sharded":  # the last axis is the one that softmax and normalizations reduce
        inputs = tuple(map(sharded, inputs))
    results = jax.tree.leaves(jax.jit(model.apply)(model.params, *inputs))
    print(name, *(hashlib.sha256(np.asarray(each).tobytes()).hexdigest() for each in results))
