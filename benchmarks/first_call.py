"""python -m benchmarks.first_call: the CPU time from a file to the first outputs, by step.

Each network runs in a process of its own, without JAX's cache of compiled programs. The steps are: load the file, trace
the model, lower it, compile it, and run it. The last columns count the programs that XLA compiles on the way.
"""

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxdml.onnx
from benchmarks.network_files import IMAGE, NETWORKS, images, quantized
from benchmarks.shipped_models import SHIPPED

HEAD = ("network", "load, s", "trace, s", "lower, s", "compile, s", "run, s", "all, s", "programs of load", "of trace")


def measured(file: bytes, inputs: dict[str, np.ndarray]) -> tuple[list[float], list[int]]:
    """The CPU seconds of each step, of all threads, and how many programs each compiled."""
    jax.config.update("jax_enable_compilation_cache", False)
    jax.block_until_ready(jax.jit(lambda x: x + 1)(np.zeros(3)))  # starts the backend
    programs, seconds, counts = list[str](), list[float](), list[int]()
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: programs.append(event) if event.endswith("backend_compile_duration") else None
    )

    def step(compute: Callable[[], Any]) -> Any:
        programs.clear()
        start = time.process_time()
        result = jax.block_until_ready(compute())
        seconds.append(time.process_time() - start)
        counts.append(len(programs))
        return result

    model = step(lambda: jaxdml.onnx.load(file))
    traced = step(lambda: jax.jit(model.apply).trace(model.params, **inputs))
    lowered = step(traced.lower)
    compiled = step(lowered.compile)
    step(lambda: compiled(model.params, **inputs))
    return seconds, counts


def row(name: str, file: bytes, inputs: dict[str, np.ndarray]) -> str:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        seconds, counts = pool.apply(measured, (file, inputs))
    cells = [name, *(f"{each:.2f}" for each in (*seconds, sum(seconds))), *map(str, counts[:2])]
    return f"| {' | '.join(cells)} |"


def of_package(name: str) -> bytes:
    """The QDQ form of a file that a package ships."""
    from benchmarks import quantized_files, shipped_files

    with tempfile.TemporaryDirectory() as folder:
        path = shipped_files.floats(SHIPPED[name].path, Path(folder))
        return quantized_files.quantized(path, "QDQ", [SHIPPED[name].drawn(seed) for seed in range(1, 4)]).read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=NETWORKS, action="append", help="default: all")
    parser.add_argument("--shipped", choices=SHIPPED, action="append", help="a network of benchmarks.shipped_files")
    options = parser.parse_args()
    print(f"| {' | '.join(HEAD)} |", "|" + " --- |" * len(HEAD), sep="\n")
    for name in options.network or ([] if options.shipped else NETWORKS):
        print(row(name, quantized(name), {IMAGE: images(2)}), flush=True)
    for name in options.shipped or ():
        print(row(name, of_package(name), SHIPPED[name].drawn(0)), flush=True)


if __name__ == "__main__":
    main()
