"""Compiles for absent accelerators: `jax.experimental.topologies` describes them to their compilers."""

import functools
import os
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

from accelerators import hlo, ptx
from accelerators.verdict import Compiled

jax.config.update("jax_platforms", "cpu")  # computations that run here, such as calibration, run on a CPU
# Without these variables, libtpu queries the cloud for the type of the machine.
os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-4", "TPU_WORKER_HOSTNAMES": "localhost"}
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # a second process may compile, too: neither has a TPU to share

GPU = """gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536 {}
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 patch: 0 }} device_description_str: "{}"
"""
H100 = GPU.format(
    """shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448 core_count: 132 fpus_per_core: 128
    memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 84942979072
    cuda_compute_capability { major: 9 }""",
    "NVIDIA H100 80GB HBM3",
)
A100 = GPU.format(
    """shared_memory_per_core: 167936 shared_memory_per_block_optin: 166912 core_count: 108 fpus_per_core: 64
    memory_bandwidth: 2039000000000 l2_cache_size: 41943040 clock_rate_ghz: 1.41 device_memory_size: 85094825984
    cuda_compute_capability { major: 8 }""",
    "NVIDIA A100-SXM4-80GB",
)
GPUS = {"H100": H100, "A100": A100}
TPUS = {"v5e": "v5e:2x2", "v6e": "v6e:2x2"}
DEVICES = (*GPUS, *TPUS)


@functools.cache
def device(name: str) -> jax.Device:
    if name in GPUS:
        described = topologies.get_topology_desc(platform="cuda", topology="1x1x1", target_config=GPUS[name])
    else:
        described = topologies.get_topology_desc(platform="tpu", topology_name=TPUS[name])
    return described.devices[0]


def compiled(name: str, function: Callable[..., Any], structs: tuple[Any, ...]) -> Compiled:
    """The function compiled for a device."""
    place = jax.sharding.SingleDeviceSharding(device(name))
    start = time.monotonic()
    lowered = jax.jit(function, in_shardings=place, out_shardings=place).lower(*structs)
    kernels, steps = [], []
    with tempfile.TemporaryDirectory() as folder:
        options = {"xla_dump_to": folder, "xla_dump_emitter_re": "ptx"} if name in GPUS else {}
        made = lowered.compile(compiler_options=options)
        seconds = time.monotonic() - start
        for path in sorted(Path(folder).glob("*.ptx")):
            kernels += ptx.kernels(path.read_text(encoding="utf-8"))
        for path in Path(folder).glob("*.thunk_sequence.txt"):
            steps += re.findall(r"^\s*\d+: (k\w+)\s+\[[^\]]*\] (\S+)", path.read_text(encoding="utf-8"), re.M)
    optimized = hlo.Program(made.as_text())
    estimate = (made.cost_analysis() or {}).get("optimal_seconds") if name in TPUS else None
    return Compiled(hlo.Program(lowered.as_text("hlo")), optimized, kernels, steps, seconds, estimate)
