"""What native kernels compute: all that layers are made of, Winograd's bound, sums of int32."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxdml._arithmetic import native
from native_calls import A, B, F, X, check_wide, needs_native
from processes import run


@needs_native
def test_winograd_on_avx2():
    """On AVX2 it multiplies; a process whose kernels are of that set runs what winograd_on_avx2.py says."""
    done = run("import winograd_on_avx2; winograd_on_avx2.check()", JAXDML_KERNELS="avx2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" has avx2\n")


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
