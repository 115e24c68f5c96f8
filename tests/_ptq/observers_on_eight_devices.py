"""Run by test_observers.py in a process of its own, with eight CPU devices: what all of them saw."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from helpers.compare import assert_same_bits
from jaxdml.ptq._grids.observers import LeastSquares, MinMax, MovingAverage, Percentile

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
OBSERVERS = (MinMax(), MovingAverage(), Percentile(bins=64), LeastSquares(bins=64))
MESH = jax.make_mesh((8,), ("devices",), axis_types=(AxisType.Auto,))
X = (np.random.default_rng(0).normal(0, 1, (16, 30)) * np.exp2(np.arange(16) - 8)[:, np.newaxis]).astype(np.float32)
WRONG = X.copy()
WRONG[9, 3] = np.nan


def check(name, observer, received, expected):
    for one, other in zip(jax.tree.leaves(received), jax.tree.leaves(expected), strict=True):
        assert_same_bits(one, other, name)
    print("ok", name, type(observer).__name__)


def of_all(observer, x):
    return observer.update(x).merged("devices")


def of_even_ones(observer, x):
    """Devices with an odd number see nothing."""
    is_odd = jax.lax.axis_index("devices") % 2 == 1
    return jax.tree.map(lambda old, new: jnp.where(is_odd, old, new), observer, observer.update(x)).merged("devices")


def on_all(function):
    return jax.jit(jax.shard_map(function, mesh=MESH, in_specs=(P(), P("devices")), out_specs=P()))


if __name__ == "__main__":
    assert jax.device_count() == 8, sys.argv
    update, merged, some = jax.jit(lambda observer, x: observer.update(x)), on_all(of_all), on_all(of_even_ones)
    for observer in OBSERVERS:
        expected = jax.device_get(update(observer, X))
        check("shard_map", observer, merged(observer, X), expected)
        assert not merged(observer, WRONG).is_finite
        for kind in (AxisType.Auto, AxisType.Explicit):
            sharded = NamedSharding(jax.make_mesh((8,), ("devices",), axis_types=(kind,)), P("devices"))
            check(f"{kind.name} data", observer, update(observer, jax.device_put(X, sharded)), expected)
            assert not update(observer, jax.device_put(WRONG, sharded)).is_finite
        check("some saw nothing", observer, some(observer, X), update(observer, X.reshape(4, 2, 2, 30)[:, 0]))
