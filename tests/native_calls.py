"""Calls of the operators that have native kernels, and cases as large as layers are."""

import re
from functools import partial

import jax
import numpy as np
import pytest

import jaxdml as dml
from cases import BYTES, Case, data, scale, zero_point

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
    """As layers are: Winograd's shapes more often than not, wide rows, groups, depthwise."""
    x_dtype, f_dtype, output_dtype = (BYTES[rng.integers(2)] for _ in range(3))
    kind = rng.random()
    groups = int(rng.choice([1, 1, 2, 4]))
    per_group, outputs = int(rng.integers(8, 40)), groups * int(rng.integers(6, 40))
    kernel, strides, dilations = (3, 3), (1, 1), (1, 1)
    if kind > 0.5:
        kernel = tuple(int(k) for k in rng.integers(1, 6, 2))
        strides, dilations = (tuple(int(k) for k in rng.integers(1, 4, 2)) for _ in range(2))
    if kind > 0.8:
        groups, per_group = int(rng.integers(2, 40)), 1
        outputs = groups * int(rng.integers(1, 3))
    start, end = (tuple(int(k) for k in rng.integers(0, 4, 2)) for _ in range(2))
    needed = [(k - 1) * d + 1 - s - e for k, d, s, e in zip(kernel, dilations, start, end, strict=True)]
    extent = [int(max(size, 1) + rng.integers(0, largest)) for size in needed]
    spread = 0.05 * 0.05 * 74 * 74 * np.sqrt(per_group * np.prod(kernel)) / 40
    channel = (outputs,)
    arguments = (
        data(rng, (int(rng.integers(1, 4)), groups * per_group, *extent), x_dtype),
        scale(rng, ()),
        zero_point(rng, x_dtype, ()),
        data(rng, (outputs, per_group, *kernel), f_dtype),
        scale(rng, channel),
        zero_point(rng, f_dtype, channel),
        None if rng.random() < 0.4 else rng.integers(-5000, 5000, channel).astype(np.int32),
        scale(rng, (), spread),
        zero_point(rng, output_dtype, ()),
    )
    options = {"strides": strides, "dilations": dilations, "start_padding": start, "end_padding": end}
    return Case(
        "quantized_linear_convolution", arguments, options | {"group_count": groups, "output_dtype": output_dtype}
    )


def wide_matrix_multiply(rng, largest=150) -> Case:
    a_dtype, b_dtype, output_dtype = (BYTES[rng.integers(2)] for _ in range(3))
    m, k, n = (int(size) for size in rng.integers(1, largest, 3))
    batch = (int(rng.integers(1, 4)),) if rng.random() < 0.3 else ()
    ones = (1,) * len(batch)
    spread = 0.05 * 0.05 * 74 * 74 * np.sqrt(k) / 40
    arguments = (
        data(rng, (*batch, m, k), a_dtype),
        scale(rng, (*ones, m, 1)),
        zero_point(rng, a_dtype, (*ones, m, 1)),
        data(rng, (*batch, k, n), b_dtype),
        scale(rng, (*ones, 1, n)),
        zero_point(rng, b_dtype, (*ones, 1, n)),
        scale(rng, (*ones, m, 1), spread),
        zero_point(rng, output_dtype, (*ones, m, 1)),
    )
    return Case("quantized_linear_matrix_multiply", arguments, {"output_dtype": output_dtype})


def check_wide(seed, count, largest):
    """Both operators, with raw and with prepared weights; how many outputs were compared."""
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
            np.testing.assert_array_equal(got, expected, err_msg=str((seed, number, case.options)))
            compared += expected.size
    return compared
