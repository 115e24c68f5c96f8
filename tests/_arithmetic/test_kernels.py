"""On a CPU the compiled programs use XLA's int8 kernels, and little memory."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.cases import BYTES
from helpers.marks import on_xla_alone
from jaxdml._arithmetic import int32
from jaxdml._arithmetic.layouts import Filter

pytestmark = [
    on_xla_alone,
    pytest.mark.skipif(
        jax.default_backend() != "cpu", reason="XLA:CPU's programs have these kernels; other backends have their own"
    ),
]


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


@pytest.mark.sampled(4)
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("a_dtype", BYTES)
@pytest.mark.parametrize("b_dtype", BYTES)
@pytest.mark.parametrize("sizes", [(128, 96, 64), (1, 256, 256), (256, 256, 1), (2, 128, 64)], ids=str)
def test_matrix_multiply_uses_the_int8_kernel(sizes, a_dtype, b_dtype, zero_points):
    hlo = multiply(*sizes, a_dtype, b_dtype, zero_points)
    assert "__ynn_fusion" in hlo
    assert not slow_contractions(hlo)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("channels", "size", "out", "kernel", "options", "contractions"),
    [
        (64, 14, 64, 3, {"start_padding": 1, "end_padding": 1}, {"convolution": 1}),
        (64, 14, 32, 1, {}, {"dot": 1}),
        (3, 32, 16, 7, {"strides": 2, "start_padding": 3, "end_padding": 3}, {"dot": 1}),
        (32, 14, 32, 3, {"dilations": 2}, {"convolution": 1}),
        (64, 14, 128, 3, {"group_count": 4}, {"dot": 1}),
        (64, 14, 64, 3, {"group_count": 4}, {"dot": 1}),
        (512, 7, 512, 3, {}, {"dot": 1}),
        (24, 14, 24, 3, {"group_count": 24, "start_padding": 1, "end_padding": 1}, {}),
        (24, 14, 48, 3, {"group_count": 24, "strides": 2}, {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("x_dtype", BYTES)
def test_convolution_uses_the_int8_kernel(channels, size, out, kernel, options, contractions, x_dtype):
    x = jax.ShapeDtypeStruct((2, channels, size, size), x_dtype)
    f = jax.ShapeDtypeStruct((out, channels // options.get("group_count", 1), kernel, kernel), jnp.int8)

    def convolve(x, f):
        return dml.quantized_linear_convolution(
            x, 0.1, np.asarray(3, x_dtype), f, 0.1, None, None, 1.0, None, **options
        )

    hlo = compiled(convolve, x, f)
    sums_of_filter = 1  # as a product with ones
    assert hlo.count(" convolution(") == contractions.get("convolution", 0)
    assert hlo.count(" dot(") == contractions.get("dot", 0) + sums_of_filter
    assert hlo.count('"__ynn_fusion"') == sum(contractions.values()) + sums_of_filter


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("group_count", [1, 2])
@pytest.mark.parametrize(("size", "kernel"), [((40,), (3,)), ((9, 9), (3, 3)), ((9, 9), (1, 1))], ids=str)
def test_zero_points_and_one_dimension_keep_the_kernel(size, kernel, group_count, is_prepared):
    """uint8 filters with a zero point for each channel, prepared or not, with and without vmap over all arguments."""
    x = jax.ShapeDtypeStruct((3, 2, 32 * group_count, *size), np.uint8)
    f = np.ones((3, 24 * group_count, 32, *kernel), np.uint8)
    if is_prepared:
        f = jax.vmap(lambda f: dml.prepare_convolution_filter(f, group_count=group_count))(f)
    zero_point = np.arange(24 * group_count).astype(np.uint8)

    def convolve(x, f):
        return dml.quantized_linear_convolution(x, 0.1, 3, f, 0.1, zero_point, None, 1.0, None, group_count=group_count)

    hlo = compiled(jax.vmap(convolve), x, f)
    assert "feature_group_count" not in hlo
    assert hlo.count('"__ynn_fusion"') == hlo.count(" convolution(") + hlo.count(" dot(") > 0
    shared = compiled(jax.vmap(convolve, (None, 0)), jax.ShapeDtypeStruct(x.shape[1:], x.dtype), f)
    assert " while(" not in shared  # filters of the same input become one product
    assert shared.count('"__ynn_fusion"') == shared.count(" dot(") > 0
    assert " convolution(" not in shared
    one = compiled(convolve, *jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), (x, f)))
    assert one.count('"__ynn_fusion"') == one.count(" convolution(") + one.count(" dot(") > 0


def test_a_slow_contraction_would_be_seen():
    x = jnp.zeros((1, 64, 14, 14), jnp.int8)
    f = Filter(jnp.zeros((1, 64, 64, 3, 3), jnp.int8), "OIHW")
    hlo = compiled(lambda x, f: int32.conv(x, f, (1, 1), (1, 1)), x, f)
    assert slow_contractions(hlo)
    assert "__ynn_fusion" not in hlo


@pytest.mark.sampled(2)
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("dtype", BYTES)
def test_a_zero_point_costs_a_sum_and_none_nothing(dtype, zero_points):
    """The sums of A and of B are products with ones; int8 without zero points needs no sums."""
    a = jax.ShapeDtypeStruct((64, 64), dtype)
    b = dml.prepare_matrix_multiply_b(np.zeros((64, 64), dtype))
    z = np.asarray(3, dtype) if zero_points else None
    products = [
        compiled(lambda a, b: dml.quantized_linear_matrix_multiply(a, 0.1, z, b, 0.1, z, 1.0, None), a, b).count(
            " dot("
        )
        for b in (b, jax.ShapeDtypeStruct(b.shape, b.dtype))
    ]
    needed = zero_points or dtype == np.uint8
    assert products == [1 + 2 * needed] * 2
    assert multiply(64, 64, 64, dtype, dtype, zero_points).count(" dot(") == products[1]


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize(("channels", "size"), [(64, 56), (128, 28), (256, 14)], ids=str)
def test_a_convolution_needs_little_memory(channels, size, batch):
    """At most twice the padded input and the int32 sums, where im2col would need the input nine times."""
    x = jax.ShapeDtypeStruct((batch, channels, size, size), np.uint8)
    f = dml.prepare_convolution_filter(np.zeros((channels, channels, 3, 3), np.int8))

    def convolve(x, f):
        return dml.quantized_linear_convolution(x, 0.1, 3, f, 0.1, None, None, 1.0, 5, start_padding=1, end_padding=1)

    used = jax.jit(convolve).lower(x, f).compile().memory_analysis().temp_size_in_bytes
    assert 0 < used <= 2 * batch * channels * (size + 2) ** 2 + 4 * batch * channels * size**2


def test_constant_weights_are_not_repacked_when_compiling():
    """XLA's interpreter would transpose and sum them, which takes seconds for each."""
    b, f = (np.arange(np.prod(sizes)).astype(np.int8).reshape(sizes) for sizes in ((64, 64), (64, 32, 3, 3)))

    def both(a, x):
        y = dml.quantized_linear_matrix_multiply(a, 0.1, 3, b, 0.1, None, 1.0, None)
        return y, dml.quantized_linear_convolution(x, 0.1, 3, f, 0.1, None, None, 1.0, None)

    hlo = compiled(both, jax.ShapeDtypeStruct((64, 64), np.uint8), jax.ShapeDtypeStruct((1, 32, 9, 9), np.uint8))
    assert hlo.count(" dot(") == 3  # the product, and the sums of b and of f
    constants = re.findall(r" = (s8\[[\d,]*\])\S* constant\(", hlo)
    assert {"s8[64,64]", "s8[64,32,3,3]"} <= set(constants)
    assert "s8[3,3,32,64]" not in constants
