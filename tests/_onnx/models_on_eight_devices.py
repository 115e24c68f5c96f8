"""Run by test_transforms.py in a process of its own, with eight CPU devices: the bits of one device."""

import sys
from pathlib import Path

import jax
import numpy as np
from jax.sharding import AxisType

import jaxdml.onnx
from helpers.compare import assert_same_bits
from helpers.on_devices import in_shard_map, on_mesh

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def check(received, expected):
    assert_same_bits(received["y"], expected)
    print("ok")


if __name__ == "__main__":
    assert jax.device_count() == 8, sys.argv
    folder = Path(sys.argv[1])
    model = jaxdml.onnx.load(folder / "model.onnx")
    with np.load(folder / "data.npz") as data:
        for kind in (AxisType.Auto, AxisType.Explicit):
            for received in on_mesh(kind, model, data["x"]):
                check(received, data["of_batch"])
        check(in_shard_map(model, data["x"]), data["of_each"])
