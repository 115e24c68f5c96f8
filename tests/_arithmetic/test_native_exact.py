"""What native kernels compute: Winograd's bound, all that layers are made of, sums of int32."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from jaxdml import reference
from jaxdml._arithmetic import native
from native_calls import A, B, F, X, check_wide, needs_native


def without_winograd(prepared):
    """Prepared weights in whose second half, which is Winograd's form alone, every bit is another."""
    packed = np.asarray(prepared.packed)
    broken = np.concatenate([packed[: packed.size // 2], ~packed[packed.size // 2 :]])
    return dataclasses.replace(prepared, packed=jnp.asarray(broken))


def winograd_flag(packed):
    return int(np.asarray(packed)[64:68].view(np.int32)[0])


def filter_of_sum(total, channels, sign):
    """Weights of outputs whose magnitudes add up to a number, of one sign; int8."""
    f = np.zeros((8, channels * 9), np.int64)
    whole, rest = divmod(total, 127)
    f[:, :whole] = 127
    f[:, whole] = rest
    return (sign * f).reshape(8, channels, 3, 3).astype(np.int8)


@needs_native
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("beyond", [False, True])
def test_winograd_is_exact_up_to_its_bound_and_not_used_beyond(beyond, sign):
    """128 * sum |w| < 2**25; inputs at both ends of their range and zero points make sums as large as they get."""
    channels, total = 240, 2**18 - 1 + beyond
    f = filter_of_sum(total, channels, sign)
    packed = dml.prepare_convolution_filter(f)
    assert winograd_flag(packed.packed) == (not beyond)
    rng = np.random.default_rng(total)
    for x in (np.zeros((1, channels, 16, 16), np.uint8), np.full((1, channels, 16, 16), 255, np.uint8),
              rng.choice([0, 255], (1, channels, 16, 16)).astype(np.uint8)):  # fmt: skip
        for x_zero_point in (0, 255):

            def call(f, module, x=x, x_zero_point=x_zero_point):
                parameters = np.float32(1), None, None, np.float32(2.0**18), np.int8(0)
                options = {"start_padding": 1, "end_padding": 1}
                of_x = x, np.float32(1), np.uint8(x_zero_point)
                return module.quantized_linear_convolution(*of_x, f, *parameters, **options)

            np.testing.assert_array_equal(call(packed, dml), call(f, reference))
    is_winograd = (np.asarray(call(without_winograd(packed), dml)) != call(f, reference)).any()
    assert is_winograd == (not beyond)


@needs_native
def test_winograd_computes_where_it_is_faster():
    """What packs it is its shape: 3 x 3, at least 8 channels and 6 outputs of a group."""
    sizes = {
        shape: dml.prepare_convolution_filter(np.ones(shape, np.int8)).packed.size
        for shape in ((16, 8, 3, 3), (16, 7, 3, 3), (5, 8, 3, 3), (16, 8, 3, 2))
    }
    # A transformed filter of F(4, 3) takes 8 bytes a weight. Rows take 1 or 2, and at most a line more; mark, flag and
    # sums take 192 in all.
    cell = 2 if "avx2" in dml.kernels() else 1
    for (outputs, channels, *kernel), size in sizes.items():
        weights, has_winograd = outputs * channels * math.prod(kernel), (outputs, channels, *kernel) == (16, 8, 3, 3)
        of_parts = 4 * (outputs + channels * math.prod(kernel))  # see matrix_bytes in matmul.h
        rows = size - 192 - of_parts - 8 * weights * has_winograd
        assert weights * cell <= rows <= weights * cell + outputs * 64 + 64


@needs_native
def test_as_layers_are():
    assert check_wide(seed=3, count=60, largest=24) > 500_000


@needs_native
@pytest.mark.rare
@pytest.mark.parametrize("seed", range(4, 12))
def test_millions_of_outputs(seed):
    """Ten million in all."""
    assert check_wide(seed, count=120, largest=40) > 1_300_000


@needs_native
def test_sums_of_int32():
    """What products and convolutions of integers will be made of: no scales, wrapping modulo 2**32."""
    one = np.ones((), np.float32)
    got = native.call(
        native.KERNELS["requantized_dot"], None, A, one, np.uint8(7), B, one, None, one, None, output_dtype=jnp.int32
    )
    np.testing.assert_array_equal(got, (A.astype(np.int32) - 7) @ B.astype(np.int32))
    bias = np.full(24, 2**31 - 1, np.int32)
    options = {"strides": (1, 1), "dilations": (1, 1), "padding": ((0, 0), (0, 0)), "group_count": 1}
    got = native.call(
        native.KERNELS["requantized_conv"], None, X, one, None, F, one, np.int8(-3), bias, one, None,
        output_dtype=jnp.int32, **options,
    )  # fmt: skip
    windows = np.lib.stride_tricks.sliding_window_view(X.astype(np.int64), (3, 3), (2, 3))
    expected = np.einsum("nchwij,ocij->nohw", windows, F.astype(np.int64) + 3) + 2**31 - 1
    np.testing.assert_array_equal(got, expected.astype(np.uint32).view(np.int32))
