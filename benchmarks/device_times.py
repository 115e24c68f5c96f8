"""python -m benchmarks.device_times: times of products and exact floats on a GPU, without the overhead of calls.

A loop on the device repeats a function. Each repetition waits for the previous one, because one number of its first
argument comes from that result. The time of a function is that of a long loop minus that of a short one, divided by the
difference in repetitions; the tables' times are medians of interleaved loops.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxdml as dml
from benchmarks import exact_costs
from benchmarks.machine import environment, name_of
from benchmarks.timing import in_turns
from jaxdml import reference

RESULTS = Path(__file__).parent / "results"
PRODUCTS = ((1, 4096, 4096), (64, 1024, 1024), (128, 768, 3072), (1024, 1024, 1024), (2048, 1024, 1024),
            (4096, 4096, 4096), (8192, 8192, 8192), (64, 64, 200704), (64, 576, 3136), (64, 576, 200704),
            (256, 2304, 196), (256, 2304, 12544), (512, 4608, 49))  # fmt: skip
BLOCKS = ((1, 4096, 4096), (16, 4096, 4096), (512, 4096, 4096))
BLOCK = 32
SHORT, LONG, RUNS = 1, 41, 15

Function = Callable[..., Any]
Row = dict[str, Any]


@partial(jax.jit, static_argnums=(0, 3))
def loop(function: Function, first: jax.Array, others: tuple[Any, ...], count: int) -> jax.Array:
    def step(_: Any, first: jax.Array) -> jax.Array:
        result = lax.optimization_barrier(function(first, *others))  # forces all of it, though one number is used
        number = result.ravel()[:1].astype(first.dtype)
        return lax.dynamic_update_slice(first, number.reshape((1,) * first.ndim), (0,) * first.ndim)

    return lax.fori_loop(0, count, step, first)


def microseconds(forms: dict[str, tuple[Function, tuple[Any, ...]]]) -> dict[str, float]:
    """The time of each function with its arguments."""
    sides: dict[str, Callable[[int], Any]] = {}
    for name, (function, (first, *others)) in forms.items():
        for count in (SHORT, LONG):
            sides[f"{name} {count}"] = partial(_run, function, first, tuple(others), count)
    seconds = in_turns(sides, RUNS)
    return {name: (seconds[f"{name} {LONG}"] - seconds[f"{name} {SHORT}"]) / (LONG - SHORT) * 1e6 for name in forms}


def _run(function: Function, first: jax.Array, others: tuple[Any, ...], count: int, _: int) -> jax.Array:
    return loop(function, first, others, count)


# Tables --------------------------------------------------------------------------------------------------------------


def exact_product(a: jax.Array, b: jax.Array) -> jax.Array:
    return dml.matrix_multiply_integer(a, None, b, None)


PRODUCT_FORMS: dict[str, tuple[Function, Any]] = {
    "jaxdml": (exact_product, jnp.int8),
    "lax.dot, int8": (partial(jnp.matmul, preferred_element_type=jnp.int32), jnp.int8),
    "lax.dot, bfloat16": (partial(jnp.matmul, preferred_element_type=jnp.float32), jnp.bfloat16),
}


def products(quick: bool) -> Iterator[Row]:
    """int8 products. "wrong" names the forms whose first rows and columns differ from NumPy's."""
    for m, k, n in ((8, 16, 24),) if quick else PRODUCTS:
        rng = np.random.default_rng(m * k + n)
        a, b = rng.integers(-128, 128, (m, k), np.int8), rng.integers(-128, 128, (k, n), np.int8)
        right = a[:64].astype(np.float64) @ b[:, :4096].astype(np.float64)  # float64 holds these sums
        forms = {
            name: (product, (jnp.asarray(a, dtype), jnp.asarray(b, dtype)))
            for name, (product, dtype) in PRODUCT_FORMS.items()
        }
        results = {name: jax.jit(product)(*operands) for name, (product, operands) in forms.items()}
        wrong = [name for name, y in results.items() if (np.asarray(y)[:64, :4096] != right).any()]
        yield {"shape": f"{m} x {k} x {n}", "wrong": wrong, **microseconds(forms)}


def blocks(quick: bool) -> Iterator[Row]:
    """Products of float32 and 4-bit weights by blocks of 32, beside products of floats by the dequantized weights."""
    for m, k, n in ((2, 64, 24),) if quick else BLOCKS:
        rng = np.random.default_rng(m)
        a, b = jnp.asarray(rng.standard_normal((m, k), np.float32)), rng.integers(0, 16, (n, k)).astype(jnp.uint4)
        scale = rng.uniform(0.005, 0.015, (n, k // BLOCK)).astype(np.float32)
        weights = jnp.asarray((b.astype(np.float32) - 8) * np.repeat(scale, BLOCK, 1)).T
        prepared = dml.prepare_matrix_multiply_blocks(jnp.asarray(b), jnp.asarray(scale))
        forms: dict[str, tuple[Function, tuple[Any, ...]]] = {}
        for precision in ("int8", "int15", "int22"):
            multiply = partial(dml.matrix_multiply_blocks, precision=precision)
            forms[f"jaxdml, {precision}"] = multiply, (a, prepared)
            right = reference.matrix_multiply_blocks(np.asarray(a)[:4], b[:64], scale[:64], precision=precision)
            np.testing.assert_array_equal(np.asarray(jax.jit(multiply)(a, prepared))[:4, :64], right)
        forms["lax.dot, float32"] = partial(jnp.matmul, precision="highest"), (a, weights)
        forms["lax.dot, bfloat16"] = jnp.matmul, (a.astype(jnp.bfloat16), weights.astype(jnp.bfloat16))
        yield {"shape": f"{m} x {k} x {n}", **microseconds(forms)}


def floats(quick: bool) -> Iterator[Row]:
    """The float functions of a transformer with XLA's floats and with exact ones.

    A block's functions are timed one by one: the loop changes the first argument alone, and XLA computes whatever does
    not depend on this argument once, before the loop.
    """
    for name, function, shapes in exact_costs.cases(batches=(8,)):
        if name == exact_costs.BLOCK_OF_FLOATS or (quick and name != "x * x + x"):
            continue
        rng = np.random.default_rng(0)
        arguments = tuple(jnp.asarray((rng.standard_normal(shape) * 2).astype(np.float32)) for shape in shapes)
        forms = {"XLA's floats": (function, arguments), "exact": (dml.exact(function), arguments)}
        yield {"shape": f"{name}, {' x '.join(map(str, shapes[0]))}", **microseconds(forms)}


TABLES: dict[str, Callable[[bool], Iterator[Row]]] = {"products": products, "blocks": blocks, "floats": floats}


def shown(name: str, rows: list[Row]) -> str:
    """A table in Markdown: microseconds, and † beside the time of a wrong result."""
    forms = [form for form in rows[0] if form not in ("shape", "wrong")]
    head = {"products": "M x K x N", "blocks": "M x K x N", "floats": "function"}[name]
    lines = [f"| {head} | {' | '.join(forms)} |", f"| --- |{' --- |' * len(forms)}"]
    for row in rows:
        times = (f"{row[form]:.{int(row[form] < 10)}f}{' †' * (form in row.get('wrong', ()))}" for form in forms)
        lines.append(f"| {row['shape']} | {' | '.join(times)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", help=f"some of {', '.join(TABLES)}; all by default")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for the JSON")
    parser.add_argument("--quick", action="store_true", help="one small case of each table, and no JSON")
    options = parser.parse_args()
    if unknown := set(options.tables) - set(TABLES):
        parser.error(f"there is no {', '.join(sorted(unknown))}; tables are {', '.join(TABLES)}")
    device = jax.devices()[0]
    about = environment(device)
    for name in options.tables or TABLES:
        rows = []
        for row in TABLES[name](options.quick):
            rows.append(row)
            print(row, flush=True)
        print(shown(name, rows), flush=True)
        if not options.quick:
            path = options.output / f"{name}_{name_of(device, about['instructions'])}.json"
            path.write_text(json.dumps({"environment": about, name: rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
