"""python -m benchmarks.blocks: products by block-quantized 4-bit weights, compared with MatMulNBits of onnxruntime.

Weights come from memory, as in a language model, which uses each weight once per token: each side has its own copies of
the weights, which exceed the caches, and uses them in random order. Times are medians. int8 is compared with accuracy
level 4, which rounds in the same way, and int22 with level 0, which computes in float32. A second table compares
dequantization with a fill of the same output.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxdml as dml
from benchmarks.machine import environment, name_of
from benchmarks.onnx_peer import Graph, threads
from benchmarks.timing import in_turns, median
from jaxdml import reference

COPIES = 12
LEVELS = {"int8": 4, "int22": 0}  # the accuracy level of onnxruntime that a precision is compared with


class Weights:
    """Random weights [columns, depth] in onnxruntime's form, two to a byte, and prepared."""

    def __init__(self, rng: np.random.Generator, columns: int, depth: int, block: int) -> None:
        self.packed = rng.integers(0, 256, (columns, depth // block, block // 2), dtype=np.uint8)
        self.scales = (rng.uniform(0.5, 1.5, (columns, depth // block)) * 0.01).astype(np.float32)
        nibbles = jax.lax.bitcast_convert_type(jnp.asarray(self.packed), jnp.uint4)
        self.b = nibbles.reshape(columns, depth)
        self.prepared = dml.prepare_matrix_multiply_blocks(self.b, self.scales)

    def session(self, a: np.ndarray, level: int) -> Callable[[], Any]:
        columns, blocks, half = self.packed.shape
        graph = Graph()
        options = {"domain": "com.microsoft", "K": blocks * half * 2, "N": columns, "bits": 4, "block_size": half * 2}
        output = graph.node("MatMulNBits", "a", self.packed, self.scales, accuracy_level=level, **options)
        session: Callable[[], Any] = graph.session({"a": a}, output)
        return session


def from_memory(sides: dict[str, list[Callable[[], Any]]], seconds: float) -> dict[str, float]:
    """The median milliseconds of each side; the calls of a side have separate copies of the weights."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for calls in sides.values():
        for call in calls:
            call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples[next(iter(sides))]) < len(sides):
        places, names = random.sample(range(COPIES), COPIES), list(sides)
        for place in places:
            random.shuffle(names)
            for name in names:
                start = time.perf_counter()
                sides[name][place % len(sides[name])]()
                samples[name].append((time.perf_counter() - start) * 1e3)
    return {name: median(times) for name, times in samples.items()}


def bytes_per_second(arrays: list[np.ndarray]) -> float:
    """The rate at which all threads together read int8 arrays from memory, with the widest vectors."""
    parts = [part for x in arrays for part in np.array_split(x, threads())]
    times = []
    with ThreadPoolExecutor(threads()) as pool:
        for _ in range(7):
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            times.append(time.perf_counter() - start)
    return sum(x.nbytes for x in arrays) / median(times)


def check_bits(weights: Weights, a: np.ndarray, precision: str) -> None:
    """Compares a few rows and columns with those of the NumPy reference."""
    b, scales = np.asarray(weights.b[:80]), weights.scales[:80]
    right = reference.matrix_multiply_blocks(a[:2], b, scales, precision=precision)
    got = dml.matrix_multiply_blocks(a, weights.prepared, precision=precision)  # type: ignore[arg-type]
    if (np.asarray(got)[:2, :80].view(np.int32) != right.view(np.int32)).any():
        raise ValueError(f"{precision}: wrong bits")


def products(rows: list[int], blocks: list[int], seconds: float) -> list[dict[str, Any]]:
    results = []
    rng = np.random.default_rng(0)
    for block in blocks:
        every = [Weights(rng, 4096, 4096, block) for _ in range(COPIES)]
        data = [np.asarray(weights.prepared.data) for weights in every]
        file_bytes = every[0].packed.nbytes + every[0].scales.nbytes
        rate = bytes_per_second(data)
        for m in rows:
            a = rng.normal(size=(m, 4096)).astype(np.float32)
            on_device = jax.device_put(a)
            sides: dict[str, list[Callable[[], Any]]] = {}
            for precision in ("int8", "int15", "int22"):
                check_bits(every[0], a, precision)
                multiply = jax.jit(partial(dml.matrix_multiply_blocks, precision=precision))

                def call(weights: Weights, multiply: Any = multiply, a: Any = on_device) -> Callable[[], Any]:
                    return lambda: multiply(a, weights.prepared).block_until_ready()

                sides[precision] = [call(weights) for weights in every]
            for level in LEVELS.values():
                sides[f"level {level}"] = [weights.session(a, level) for weights in every[: COPIES if m < 16 else 2]]
            times = from_memory(sides, seconds)
            row = {"rows": m, "block": block, "ms": times}
            row["ratios"] = {p: times[p] / times[f"level {level}"] for p, level in LEVELS.items()}
            row["read"] = data[0].nbytes / rate * 1e3
            row["packed"] = data[0].nbytes / file_bytes
            results.append(row)
            numbers = ", ".join(f"{name} {ms:.3f}" for name, ms in times.items())
            ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in row["ratios"].items())
            print(f"{m} x 4096 x 4096, blocks of {block}: {numbers} ms; of onnxruntime's time: {ratios}; ", end="")
            print(f"a read of {data[0].nbytes / 2**20:.1f} MiB takes {row['read']:.3f} ms", flush=True)
    return results


def dequantization(runs: int) -> dict[str, float]:
    """Milliseconds of dequantization to 4096 x 4096 float32, and of a fill of the same array."""
    rng = np.random.default_rng(1)
    scale = jnp.asarray(rng.uniform(0.5, 1.5, (4096, 128)), jnp.float32)
    b = {dtype: jnp.asarray(rng.integers(0, 8, (4096, 4096)).astype(dtype)) for dtype in ("int4", "uint4", "int8")}
    fill = jax.jit(lambda value: jnp.full((4096, 4096), value, jnp.float32))
    sides: dict[str, Callable[[int], Any]] = {"fill": lambda run: fill(run)}
    for dtype, x in b.items():
        sides[dtype] = lambda _, x=x: dml.dequantize(x, scale)
    return {name: seconds * 1e3 for name, seconds in in_turns(sides, runs).items()}


def quantization(runs: int) -> dict[str, float]:
    """The rate of `ptq.quantize_weights` in million weights a second, by method."""
    w = np.random.default_rng(2).normal(size=(4096, 4096)).astype(np.float32)
    rates = {}
    for method, count in (("minmax", runs), ("mse", 1)):
        times = []
        for _ in range(count):
            start = time.perf_counter()
            dml.ptq.quantize_weights(w, 0, jnp.int4, block_size=32, method=method)  # type: ignore[arg-type]
            times.append(time.perf_counter() - start)
        rates[method] = w.size / median(times) / 1e6
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 16, 64, 512])
    parser.add_argument("--blocks", type=int, nargs="*", default=[32, 128])
    parser.add_argument("--seconds", type=float, default=4, help="of each row")
    parser.add_argument("--out", type=Path, help="the folder of results")
    given = parser.parse_args()
    about = environment()
    print(about["processor"], about["kernels"])
    results: dict[str, Any] = {"environment": about, "products": products(given.rows, given.blocks, given.seconds)}
    results["dequantize"], results["quantize_weights"] = dequantization(21), quantization(5)
    print("ms of dequantization:", {name: round(ms, 2) for name, ms in results["dequantize"].items()})
    print("million weights a second:", {name: round(rate) for name, rate in results["quantize_weights"].items()})
    if given.out:
        name = name_of(jax.devices()[0], about["instructions"]).replace("cpu_", "blocks_")
        (given.out / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
