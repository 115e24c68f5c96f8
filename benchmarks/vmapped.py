"""Cases of vmap over contractions, against a loop of calls."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxdml as dml
from benchmarks.case import LOOP, Case, data, ours
from benchmarks.contractions import X_SCALE, X_ZERO, ZERO, output_scale
from jaxdml import reference


def against_a_loop(name: str, call: Any, xs: np.ndarray, weights: np.ndarray, prepare: Any, at_most: Any) -> Case:
    """vmap over xs, prepared weights or both, against a loop of the compiled call; an axis of size 1 is not mapped."""
    size = max(len(xs), len(weights))
    axes = tuple(0 if len(values) == size else None for values in (xs, weights))

    def each(values: Any) -> list[Any]:
        return [values[i % len(values)] for i in range(size)]

    def arguments() -> tuple[Any, Any]:
        prepared = [prepare(w) for w in weights]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *prepared) if axes[1] == 0 else prepared[0]
        return jnp.asarray(xs if axes[0] == 0 else xs[0]), stacked

    pairs = list(zip(each([jnp.asarray(x) for x in xs]), each([prepare(w) for w in weights]), strict=True))
    one = jax.jit(call).lower(*pairs[0]).compile()

    def expected() -> np.ndarray:
        return np.stack([call(x, w, reference) for x, w in zip(each(xs), each(weights), strict=True)])

    calls = {LOOP: lambda: jax.block_until_ready([one(*pair) for pair in pairs])}
    return Case("vmap", name, expected, ours(jax.vmap(call, axes), prepared=arguments), calls, at_most)


def vmap_matrix_multiply(over: str, size: int, m: int, k: int, n: int, at_most: float | None = None) -> Case:
    """vmap over a, b or pairs of them."""
    rng = np.random.default_rng([size, m, k, n])
    a = data(rng, (1 if over == "b" else size, m, k), np.uint8)
    b = data(rng, (1 if over == "a" else size, k, n), np.int8)
    rest = (np.float32(0.01), None, output_scale(k), ZERO)

    def multiply(a: Any, b: Any, module: Any = dml) -> Any:
        return module.quantized_linear_matrix_multiply(a, X_SCALE, X_ZERO, b, *rest)

    return against_a_loop(f"{size} {over}, {m} x {k} x {n}", multiply, a, b, dml.prepare_matrix_multiply_b, at_most)


def vmap_convolution(
    over: str, size: int, batch: int, channels: int, extent: int, outputs: int, *, group_count: int = 1,
    at_most: float | None = None,
) -> Case:  # fmt: skip
    """vmap over inputs, filters or pairs of them."""
    rng = np.random.default_rng([size, batch, channels, extent, outputs])
    xs = data(rng, (1 if over == "filters" else size, batch, channels, extent, extent), np.uint8)
    fs = data(rng, (1 if over == "inputs" else size, outputs, channels // group_count, 3, 3), np.int8)
    rest = (np.float32(0.01), None, None, output_scale(9 * channels), ZERO)

    def convolve(x: Any, f: Any, module: Any = dml) -> Any:
        return module.quantized_linear_convolution(x, X_SCALE, X_ZERO, f, *rest, group_count=group_count)

    note = f", {group_count} groups" * (group_count > 1)
    name = f"{size} {over}, 3x3 {channels} to {outputs} at {extent}x{extent}, batch {batch}{note}"
    prepare = partial(dml.prepare_convolution_filter, group_count=group_count)
    return against_a_loop(name, convolve, xs, fs, prepare, at_most)
