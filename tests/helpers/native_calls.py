"""Calls of the operators that have native kernels, and cases of the size of real layers."""

import re
from functools import partial

import jax
import numpy as np
import pytest

import jaxdml as dml
from helpers.cases import Case, convolution_of, matrix_multiply_of, types
from helpers.compare import assert_same_bits

needs_native = pytest.mark.skipif(
    not dml.kernels().startswith("native"), reason=f"there are no native kernels: {dml.kernels()}"
)
RNG = np.random.default_rng(0)
A, B = RNG.integers(0, 256, (5, 64), np.uint8), RNG.integers(-128, 128, (64, 20), np.int8)
X, F = RNG.integers(0, 256, (2, 16, 9, 9), np.uint8), RNG.integers(-128, 128, (24, 16, 3, 3), np.int8)


def multiply(a, b, module=dml):
    return module.quantized_linear_matrix_multiply(
        a, np.float32(0.1), np.uint8(3), b, np.float32(0.1), None, np.float32(20), np.uint8(5)
    )


def convolve(x, f, module=dml, **options):
    parameters = (np.float32(0.1), np.uint8(3), f, np.float32(0.1), None, None, np.float32(50), np.uint8(5))
    return module.quantized_linear_convolution(x, *parameters, **{"start_padding": 1, "end_padding": 1} | options)


def add(a, b, module=dml):
    parameters = np.float32(0.1), np.uint8(3)
    return module.element_wise_quantized_linear_add(a, *parameters, b, *parameters, *parameters)


CALLS = {"matmul": (multiply, A, B), "convolve": (convolve, X, F), "add": (add, A, A[::-1].copy())}


def native_calls(function, *arguments):
    """The native kernels that a compiled function calls."""
    hlo = jax.jit(function).lower(*arguments).compile().as_text()
    return re.findall(r'custom_call_target="jaxdml_cpu_(\w+)"', hlo)


def wide_convolution(rng, largest=30) -> Case:
    """A convolution like those of real layers: mostly Winograd's shapes, wide rows, groups, depthwise."""
    dtypes, kind = types(rng), rng.random()
    groups = int(rng.choice([1, 1, 2, 4]))
    per_group, outputs = int(rng.integers(8, 40)), groups * int(rng.integers(6, 40))
    kernel, strides, dilations = (3, 3), (1, 1), (1, 1)
    if kind > 0.5:
        kernel, strides, dilations = rng.integers(1, 6, 2), rng.integers(1, 4, 2), rng.integers(1, 4, 2)
    if kind > 0.8:
        groups, per_group = int(rng.integers(2, 40)), 1
        outputs = groups * int(rng.integers(1, 3))
    start, end = rng.integers(0, 4, 2), rng.integers(0, 4, 2)
    needed = [(k - 1) * d + 1 - s - e for k, d, s, e in zip(kernel, dilations, start, end, strict=True)]
    extent = [int(max(size, 1) + rng.integers(0, largest)) for size in needed]
    options = {"strides": strides, "dilations": dilations, "start_padding": start, "end_padding": end}
    options |= {"group_count": groups}
    return convolution_of(rng, dtypes, extent, (outputs, per_group, *kernel), (outputs,), options)


def wide_matrix_multiply(rng, largest=150) -> Case:
    dtypes = types(rng)
    sizes = [int(size) for size in rng.integers(1, largest, 3)]
    batch = (int(rng.integers(1, 4)),) if rng.random() < 0.3 else ()
    return matrix_multiply_of(rng, dtypes, batch, sizes)


def check_wide(seed, count, largest):
    """Compares both operators, with raw and with prepared weights; returns how many outputs were compared."""
    rng, compared = np.random.default_rng(seed), 0
    for number in range(count):
        case = (wide_convolution, wide_matrix_multiply)[number % 2](rng, largest * (1 + 4 * (number % 2)))
        expected = case.expected
        weights = case.arguments[3]
        prepare = dml.prepare_matrix_multiply_b
        if number % 2 == 0:
            prepare = partial(dml.prepare_convolution_filter, group_count=case.options["group_count"])
        for third in (weights, prepare(weights)):
            got = case.call(*case.arguments[:3], third, *case.arguments[4:])
            assert_same_bits(got, expected, (seed, number, case.options))
            compared += expected.size
    return compared
