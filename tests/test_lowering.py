"""The lowerings: each gives the same integers, and on a CPU the compiled program uses XLA's int8 kernels."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from cases import BYTES, CONVOLUTION, MATRIX_MULTIPLY
from jaxdml._lowering import canonical, cpu
from jaxdml._shapes import aligned, per_channel

on_cpu = pytest.mark.skipif(jax.default_backend() != "cpu", reason="looks at programs compiled for a CPU")


def name(chunk):
    return chunk[0].operator


def dot_arguments(case):
    a, _, a_zero_point, b, _, b_zero_point, _, _ = case.arguments
    a_zero_point, b_zero_point = (
        None if z is None else z.reshape(aligned(z.shape, a.ndim)) for z in (a_zero_point, b_zero_point)
    )
    return a, a_zero_point, b, b_zero_point


def conv_arguments(case):
    x, _, x_zero_point, f, _, f_zero_point = case.arguments[:6]
    x_zero_point = None if x_zero_point is None else x_zero_point.reshape((1,) * x.ndim)
    if f_zero_point is not None:
        f_zero_point = np.moveaxis(f_zero_point.reshape(per_channel(f_zero_point.shape, x.ndim, f.shape[0])), 1, 0)
    padding = tuple(zip(case.options["start_padding"], case.options["end_padding"], strict=True))
    options = {name: case.options[name] for name in ("strides", "dilations", "group_count")}
    return (x, x_zero_point, f, f_zero_point), options | {"padding": padding}


@pytest.mark.parametrize("chunk", MATRIX_MULTIPLY[:4], ids=name)
def test_dot_lowerings_agree(chunk):
    arguments = [dot_arguments(case) for case in chunk]
    expected = jax.jit(lambda all: [canonical.dot(*one) for one in all])(arguments)
    got = jax.jit(lambda all: [cpu.dot(*one) for one in all])(arguments)
    for one, other in zip(expected, got, strict=True):
        assert one.dtype == other.dtype == jnp.int32
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("chunk", CONVOLUTION[:4], ids=name)
def test_conv_lowerings_agree(chunk):
    arguments = [conv_arguments(case) for case in chunk]

    def both(lowering):
        options = [options for _, options in arguments]
        operands = [operands for operands, _ in arguments]
        return jax.jit(lambda all: [lowering(*one, **o) for one, o in zip(all, options, strict=True)])(operands)

    for one, other in zip(both(canonical.conv), both(cpu.conv), strict=True):
        assert one.dtype == other.dtype == jnp.int32
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("value", [-128, 127])
@pytest.mark.parametrize("depth", [33_025, 33_026, 132_104, 132_105, 300_000])
def test_lowerings_agree_at_the_bound_and_beyond(value, depth):
    """int32 holds 33,025 products of 255 * 255, and 132,104 of 127 * 128: past that both wrap alike."""
    a, b = np.full((3, depth), value, np.int8), np.full((depth, 2), -128, np.int8)
    for zero_points in ((None, None), (np.full((1, 1), -value - 1, np.int8), np.full((1, 1), 127, np.int8))):
        arguments = (a, zero_points[0], b, zero_points[1])
        np.testing.assert_array_equal(jax.jit(cpu.dot)(*arguments), jax.jit(canonical.dot)(*arguments))


def compiled(function, *arguments):
    return jax.jit(function).lower(*arguments).compile().as_text()


def slow_contractions(hlo):
    """Products and convolutions that XLA:CPU runs as scalar loops: those whose operands it has widened to int32."""
    types = dict(re.findall(r"%?([\w.-]+) = (\w+)\[", hlo))
    types |= dict(re.findall(r"([\w.-]+): (\w+)\[", hlo))
    contractions = re.findall(r" (?:dot|convolution)\(%?([\w.-]+), %?([\w.-]+)\)", hlo)
    return [operands for operands in contractions if {types[name] for name in operands} & {"s32", "u8"}]


def multiply(m, k, n, a_dtype, b_dtype, zero_points):
    a, b = jax.ShapeDtypeStruct((m, k), a_dtype), jax.ShapeDtypeStruct((k, n), b_dtype)
    z = [np.asarray(3, t) if zero_points else None for t in (a_dtype, b_dtype)]
    return compiled(lambda a, b: dml.quantized_linear_matrix_multiply(a, 0.1, z[0], b, 0.1, z[1], 1.0, None), a, b)


@on_cpu
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("a_dtype", BYTES)
@pytest.mark.parametrize("b_dtype", BYTES)
@pytest.mark.parametrize("sizes", [(128, 96, 64), (1, 256, 256), (256, 256, 1), (2, 128, 64)], ids=str)
def test_matrix_multiply_uses_the_int8_kernel(sizes, a_dtype, b_dtype, zero_points):
    hlo = multiply(*sizes, a_dtype, b_dtype, zero_points)
    assert "__ynn_fusion" in hlo
    assert not slow_contractions(hlo)


@on_cpu
@pytest.mark.parametrize(
    ("channels", "size", "out", "kernel", "options"),
    [
        (64, 14, 64, 3, {"start_padding": 1, "end_padding": 1}),
        (64, 14, 32, 1, {}),
        (3, 32, 16, 7, {"strides": 2, "start_padding": 3, "end_padding": 3}),
        (32, 14, 32, 3, {"dilations": 2}),
        (64, 14, 64, 3, {"group_count": 4}),
        (24, 14, 24, 3, {"group_count": 24, "start_padding": 1, "end_padding": 1}),
        (24, 14, 48, 3, {"group_count": 24, "strides": 2}),
    ],
    ids=str,
)
@pytest.mark.parametrize("x_dtype", BYTES)
def test_convolution_uses_the_int8_kernel(channels, size, out, kernel, options, x_dtype):
    groups = options.get("group_count", 1)
    x = jax.ShapeDtypeStruct((2, channels, size, size), x_dtype)
    f = jax.ShapeDtypeStruct((out, channels // groups, kernel, kernel), jnp.int8)
    hlo = compiled(
        lambda x, f: dml.quantized_linear_convolution(
            x, 0.1, np.asarray(3, x_dtype), f, 0.1, None, None, 1.0, None, **options
        ), x, f
    )  # fmt: skip
    assert ("__ynn_fusion" in hlo) == (groups != channels)  # depthwise is one loop, without a contraction
    assert not slow_contractions(hlo)


@on_cpu
def test_a_slow_contraction_would_be_seen():
    x, f = jnp.zeros((1, 64, 14, 14), jnp.int8), jnp.zeros((64, 64, 3, 3), jnp.int8)
    options = {"strides": (1, 1), "dilations": (1, 1), "padding": ((1, 1), (1, 1)), "group_count": 1}
    hlo = compiled(lambda x, f: canonical.conv(x, None, f, None, **options), x, f)
    assert slow_contractions(hlo)
    assert "__ynn_fusion" not in hlo


@on_cpu
def test_a_zero_point_of_none_costs_nothing():
    """int8 by int8 without zero points is one product: no sums of rows or columns."""
    assert " reduce(" not in multiply(64, 64, 64, np.int8, np.int8, False)
    assert multiply(64, 64, 64, np.int8, np.int8, True).count(" reduce(") == 2


@on_cpu
def test_constant_weights_are_not_added_up_when_compiling():
    b = np.zeros((64, 64), np.int8)
    hlo = compiled(
        lambda a: dml.quantized_linear_matrix_multiply(a, 0.1, 3, b, 0.1, None, 1.0, None),
        jax.ShapeDtypeStruct((64, 64), np.uint8),
    )
    assert hlo.count(" reduce(") == 1
