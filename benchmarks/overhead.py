"""python -m benchmarks.overhead: the cost of tracing, lowering and calling, compared with that of JAX's own functions.

The printed ratios are jaxdml's time over that of the other side; the library's aims for cheap calls are beside them.
Each is a ratio of medians of interleaved calls in one run. A second table compares native kernels with XLA's.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxdml as dml
from benchmarks import kernel_overhead
from benchmarks.machine import environment
from benchmarks.timing import in_turns

SCALE, ZERO = jnp.float32(0.5), jnp.uint8(3)
NUMBERS = " with Python numbers"


def convolve(x: Any, f: Any, scale: Any, zero_point: Any) -> Any:
    options = {"start_padding": 1, "end_padding": 1}
    return dml.quantized_linear_convolution(x, scale, zero_point, f, scale, None, None, scale, zero_point, **options)


def convolve_in_float(x: Any, f: Any, scale: Any, zero_point: Any) -> Any:
    """The float32 convolution of `lax`, followed by the same formula, as people write it."""
    total = lax.conv_general_dilated(x, f, (1, 1), [(1, 1), (1, 1)])
    rounded = jnp.round(total * (scale * scale / scale)) + zero_point.astype(jnp.float32)
    return jnp.clip(rounded, 0, 255).astype(jnp.uint8)


def tracing(runs: int) -> dict[str, float]:
    """Seconds to trace and lower a convolution of a new shape."""

    def new_shape(function: Any, x_dtype: Any, f_dtype: Any, offset: int) -> Callable[[int], None]:
        def side(run: int) -> None:
            channels, size = offset + run + 16, 40 + run
            x = jax.ShapeDtypeStruct((1, channels, size, size), x_dtype)
            f = jax.ShapeDtypeStruct((24, channels, 3, 3), f_dtype)
            jax.jit(lambda *all: function(*all)).trace(x, f, SCALE, ZERO).lower()

        return side

    return in_turns(
        {
            "jaxdml": new_shape(convolve, np.uint8, np.int8, 0),
            "float32": new_shape(convolve_in_float, np.float32, np.float32, 0),
        },
        runs,
    )


def with_numbers(x: jax.Array, v: jax.Array) -> dict[str, Callable[[int], Any]]:
    """An eager call of each operator on tiny arrays, with Python numbers as scales and zero points.

    On a CPU, JAX hands a program of 1,000 operations to another thread (even an addition of 1,000 elements), which
    takes longer than a tiny program. The images are small enough to stay below this limit.
    """
    image, filter, signed = jnp.ones((1, 1, 3, 3), jnp.uint8), jnp.ones((1, 1, 2, 2), jnp.int8), x.astype(jnp.int8)
    return {
        "dequantize": lambda _: dml.element_wise_dequantize_linear(x, 0.5, 3),
        "quantize": lambda _: dml.element_wise_quantize_linear(v, 0.5, 3),
        "add": lambda _: dml.element_wise_quantized_linear_add(x, 0.5, 3, x, 0.25, 4, 0.1, 5),
        "matrix multiply": lambda _: dml.quantized_linear_matrix_multiply(x, 0.5, 3, x, 0.25, 4, 0.1, 5),
        "convolution": lambda _: convolve(image, filter, 0.5, 3),
        "average pooling": lambda _: dml.quantized_linear_average_pooling(image, 0.5, 3, 0.25, 4, window_size=2),
        "integer product": lambda _: dml.matrix_multiply_integer(x, 3, signed, 1),
        "integer product to float": lambda _: dml.matrix_multiply_integer_to_float(x, 0.5, 3, signed, 0.25, 1),
        "integer convolution": lambda _: dml.convolution_integer(image, 3, filter, 1),
        "dynamic quantize": lambda _: dml.dynamic_quantize_linear(v),
        "quantize by blocks": lambda _: dml.quantize(v, 0.5, 3),
        "dequantize by blocks": lambda _: dml.dequantize(x, 0.5, 3),
    }


def calling(runs: int) -> dict[str, float]:
    """Seconds of eager calls on tiny arrays."""
    x, v = jnp.ones((4, 4), jnp.uint8), jnp.ones((4, 4), jnp.float32)
    image, filter = jnp.ones((1, 2, 5, 5), jnp.uint8), jnp.ones((3, 2, 3, 3), jnp.int8)
    pair = (x, SCALE, ZERO, x, SCALE, ZERO, SCALE, ZERO)

    def there_and_back(_: int) -> Any:
        quantized = dml.element_wise_quantize_linear(v, SCALE, ZERO)
        return dml.element_wise_dequantize_linear(quantized, SCALE, ZERO)

    calls = {
        "jnp.add": lambda _: jnp.add(v, v),
        "dequantize": lambda _: dml.element_wise_dequantize_linear(x, SCALE, ZERO),
        "quantize": lambda _: dml.element_wise_quantize_linear(v, SCALE, ZERO),
        "add": lambda _: dml.element_wise_quantized_linear_add(*pair),
        "matrix multiply": lambda _: dml.quantized_linear_matrix_multiply(*pair),
        "convolution": lambda _: convolve(image, filter, SCALE, ZERO),
        "quantize and dequantize": there_and_back,
        "fake_quantize": lambda _: dml.fake_quantize(v, SCALE, ZERO),
    }
    numbers = {f"{name}{NUMBERS}": side for name, side in with_numbers(x, v).items()}
    return in_turns(calls | numbers, 10 * runs)


def debugging(runs: int) -> dict[str, float]:
    """Seconds of a network of 20 layers under `jax.disable_jit()`, where every operation is a separate call."""
    x, f = jnp.ones((1, 8, 8, 8), jnp.uint8), jnp.ones((8, 8, 3, 3), jnp.int8)

    def network(layer: Any, x: Any, f: Any) -> Callable[[int], Any]:
        def side(_: int) -> Any:
            y = x
            with jax.disable_jit():
                for _ in range(20):
                    y = layer(y, f)
            return y

        return side

    def in_float(x: Any, f: Any) -> Any:
        return jnp.maximum(lax.conv_general_dilated(x, f, (1, 1), [(1, 1), (1, 1)]), 0)

    floats = x.astype(jnp.float32), f.astype(jnp.float32)
    ours = network(lambda x, f: convolve(x, f, SCALE, ZERO), x, f)
    return in_turns({"jaxdml": ours, "float32": network(in_float, *floats)}, max(runs // 3, 3))


def ratios(trace: dict[str, float], call: dict[str, float], debug: dict[str, float]) -> dict[str, tuple[float, float]]:
    """The aims by name: the measured ratio, and its upper limit."""
    add = call["jnp.add"]
    aims = {"trace and lower a new convolution, over float32": (trace["jaxdml"] / trace["float32"], 2.5)}
    for name, at_most in (("dequantize", 4), ("quantize", 4), ("add", 4), ("matrix multiply", 6), ("convolution", 6)):
        aims[f"call {name}, over jnp.add"] = (call[name] / add, at_most)
    for name in (name.removesuffix(NUMBERS) for name in call if name.endswith(NUMBERS)):
        aims[f"call {name}{NUMBERS}, over jnp.add"] = (call[name + NUMBERS] / add, 4)
    there_and_back = call["fake_quantize"] / call["quantize and dequantize"]
    aims["call fake_quantize, over quantize and dequantize"] = (there_and_back, 2)
    aims["20 layers under disable_jit, over float32"] = (debug["jaxdml"] / debug["float32"], 5)
    return aims


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--output", type=Path, help="a JSON file to write")
    arguments = parser.parse_args()
    trace, call, debug = tracing(arguments.runs), calling(arguments.runs), debugging(arguments.runs)
    print(f"{'trace and lower':48}" + ", ".join(f"{name} {1e3 * t:.1f} ms" for name, t in trace.items()))
    print(f"{'20 layers under disable_jit':48}" + ", ".join(f"{name} {1e3 * t:.1f} ms" for name, t in debug.items()))
    for name, seconds in call.items():
        print(f"{name:48}{1e6 * seconds:.0f} us")
    print(f"\n{'':64}{'ratio':>7}{'at most':>9}")
    for name, (ratio, at_most) in ratios(trace, call, debug).items():
        print(f"{name:64}{ratio:7.2f}{at_most:>9}")
    kernels = kernel_overhead.measured(arguments.runs)
    print("\n" + kernel_overhead.shown(kernels))
    if arguments.output:
        seconds = {"tracing": trace, "calling": call, "debugging": debug}
        results = {"environment": environment(), "seconds": seconds, "kernels": kernels}
        arguments.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
