"""python -m benchmarks.device_products: times of int8 products on a GPU, without the overhead of a call.

A loop on the device repeats a product. Each product waits for the previous one, because one number of its operand comes
from that result. The time of a product is that of a long loop minus that of a short one, divided by the difference in
products; the table's times are medians of interleaved loops.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxdml as dml
from benchmarks.machine import environment, name_of
from benchmarks.timing import in_turns

RESULTS = Path(__file__).parent / "results"
SHAPES = ((1, 4096, 4096), (64, 1024, 1024), (128, 768, 3072), (1024, 1024, 1024), (2048, 1024, 1024),
          (4096, 4096, 4096), (8192, 8192, 8192), (64, 64, 200704), (64, 576, 3136), (64, 576, 200704),
          (256, 2304, 196), (256, 2304, 12544), (512, 4608, 49))  # fmt: skip
SHORT, LONG, RUNS = 1, 41, 15

Product = Callable[[jax.Array, jax.Array], jax.Array]


def exact(a: jax.Array, b: jax.Array) -> jax.Array:
    return dml.matrix_multiply_integer(a, None, b, None)


FORMS: dict[str, tuple[Product, Any]] = {
    "jaxdml": (exact, jnp.int8),
    "lax.dot, int8": (partial(jnp.matmul, preferred_element_type=jnp.int32), jnp.int8),
    "lax.dot, bfloat16": (partial(jnp.matmul, preferred_element_type=jnp.float32), jnp.bfloat16),
}


@partial(jax.jit, static_argnums=(0, 3))
def loop(product: Product, a: jax.Array, b: jax.Array, count: int) -> jax.Array:
    def step(_: Any, a: jax.Array) -> jax.Array:
        result = lax.optimization_barrier(product(a, b))  # forces the whole product, though one number is used
        return lax.dynamic_update_slice(a, result[:1, :1].astype(a.dtype), (0, 0))

    return lax.fori_loop(0, count, step, a)


def microseconds(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    sides: dict[str, Callable[[int], Any]] = {}
    for name, (product, dtype) in FORMS.items():
        operands = jnp.asarray(a, dtype), jnp.asarray(b, dtype)
        for count in (SHORT, LONG):
            sides[f"{name} {count}"] = lambda _, p=product, o=operands, c=count: loop(p, *o, c)
    seconds = in_turns(sides, RUNS)
    return {name: (seconds[f"{name} {LONG}"] - seconds[f"{name} {SHORT}"]) / (LONG - SHORT) * 1e6 for name in FORMS}


def row(shape: tuple[int, int, int]) -> dict[str, Any]:
    m, k, n = shape
    rng = np.random.default_rng(m * k + n)
    a, b = rng.integers(-128, 128, (m, k), np.int8), rng.integers(-128, 128, (k, n), np.int8)
    right = a[:64].astype(np.float64) @ b[:, :4096].astype(np.float64)  # float64 holds these sums
    wrong = [
        name
        for name, (product, dtype) in FORMS.items()
        if (np.asarray(jax.jit(product)(jnp.asarray(a, dtype), jnp.asarray(b, dtype)))[:64, :4096] != right).any()
    ]
    return {"shape": f"{m} x {k} x {n}", "wrong": wrong, **microseconds(a, b)}


HEAD = f"| M x K x N | {' | '.join(FORMS)} |\n| --- |{' --- |' * len(FORMS)}"


def text_of(row: dict[str, Any]) -> str:
    times = (f"{row[name]:.0f}{' †' * (name in row['wrong'])}" for name in FORMS)
    return f"| {row['shape']} | {' | '.join(times)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for the JSON")
    parser.add_argument("--quick", action="store_true", help="products of fewer than 2**31 multiplications")
    options = parser.parse_args()
    device = jax.devices()[0]
    about = environment(device)
    print(HEAD, flush=True)
    rows = []
    for shape in SHAPES:
        if options.quick and np.prod(shape, dtype=np.int64) >= 2**31:
            continue
        rows.append(row(shape))
        print(text_of(rows[-1]), flush=True)
    if not options.quick:
        path = options.output / f"products_{name_of(device, about['instructions'])}.json"
        path.write_text(json.dumps({"environment": about, "products": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
