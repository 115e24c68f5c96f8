"""Overheads of native kernels and of XLA's: preparing weights, their memory, importing, tracing and calling."""

import itertools
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxdml as dml
from benchmarks.timing import in_turns

KERNELS = ("native", "xla") if dml.kernels().startswith("native") else ("xla",)
SCALE, ZERO = jnp.float32(0.5), jnp.uint8(3)
Times = dict[str, dict[str, float]]


def weights() -> dict[str, tuple[Any, jax.Array]]:
    """The weights to prepare, by name, and the functions that prepare them."""
    rng = np.random.default_rng(0)
    filter = jnp.asarray(rng.integers(-128, 128, (512, 512, 3, 3)), jnp.int8)
    matrix = jnp.asarray(rng.integers(-128, 128, (1024, 1024)), jnp.int8)
    return {
        "prepare a 512 x 512 x 3 x 3 filter": (dml.prepare_convolution_filter, filter),
        "prepare a 1024 x 1024 matrix": (dml.prepare_matrix_multiply_b, matrix),
    }


def on_each(function: Callable[[int], Any]) -> dict[str, Callable[[int], Any]]:
    """The function on each set of kernels."""

    def on(kernels: str) -> Callable[[int], Any]:
        def side(run: int) -> Any:
            with dml.use_kernels(kernels):
                return function(run)

        return side

    return {kernels: on(kernels) for kernels in KERNELS}


def preparing(runs: int) -> Times:
    """Seconds to prepare weights with a function that is already compiled."""
    return {
        name: in_turns(on_each(lambda _, prepare=prepare, values=values: prepare(values)), runs)
        for name, (prepare, values) in weights().items()
    }


def prepared_bytes() -> dict[str, dict[str, int]]:
    """Bytes of the weights, and of the prepared weights with each set of kernels."""
    sizes = {}
    for name, (prepare, values) in weights().items():
        sizes[name] = {"weights": values.nbytes}
        for kernels, side in on_each(lambda _, prepare=prepare, values=values: prepare(values)).items():
            sizes[name][kernels] = sum(leaf.nbytes for leaf in jax.tree.leaves(side(0)))
    return sizes


def multiply(a: Any, b: Any) -> Any:
    return dml.quantized_linear_matrix_multiply(a, SCALE, ZERO, b, SCALE, None, SCALE, ZERO)


def convolve(x: Any, f: Any) -> Any:
    return dml.quantized_linear_convolution(x, SCALE, ZERO, f, SCALE, None, None, SCALE, ZERO)


def calling(runs: int) -> Times:
    """Seconds of compiled calls that compute next to nothing."""
    times = {}
    for name, function, x, weights in (("8 x 8 by 8 x 8", multiply, (8, 8), (8, 8)),
                                       ("3x3 8 to 8 at 4x4", convolve, (1, 8, 4, 4), (8, 8, 3, 3))):  # fmt: skip
        arguments = jnp.ones(x, jnp.uint8), jnp.ones(weights, jnp.int8)
        compiled = on_each(lambda _, function=function, arguments=arguments: _compiled(function, arguments))
        times[f"call {name}"] = in_turns({kernels: make(0) for kernels, make in compiled.items()}, 10 * runs)
    return times


def _compiled(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[int], Any]:
    program = jax.jit(function).lower(*arguments).compile()
    return lambda _: program(*arguments)


def tracing(runs: int) -> Times:
    """Seconds to trace and lower, each time with a shape that is new to both sets of kernels."""
    new = itertools.count(16)

    def lower(function: Callable[..., Any], x: tuple[int, ...], weights: tuple[int, ...]) -> None:
        arguments = jax.ShapeDtypeStruct(x, np.uint8), jax.ShapeDtypeStruct(weights, np.int8)
        jax.jit(lambda *all: function(*all)).trace(*arguments).lower()

    def product(_: int) -> None:
        size = next(new)
        lower(multiply, (size, size), (size, size))

    def convolution(_: int) -> None:
        channels = next(new)
        lower(convolve, (1, channels, 30, 30), (8, channels, 3, 3))

    both = {"trace and lower a product": product, "trace and lower a convolution": convolution}
    return {name: in_turns(on_each(function), runs) for name, function in both.items()}


def importing(runs: int = 5) -> dict[str, float]:
    """Seconds to import jaxdml after jax, as installed and as if jaxdml-cpu were not installed."""
    timed = "import time, jax; start = time.perf_counter(); import jaxdml; print(time.perf_counter() - start)"
    programs = {"as installed": timed, "without jaxdml-cpu": f"import sys; sys.modules['jaxdml_cpu'] = None; {timed}"}
    samples: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(runs):
        for name, program in programs.items():
            printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
            samples[name].append(float(printed))
    return {name: statistics.median(times) for name, times in samples.items()}


def measured(runs: int) -> dict[str, Any]:
    """All measurements, in seconds and bytes."""
    seconds = preparing(runs) | calling(runs) | tracing(runs)
    return {"seconds": seconds, "bytes": prepared_bytes(), "import": importing()}


def shown(results: dict[str, Any]) -> str:
    """A table that compares native kernels with XLA's."""
    has_both = len(KERNELS) > 1
    heading = "".join(f"{kernels:>14}" for kernels in KERNELS) + f"{'native / xla':>14}" * has_both
    lines = [dml.kernels(), f"{'':36}{heading}"]
    for name, times in results["seconds"].items():
        cells = "".join(f"{1e3 * times[kernels]:11.3f} ms" for kernels in KERNELS)
        lines.append(f"{name:36}{cells}" + (f"{times['native'] / times['xla']:14.2f}" if has_both else ""))
    for name, sizes in results["bytes"].items():
        cells = "".join(f"{sizes[kernels] / 2**20:10.2f} MiB" for kernels in KERNELS)
        raw = f", of {sizes['weights'] / 2**20:.2f} MiB of weights"
        lines.append(f"{'bytes of ' + name.removeprefix('prepare a '):36}{cells}{raw}")
    cells = ", ".join(f"{name} {1e3 * seconds:.0f} ms" for name, seconds in results["import"].items())
    return "\n".join([*lines, f"{'import jaxdml, after jax':36}{cells}"])
