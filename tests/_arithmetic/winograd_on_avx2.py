"""Winograd's bound, and which filters have its form: a program for AVX2 kernels, the only kernels that use it."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np

import jaxdml as dml
from helpers.compare import assert_same_bits
from jaxdml import reference
from jaxdml._arithmetic import panels


def without_winograd(prepared):
    """Prepared weights with all bits of the second half flipped, which holds only Winograd's form."""
    packed = np.asarray(prepared.data)
    broken = np.concatenate([packed[: packed.size // 2], ~packed[packed.size // 2 :]])
    broken[8:16] = np.frombuffer(panels.fingerprint(broken).to_bytes(8, "little"), np.int8)
    return dataclasses.replace(prepared, data=jnp.asarray(broken))


def winograd_flag(packed):
    return int(np.asarray(packed)[320:324].view(np.int32)[0])


def filter_of_sum(total, channels, sign):
    """int8 weights of one sign; the magnitudes of each output's weights add up to `total`."""
    f = np.zeros((8, channels * 9), np.int64)
    whole, rest = divmod(total, 127)
    f[:, :whole] = 127
    f[:, whole] = rest
    return (sign * f).reshape(8, channels, 3, 3).astype(np.int8)


def check_exact_up_to_the_bound_and_not_used_beyond(beyond, sign):
    """128 * sum |w| < 2**25; inputs at both ends of their range and zero points make sums as large as possible."""
    channels, total = 240, 2**18 - 1 + beyond
    f = filter_of_sum(total, channels, sign)
    packed = dml.prepare_convolution_filter(f)
    assert winograd_flag(packed.data) == (not beyond)
    rng = np.random.default_rng(total)
    for x in (np.zeros((1, channels, 16, 16), np.uint8), np.full((1, channels, 16, 16), 255, np.uint8),
              rng.choice([0, 255], (1, channels, 16, 16)).astype(np.uint8)):  # fmt: skip
        for x_zero_point in (0, 255):

            def call(f, module, x=x, x_zero_point=x_zero_point):
                parameters = np.float32(1), None, None, np.float32(2.0**18), np.int8(0)
                options = {"start_padding": 1, "end_padding": 1}
                of_x = x, np.float32(1), np.uint8(x_zero_point)
                return module.quantized_linear_convolution(*of_x, f, *parameters, **options)

            assert_same_bits(call(packed, dml), call(f, reference))
    is_winograd = (np.asarray(call(without_winograd(packed), dml)) != call(f, reference)).any()
    assert is_winograd == (not beyond)


def check_which_filters_have_its_form():
    """The shape decides: 3 x 3, with at least 8 channels and 6 outputs per group."""
    for outputs, channels, *kernel in ((16, 8, 3, 3), (16, 7, 3, 3), (5, 8, 3, 3), (16, 8, 3, 2)):
        size = dml.prepare_convolution_filter(np.ones((outputs, channels, *kernel), np.int8)).data.size
        weights, has_winograd = outputs * channels * math.prod(kernel), (outputs, channels, *kernel) == (16, 8, 3, 3)
        # Panels hold a byte for each weight, of outputs rounded up to 8 and rows of the kernel rounded up to 2. A
        # transformed filter of F(4, 3) takes 8 bytes a weight; seal, flag and sums take 448.
        panels = -(-outputs // 8) * 8 * kernel[0] * -(-kernel[1] * channels // 2) * 2
        of_parts = 4 * (outputs + channels * math.prod(kernel))  # see filter_bytes in filter.h
        rest = size - 448 - of_parts - panels - 8 * weights * has_winograd
        assert 0 <= rest < 64, (outputs, channels, kernel, rest)


def check():
    print(dml.kernels())
    for beyond, sign in ((False, 1), (False, -1), (True, 1)):
        check_exact_up_to_the_bound_and_not_used_beyond(beyond, sign)
    check_which_filters_have_its_form()
